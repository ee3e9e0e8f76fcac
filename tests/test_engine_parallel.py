"""The engine's passes of non-autoregressive models: against their networks, and alone against in company."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.parallel_models import (
    KINDS,
    canvas_of,
    engine_of,
    in_fp64,
    network_log_probs,
    random_parallel,
    random_sources,
    random_words,
)
from support.transformers_small import EOS

from nartk import engine
from nartk.errors import PassError
from nartk.models.da_transformer import DaTransformer
from nartk.models.nat import MASK, Nat
from nartk.protocols.parallel import (
    BlockScorer,
    Canvas,
    CanvasScorer,
    FrameScorer,
    GraphScorer,
    always_banned,
    spread_lengths,
)
from nartk.protocols.passes import Draw, FloatArray, Want

pytestmark = pytest.mark.skipif(
    os.environ.get(engine.LEFT_OUT) == "1", reason="NARTK_NO_ENGINE=1 leaves the engine out"
)

CLOSE = 1e-4  # nats between engine and network in fp32
SEEDS = range(12)


def check_reading(found: Any, wanted: FloatArray, given: Sequence[int], banned: Sequence[int]) -> None:
    """Compares what was read of n places with their log-probabilities [n,V]."""
    # Pre-norm layers without a norm behind them have logits in the tens, which round as much more.
    close = CLOSE if abs(wanted).max() < 20 else 10 * CLOSE
    allowed = wanted.copy()
    allowed[:, list(banned)] = -np.inf
    index = np.arange(len(wanted))
    best = allowed.max(1)
    np.testing.assert_allclose(allowed[index, found.best], best, rtol=0, atol=2 * close)  # equal up to ties
    np.testing.assert_allclose(found.log_probs, wanted[index, found.best], rtol=0, atol=close)
    np.testing.assert_allclose(found.given_log_probs, wanted[index, given], rtol=0, atol=close)
    second = np.sort(allowed, 1)[:, -2]
    np.testing.assert_allclose(found.margins, best - second, rtol=0, atol=2 * close)
    assert found.top.shape == (len(wanted), 3)
    clear = best - second > 2 * close
    np.testing.assert_array_equal(found.best[clear], allowed.argmax(1)[clear])
    np.testing.assert_array_equal(found.top[:, 0], found.best)
    np.testing.assert_allclose(found.top_log_probs, -np.sort(-allowed, 1)[:, :3], rtol=0, atol=2 * close)
    logits = torch.from_numpy(found.rows(index.tolist()))
    np.testing.assert_allclose(logits.double().log_softmax(1).numpy(), wanted, rtol=0, atol=close)


# What it computes


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_are_those_of_the_network(seed: int) -> None:
    network = random_parallel("ctc", seed)
    scorer = engine_of(network)
    assert isinstance(scorer, FrameScorer)
    assert scorer.blank == MASK
    sources = random_sources(network, random.Random(seed), 7)
    memory = scorer.encode(sources)
    counts = scorer.frames(memory)
    assert counts.tolist() == [network.config.upsample * len(source) for source in sources]
    exact = in_fp64(network)
    wanted = np.concatenate([network_log_probs(exact, source, [0]) for source in sources])
    assert len(wanted) == counts.sum()
    given = np.random.default_rng(seed).integers(0, wanted.shape[1], len(wanted)).astype(np.int32)
    want = Want(banned=always_banned([1, 2], len(wanted)), top=3, margin=True, given=given)
    check_reading(scorer.read_frames(memory, want), wanted, given, [1, 2])
    scorer.free(memory)
    assert scorer.memories_in_use == 0


@pytest.mark.parametrize("kind", ["nat", "blockwise"])
@pytest.mark.parametrize("seed", SEEDS)
def test_canvases_are_filled_as_by_the_network(kind: str, seed: int) -> None:
    network, rng = random_parallel(kind, seed), random.Random(seed)
    scorer = engine_of(network)
    assert isinstance(scorer, CanvasScorer) == (kind == "nat")
    assert isinstance(scorer, BlockScorer) == (kind == "blockwise")
    sources = random_sources(network, rng, 5)
    owners = [0, 1, 2, 2, 3, 4, 0]
    rows = [
        random_words(network, rng, rng.choice([1, 2, 13, 70]), rng.choice([0.0, 0.5, 1.0])) for _ in owners
    ]
    memory = scorer.encode(sources)
    exact = in_fp64(network)
    wanted = np.concatenate(
        [network_log_probs(exact, sources[owner], row) for owner, row in zip(owners, rows, strict=True)]
    )
    only = np.flatnonzero(np.random.default_rng(seed).random(len(wanted)) < 0.6).astype(np.int32)
    only = only if len(only) else np.array([0], np.int32)
    given = np.random.default_rng(seed).integers(0, wanted.shape[1], len(only)).astype(np.int32)
    banned = (scorer.mask, 1, EOS)
    want = Want(only=only, banned=always_banned(banned, len(only)), top=3, margin=True, given=given)
    check_reading(scorer.fill(canvas_of(memory[owners], rows), want), wanted[only], given, banned)


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_are_predicted_as_by_the_network(seed: int) -> None:
    network = random_parallel("nat", seed)
    assert isinstance(network, Nat)
    scorer = engine_of(network)
    sources = random_sources(network, random.Random(seed), 6)
    found = scorer.predict_lengths(scorer.encode(sources))
    network = in_fp64(network)
    assert found.shape == (6, 71)
    assert found.dtype == np.float32
    for row, source in zip(found, sources, strict=True):
        memory = network.encode(torch.tensor([source])).memory
        probs = network.lengths(memory[0].mean(0)).softmax(0).numpy()
        wanted = np.zeros(71)
        for at, prob in enumerate(probs):
            wanted[min(max(len(source) + at - network.config.length_difference, 1), 70)] += prob
        assert row[0] == -np.inf
        np.testing.assert_array_equal(np.isinf(row), wanted == 0)
        np.testing.assert_allclose(row[wanted > 0], np.log(wanted[wanted > 0]), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("seed", range(18))
def test_graphs_are_those_of_the_network(seed: int) -> None:
    network, rng = random_parallel("dag", seed), random.Random(seed)
    assert isinstance(network, DaTransformer)
    scorer = engine_of(network)
    assert isinstance(scorer, GraphScorer)
    sources = random_sources(network, rng, 6)
    graphs = scorer.graphs(scorer.encode(sources))
    network = in_fp64(network)
    features = np.split(graphs.features, np.cumsum(graphs.sizes)[:-1])
    for source, size, vertices, links in zip(sources, graphs.sizes, features, graphs.links, strict=True):
        encoded = network.encode(torch.tensor([source]))
        length = torch.tensor([len(source)])
        if network.config.upsampling == "predict":
            length = network.length_of(network.lengths(encoded.memory.mean(1)), length)
        sizes = network.sizes(length, network.config.scales[1])
        assert size == sizes.item()
        hidden = network.vertices(network.canvas(sizes), encoded)
        wanted = network.links(hidden, sizes)[0].numpy()
        np.testing.assert_array_equal(np.isinf(links), np.isinf(wanted))
        likely = wanted > -30
        np.testing.assert_allclose(links[likely], wanted[likely], rtol=0, atol=3 * CLOSE)
        np.testing.assert_allclose(np.exp(links[:-1]).sum(1), 1.0, rtol=0, atol=1e-5)
        lprobs = network.output(hidden)[0].log_softmax(-1).numpy()
        given = np.random.default_rng(seed).integers(0, lprobs.shape[1], size).astype(np.int32)
        check_reading(scorer.words(vertices, Want(top=3, margin=True, given=given)), lprobs, given, ())


def test_words_are_drawn_and_features_read_as_of_a_pass() -> None:
    network = random_parallel("nat", 1)
    scorer, row = engine_of(network), [MASK] * 9 + [EOS]
    memory = scorer.encode([[5, 6, EOS]])
    canvas = canvas_of(memory, [row])
    uniforms = np.random.default_rng(0).random(10)
    found = scorer.fill(canvas, Want(draw=Draw(uniforms), hidden=True))
    lprobs = network_log_probs(in_fp64(network), [5, 6, EOS], row)
    sums = np.exp(lprobs).cumsum(1)
    clear = np.abs(sums - uniforms[:, None]).min(1) > CLOSE
    assert clear.sum() > 5
    np.testing.assert_array_equal(found.drawn[clear], (sums > uniforms[:, None]).argmax(1)[clear])
    logits = torch.from_numpy(found.hidden) @ network.output.weight.T
    np.testing.assert_allclose(logits.log_softmax(1).numpy(), lprobs, rtol=0, atol=CLOSE)


# In any company


def everything(scorer: Any, sources: list[list[int]], rows: list[list[int]]) -> list[tuple[bytes, ...]]:
    """All numbers of each source and, where the model fills canvases, of its row; bit for bit."""
    memory = scorer.encode(sources)
    parts: list[list[bytes]] = [[] for _ in sources]

    def add(values: np.ndarray, counts: Sequence[int]) -> None:
        for part, each in zip(parts, np.split(values, np.cumsum(counts)[:-1]), strict=True):
            part.append(each.tobytes())

    if isinstance(scorer, GraphScorer):
        graphs = scorer.graphs(memory)
        counts = graphs.sizes.tolist()
        for part, links in zip(parts, graphs.links, strict=True):
            part.append(links.tobytes())
        found: Any = scorer.words_at(graphs, graphs.vertices, Want(hidden=True))
    elif isinstance(scorer, FrameScorer):
        counts = scorer.frames(memory).tolist()
        found = scorer.read_frames(memory, Want(hidden=True))
    else:
        counts = [len(row) for row in rows]
        found = scorer.fill(canvas_of(memory, rows), Want(hidden=True))
        if isinstance(scorer, CanvasScorer):
            add(scorer.predict_lengths(memory), [1] * len(sources))
    for values in (found.best, found.log_probs, found.hidden, found.rows(range(sum(counts)))):
        add(values, counts)
    scorer.free(memory)
    return [tuple(part) for part in parts]


@pytest.mark.parametrize("isa", ["", "avx2", "plain"])
@pytest.mark.parametrize("type", engine.TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_in_any_company(
    kind: str, type: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in a batch, in another order, and with two threads."""
    from nartk.engine import _native

    try:
        _native.isa(isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    monkeypatch.setenv(engine.FORCED_ISA, isa)
    for seed in range(3):
        network, rng = random_parallel(kind, seed), random.Random(seed)
        one, two = (engine_of(network, type=type, threads=threads) for threads in (1, 2))
        sources = random_sources(network, rng, 6)
        rows = [random_words(network, rng, rng.choice([1, 9, 33, 70]), 0.6) for _ in sources]
        alone = [everything(one, [s], [r])[0] for s, r in zip(sources, rows, strict=True)]
        order = rng.sample(range(6), 6)
        for scorer in (one, two):
            assert everything(scorer, sources, rows) == alone
            moved = everything(scorer, [sources[i] for i in order], [rows[i] for i in order])
            assert moved == [alone[i] for i in order]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type", ["bf16", "int8"])
def test_smaller_types_are_near(kind: str, type: str) -> None:
    """Weights that are rounded give other numbers, but of the same model."""
    network = random_parallel(kind, 3)
    rng = random.Random(3)
    sources = random_sources(network, rng, 4)
    rows = [random_words(network, rng, 20, 0.6) for _ in sources]
    want = Want(hidden=True)
    found = []
    for scorer in (engine_of(network), engine_of(network, type=type)):
        memory = scorer.encode(sources)
        if isinstance(scorer, GraphScorer):
            found.append(scorer.graphs(memory).features)
        elif isinstance(scorer, FrameScorer):
            found.append(scorer.read_frames(memory, want).hidden)
        else:
            found.append(scorer.fill(canvas_of(memory, rows), want).hidden)
    exact, rounded = found
    assert 0 < np.abs(exact - rounded).mean() < 0.2 * np.abs(exact).mean()


# What is refused


@pytest.mark.parametrize(
    ("words", "lengths", "message"),
    [
        ([5, 99, EOS], [3], "word 99 of row 0 is none of"),
        ([5, -1, EOS], [3], "`words` holds -1"),
        ([5, EOS], [3], "the arrays of a canvas differ in length"),
        ([5] * 71, [71], "row 0 has 71 places, not 1 to 70"),
        ([], [0], "row 0 has 0 places, not 1 to 70"),
    ],
)
def test_what_breaks_a_rule_is_refused(words: list[int], lengths: list[int], message: str) -> None:
    scorer = engine_of(random_parallel("nat", 1))
    memory = scorer.encode([[5, EOS]])
    canvas = Canvas(memory, np.array(lengths, np.int32), np.array(words, np.int32))
    with pytest.raises(PassError, match=message):
        scorer.fill(canvas, Want())


@pytest.mark.parametrize("kind", KINDS)
def test_a_freed_source_is_refused(kind: str) -> None:
    scorer = engine_of(random_parallel(kind, 0))
    memory = scorer.encode([[5, EOS]])
    scorer.free(memory)
    calls: dict[str, Callable[[], Any]] = {
        "ctc": lambda: scorer.read_frames(memory, Want()),
        "nat": lambda: scorer.predict_lengths(memory),
        "blockwise": lambda: scorer.fill(canvas_of(memory, [[EOS]]), Want()),
        "dag": lambda: scorer.graphs(memory),
    }
    with pytest.raises(PassError, match="encoded source 0 is not there"):
        calls[kind]()
    with pytest.raises(PassError, match="encoded source 0 is not there"):
        scorer.free(memory)


def test_lengths_out_of_bounds_count_as_the_nearest() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.25, 0.15]], np.float32))  # of -2, -1, 0, 1 and 2
    np.testing.assert_allclose(np.exp(spread_lengths(logits, [1], 2)), [[0, 0.6, 0.4]], atol=1e-6)
    np.testing.assert_allclose(np.exp(spread_lengths(logits, [9], 3)), [[0, 0, 0, 1]], atol=1e-6)
