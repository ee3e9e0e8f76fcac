"""Paths that torch finds through graphs on a device, against the search in NumPy over the same graphs.

That search is itself tested against all paths and a walk by hand (test_dag_search, test_dag_decoders).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.parallel_models import random_parallel, random_sources
from support.transformers_small import vocabulary
from torch import Tensor

from nartk.architectures import architecture
from nartk.decoders.graphs import paths
from nartk.models.parallel_reference import GraphOnTorch, GraphsOnTorch
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import PathSearch
from nartk.registry import make_strategy

GRAPHS, WORDS = 1000, 9
SEARCHES = {
    "greedy": {},
    "viterbi": {"beta": 1.0},
    "lookahead": {"weight": 1.0},
    "lookahead, words of half weight": {"weight": 0.5},
    "joint viterbi": {"beta": 1.0, "weight": 1.0},
    "short ones": {"beta": 0.0, "weight": 1.0},
    "long ones": {"beta": 3.0},
}
STRATEGIES = ("dag-greedy", "dag-lookahead", "dag-viterbi", "dag-joint-viterbi")


class Table:
    """An output layer that gives the vertex of a number, its only feature, a row [V] of a table [N,V]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.out_features = logits, logits.shape[1]

    def __call__(self, features: Tensor) -> Tensor:
        return self.logits[features[:, 0].long()]


class Drawn(GraphOnTorch):
    """Graphs of given links, and of vertices whose words have given logits."""

    def __init__(self, links: Sequence[np.ndarray], logits: np.ndarray, device: torch.device) -> None:
        self.vocab, self.device, self.dtype = vocabulary(WORDS), device, torch.float64
        self.model: Any = SimpleNamespace(output=Table(torch.from_numpy(logits).to(device)))
        sizes = np.array([len(each) for each in links], np.int32)
        edges = torch.full((len(links), sizes.max(), sizes.max()), -torch.inf)
        for row, each in zip(edges, links, strict=True):
            row[: len(each), : len(each)] = torch.from_numpy(each)
        hidden = torch.arange(sizes.sum(), dtype=torch.float64)[:, None]
        self.drawn = GraphsOnTorch(sizes, hidden.to(device), edges.to(device))


def links_of(rng: np.random.Generator, size: int) -> np.ndarray:
    """Log-probabilities of edges, many equal or missing; some vertices, and some graphs, lead nowhere."""
    values = rng.choice([-0.5, -1.0, -1.0, -2.0, -np.inf], (size, size)).astype(np.float32)
    values[rng.random(size) < 0.1] = -np.inf
    return np.where(np.triu(np.ones((size, size)), 1) > 0, values, np.float32(-np.inf))


def drawn_graphs(device: torch.device) -> Iterator[tuple[Drawn, list[int]]]:
    """1,000 graphs in batches of unequal sizes, with a limit each."""
    rng, left = np.random.default_rng(1), GRAPHS
    while left:
        count = int(min(left, rng.integers(1, 40)))
        sizes = rng.integers(2, 24, count)
        logits = rng.choice([0.0, 0.0, 1.0, 2.0, -np.inf], (sizes.sum(), WORDS)).astype(np.float32)
        logits[:, 2] = rng.choice([0.0, 3.0], len(logits))  # eos
        logits[:, -1] = 0.0
        yield (
            Drawn([links_of(rng, size) for size in sizes], logits, device),
            rng.integers(1, 24, count).tolist(),
        )
        left -= count


@pytest.mark.parametrize("name", SEARCHES)
def test_the_path_is_that_of_numpy(name: str, device: torch.device) -> None:
    lengths = set()
    for scorer, limits in drawn_graphs(device):
        search = PathSearch(limits, **SEARCHES[name])
        found = scorer.best_paths(scorer.drawn, search)
        for own, wanted in zip(found, paths.best_paths(scorer, scorer.drawn, search), strict=True):
            assert own.vertices == wanted.vertices
            for each, expected in zip(own[1:], wanted[1:], strict=True):
                assert (each.dtype, each.tolist()) == (expected.dtype, expected.tolist())
            lengths.add(len(own.vertices))
    assert len(lengths) > 7


def requests_of(network: Any, seed: int) -> list[Request]:
    sources = random_sources(network, random.Random(seed), 5)
    return [Request(i, tuple(source), 3 + 20 * i, trace=i % 2 == 1) for i, source in enumerate(sources)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_graph_is_copied_but_for_a_trace(
    name: str, seed: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_parallel("dag", seed)
    scorer = architecture("dag").scorer(network, vocabulary(network.config.tgt_vocab), device=device)
    requests = requests_of(network, seed)
    traced = [*make_strategy(name, {}).decode(scorer, requests)]
    assert all(
        (each.graph is not None) == request.trace for each, request in zip(traced, requests, strict=True)
    )

    def copied(graphs: GraphsOnTorch) -> Any:
        raise AssertionError("a graph is copied to the host")

    for part in ("features", "links"):
        monkeypatch.setattr(GraphsOnTorch, part, property(copied))
    plain = [Request(each.index, each.source, each.max_len) for each in requests]
    found = [*make_strategy(name, {}).decode(scorer, plain)]
    for own, wanted in zip(found, traced, strict=True):
        assert own.hypotheses[0].tokens == wanted.hypotheses[0].tokens
        assert own.hypotheses[0].score == wanted.hypotheses[0].score
    with pytest.raises(AssertionError, match="copied"):
        list(make_strategy(name, {}).decode(scorer, requests))
