"""What lends models between arrays and tensors gives what the networks give, row by row.

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
    engine_of,
    network_log_probs,
    random_parallel,
    random_sources,
    random_words,
)
from support.transformers_small import padded, vocabulary

from nartk import engine
from nartk.architectures import architecture
from nartk.models.array_scorers import arrays_of
from nartk.models.da_transformer import DaTransformer
from nartk.passes import Want
from nartk.scorer import BlockScorer, CanvasScorer, FrameScorer, GraphScorer, Source

CLOSE = 2e-4  # nats
TENSORS = {"ctc": FrameScorer, "nat": CanvasScorer, "blockwise": BlockScorer, "dag": GraphScorer}


def source_of(rows: list[list[int]], device: torch.device) -> Source:
    return Source(padded(rows).to(device), torch.tensor([len(row) for row in rows], device=device))


def graph_of(network: DaTransformer, source: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """The features [L,D] and links [L,L] of a graph of so many vertices."""
    src_tokens, sizes = torch.tensor([source]), torch.tensor([size])
    memory, mask = network.encode(src_tokens)
    hidden = network.vertices(network.canvas(sizes), src_tokens, memory, mask)
    return hidden[0].numpy(), network.links(hidden, sizes)[0].numpy()


def check_links(found: Any, wanted: np.ndarray) -> None:
    likely = wanted > -30
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    np.testing.assert_allclose(np.asarray(found)[likely], wanted[likely], rtol=0, atol=3 * CLOSE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_torch_lends_arrays(kind: str, seed: int, device: torch.device) -> None:
    network, rng = random_parallel(kind, seed), random.Random(seed)
    made = architecture(kind).scorer(network, vocabulary(network.config.tgt_vocab), device=device)
    scorer = arrays_of(made)
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
        found = scorer.words(graphs.features, Want())
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


@pytest.mark.skipif(not engine.available(), reason="there is no engine here")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_lends_tensors(kind: str, seed: int) -> None:
    network, rng = random_parallel(kind, seed), random.Random(seed)
    own = engine_of(network)
    scorer = architecture(kind).tensors(own, network.config).mode(exact=True)
    assert isinstance(scorer, TENSORS[kind])
    sources = random_sources(network, rng, 5)
    source = source_of(sources, torch.device("cpu"))
    if isinstance(network, DaTransformer):
        graph = scorer.emit(source)
        for row, size in enumerate(graph.lengths.tolist()):
            hidden, wanted = graph_of(network, sources[row], size)
            np.testing.assert_allclose(graph.hidden[row, :size], hidden, rtol=0, atol=1e-3)
            check_links(graph.links[row, :size, :size].numpy(), wanted)
            assert bool(graph.links[row, size:].isneginf().all())
            logits = network.output(torch.from_numpy(hidden))
            found = scorer.words(graph.hidden[row, :size])
            np.testing.assert_allclose(found, logits, rtol=0, atol=2e-3)
    elif kind == "ctc":
        frames = scorer.emit(source)
        for row, size in enumerate(frames.lengths.tolist()):
            wanted = network_log_probs(network, sources[row], [0])
            np.testing.assert_allclose(frames.log_probs[row, :size], wanted, rtol=0, atol=CLOSE)
            assert not frames.log_probs[row, size:].any()
    else:
        owners = [3, 0, 4, 4]
        state = scorer.select(scorer.read(source), torch.tensor(owners[:2]))
        state = scorer.join(state, scorer.select(scorer.read(source), torch.tensor(owners[2:])))
        rows = [random_words(network, rng, length, 0.5) for length in (1, 9, 30, 14)]
        lengths = torch.tensor([len(row) for row in rows])
        places = torch.rand(4, 30) < 0.5
        logits = scorer.fill(padded(rows), lengths, state)
        some = scorer.fill(padded(rows), lengths, state, places & (torch.arange(30) < lengths[:, None]))
        at = 0
        for row, words in enumerate(rows):
            wanted = network_log_probs(network, sources[owners[row]], words)
            found = logits[row, : len(words)].log_softmax(-1)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)
            chosen = logits[row, : len(words)][places[row, : len(words)]]
            assert torch.equal(some[at : at + len(chosen)], chosen)
            at += len(chosen)
        assert at == len(some)
        if kind == "nat":
            wanted_lengths = own.predict_lengths(state.handles)
            assert scorer.predict_lengths(state).numpy().tobytes() == wanted_lengths.tobytes()
        del state
    assert own.memories_in_use == 0
