"""The reference scorers of parallel models give what the networks give, row by row.

Oracle: the network itself, without padding or batch.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from support.parallel_models import (
    KINDS,
    canvas_of,
    network_log_probs,
    random_parallel,
    random_sources,
    random_words,
)
from support.transformers_small import vocabulary

from nartk.architectures import architecture
from nartk.models.da_transformer import DaTransformer
from nartk.protocols.parallel import BlockScorer, CanvasScorer, FrameScorer, GraphScorer
from nartk.protocols.passes import Want

CLOSE = 2e-4  # nats
PROTOCOLS = {"ctc": FrameScorer, "nat": CanvasScorer, "blockwise": BlockScorer, "dag": GraphScorer}


def graph_of(network: DaTransformer, source: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """The features [L,D] and links [L,L] of a graph of so many vertices."""
    sizes = torch.tensor([size])
    hidden = network.vertices(network.canvas(sizes), network.encode(torch.tensor([source])))
    return hidden[0].numpy(), network.links(hidden, sizes)[0].numpy()


def check_links(found: Any, wanted: np.ndarray) -> None:
    likely = wanted > -30
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    np.testing.assert_allclose(np.asarray(found)[likely], wanted[likely], rtol=0, atol=3 * CLOSE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_network(kind: str, seed: int, device: torch.device) -> None:
    network, rng = random_parallel(kind, seed), random.Random(seed)
    scorer = architecture(kind).scorer(network, vocabulary(network.config.tgt_vocab), device=device)
    assert [name for name, each in PROTOCOLS.items() if isinstance(scorer, each)] == [kind]
    first, second = random_sources(network, rng, 4), random_sources(network, rng, 3)
    memory = np.concatenate([scorer.encode(first), scorer.encode(second)])  # of two calls
    order = rng.sample(range(7), 7)
    sources = [(first + second)[i] for i in order]
    rows = [random_words(network, rng, rng.choice([1, 13, 40]), 0.5) for _ in sources]
    memory = memory[order]
    if isinstance(network, DaTransformer):
        graphs = scorer.graphs(memory)
        each = np.split(graphs.features, np.cumsum(graphs.sizes)[:-1])
        lprobs = []
        for source, size, features, links in zip(sources, graphs.sizes, each, graphs.links, strict=True):
            hidden, wanted = graph_of(network, source, int(size))
            np.testing.assert_allclose(features, hidden, rtol=0, atol=1e-3)
            check_links(links, wanted)
            lprobs.append(network.output(torch.from_numpy(hidden)).log_softmax(-1).numpy())
        found = scorer.words_at(graphs, graphs.vertices, Want())
        target = np.concatenate(lprobs)
    else:
        target = np.concatenate(
            [network_log_probs(network, source, row) for source, row in zip(sources, rows, strict=True)]
        )
        if kind == "ctc":
            found = scorer.read_frames(memory, Want())
            assert scorer.frames(memory).sum() == len(target)
        else:
            only = np.arange(1, len(target), 2, dtype=np.int32)
            target = target[only]
            found = scorer.fill(canvas_of(memory, rows), Want(only=only))
    logits = torch.from_numpy(found.rows(range(len(target))))
    np.testing.assert_allclose(logits.log_softmax(1).numpy(), target, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(found.log_probs, target.max(1), rtol=0, atol=CLOSE)
    scorer.free(memory)
