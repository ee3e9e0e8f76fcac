"""What a GPU needs of a pass, shown without one: few transfers, no wait, and steps that can be replayed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.operations import EOS, WORDS, Play, small_model
from support.scorers import TransformerDevice, TransformerReference
from support.transformers_small import vocabulary
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nartk
from nartk.architectures.settings import FINAL_NORMS
from nartk.models.device_passes import Computed
from nartk.models.reference import read_tensors
from nartk.protocols.blocks import Shape, rounded
from nartk.protocols.passes import ROOT, Pass, Ragged, Want
from nartk.protocols.reading import read


def pairs(seed: int, device: torch.device) -> tuple[Any, Any]:
    rng = random.Random(seed)
    changes = {
        "decoder_positions": rng.choice(["sinusoidal", "learned", "relative"]),
        "decoder_norm_first": rng.random() < 0.5,
        "decoder_final_norm": FINAL_NORMS[seed % 3],
    }
    model, vocab = small_model(seed, **changes), vocabulary(WORDS)
    return tuple(kind(model, vocab, device=device) for kind in (TransformerReference, TransformerDevice))


@pytest.mark.parametrize(
    "sequences", [40, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "ten-thousand"]
)
def test_random_operations_are_the_references(sequences: int, device: torch.device) -> None:
    for seed in range(sequences):
        play = Play(pairs(seed, device), seed, 1e-5)
        for _ in range(25):
            play.step()
        for scorer in play.scorers:
            scorer.close(sorted(play.lengths))
            scorer.free(play.memory)
            assert scorer.cells_in_use == scorer._source_cells.pool.in_use == 0


@pytest.mark.parametrize("banned", [False, True])
def test_words_of_equal_logits_are_in_the_specifications_order(banned: bool, device: torch.device) -> None:
    """Rows of few different logits, with zeros of both signs, and minus infinity."""
    rng = np.random.default_rng(7)
    logits = rng.choice(np.array([-np.inf, -1, -0.0, 0.0, 2], np.float32), (200, WORDS))
    lists = [rng.choice(WORDS, rng.integers(0, 6), replace=False).tolist() for _ in logits]
    want = Want(top=WORDS + 1, margin=True, banned=Ragged.of(lists) if banned else None)
    wanted = read(logits, want)
    found = read_tensors(torch.tensor(logits, device=device), want, torch.zeros(len(logits), 1))
    assert (found.best == wanted.best).all()
    assert (found.top == wanted.top).all()
    np.testing.assert_allclose(found.top_log_probs, wanted.top_log_probs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.margins, wanted.margins, rtol=0, atol=0)


class Transfers(TorchFunctionMode):
    """Counts what moves numbers between the host and a device, or waits for it."""

    NAMES = frozenset(
        {"tensor", "as_tensor", "from_numpy", "copy_", "cpu", "item", "tolist", "__bool__", "__int__"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        moves = name == "to" and any(isinstance(each, (torch.device, str)) for each in args[1:])
        if name in self.NAMES or moves or (name == "to" and "device" in kwargs):
            self.found[name] += 1
        return func(*args, **kwargs)


class Waits(TorchDispatchMode):
    """Counts operations whose results the host must know: numbers, and shapes that depend on them."""

    NAMES = frozenset({"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"})

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.NAMES:
            self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def forced(scorer: Any, rows: int, drafted: int) -> Pass:
    """A pass over a start token and drafted ones of each row."""
    each = np.arange(rows, dtype=np.int32).repeat(drafted + 1)
    places = np.tile(np.arange(drafted + 1, dtype=np.int32), rows)
    parents = np.where(places == 0, ROOT, np.arange(len(each)) - 1).astype(np.int32)
    memory, contexts = scorer.encode([[5] * (i % 7) + [EOS] for i in range(rows)]), scorer.open(rows)
    return Pass(np.full(len(each), 7, np.int32), places, memory[each], contexts[each], parents)


def counted(scorer: Any, rows: int, drafted: int, want: Want) -> tuple[Counter[str], Counter[str]]:
    work = forced(scorer, rows, drafted)
    scorer.commit(scorer.run(work, want), ())  # buffers have room then
    with Transfers() as transfers, Waits() as waits:
        scorer.run(work, want)
    return transfers.found, waits.found


@pytest.mark.parametrize(("rows", "drafted"), [(1, 0), (1, 10), (3, 5), (32, 0), (32, 10), (8, 30)])
@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_a_pass_has_one_transfer_in_and_one_out(rows: int, drafted: int, positions: str) -> None:
    scorer = TransformerDevice(small_model(1, decoder_positions=positions), vocabulary(WORDS))
    given = np.full(rows * (drafted + 1), 5, np.int32)
    for want in (
        Want(),
        Want(margin=True, given=given),
        Want(top=4),
        Want(only=np.arange(1, dtype=np.int32)),
    ):
        assert counted(scorer, rows, drafted, want) == ({"copy_": 2}, {})


def test_the_reference_has_more_transfers() -> None:
    """The counters count: lists of the reference go one by one, and it waits for its results."""
    transfers, waits = counted(TransformerReference(small_model(1), vocabulary(WORDS)), 3, 5, Want())
    assert transfers.total() > 5
    assert waits.total() > 0


class Replayed:
    """Traces a step of each shape once, and replays it for every other pass: what a CUDA graph does.

    Args:
        step: The step to trace, of a scorer, a block and a shape.
    """

    def __init__(self, scorer: Any, step: Callable[[Any, Tensor, Shape], Computed]) -> None:
        self.scorer, self.step_of = scorer, step
        self.traced: dict[Any, Any] = {}
        self.replays = 0
        scorer.step = self

    def __call__(self, block: Tensor, shape: Shape) -> Computed:
        stores = (*self.scorer._target_stores, *self.scorer._source_stores)
        key = shape, block.data_ptr(), *(store.kv.data_ptr() for store in stores)
        if key in self.traced:
            self.replays += 1
        else:
            kept = [store.kv.clone() for store in stores]
            buffers = [store.kv for store in stores]

            def step(block: Tensor) -> list[Tensor]:
                return list(self.step_of(self.scorer, block, shape))

            self.traced[key] = make_fx(step)(block)
            for store, kv, values in zip(stores, buffers, kept, strict=True):
                store.kv = kv
                kv.copy_(values)
        return Computed(*self.traced[key](block))


class OneShape(Play):
    """Passes of one shape: 5 to 8 tokens of two rows, in 3 to 7 chains, behind at most 11 others."""

    def a_pass(self) -> Pass | None:
        rng, columns = self.rng, []
        busy = {int(each) for _, work in self.waiting for each in work.contexts}
        idle = [each for each, length in self.lengths.items() if each not in busy and length < 12]
        if len(idle) < 2:
            return None
        contexts, memory = rng.sample(idle, 2), rng.sample(self.memory.tolist(), 2)
        counts = rng.choice([(4, 4), (1, 4), (3, 2), (3, 4)])
        for context, encoded, count in zip(contexts, memory, counts, strict=True):
            begin = len(columns)
            for i in range(begin, begin + count):
                parent = rng.choice([ROOT, *range(begin, i)])
                columns.append((rng.randrange(WORDS), self.lengths[context], encoded, context, parent))
        chains = sum(parent != i - 1 or parent == ROOT for i, (*_, parent) in enumerate(columns))
        return Pass(*np.array(columns, np.int32).T.copy()) if 3 <= chains <= 7 else self.a_pass()

    def want(self, tokens: int) -> Want:
        given = np.array([self.rng.randrange(-1, WORDS) for _ in range(tokens)], np.int32)
        return Want(top=3, margin=True, given=given)


def replay(step: Callable[[Any, Tensor, Shape], Computed], device: torch.device) -> None:
    """Plays on a scorer that computes and on one that replays: their bits must be the same."""
    for seed, positions in enumerate(("sinusoidal", "relative")):
        model, vocab = small_model(seed, decoder_positions=positions), vocabulary(WORDS)
        eager, other = (TransformerDevice(model, vocab, device=device) for _ in range(2))
        eager.cuda_graphs = other.cuda_graphs = False
        eager._kernel = other._kernel = None  # a trace holds no kernel of Triton's
        replayed = Replayed(other, step)
        play = OneShape((eager, other), seed, 0)
        while replayed.replays < 100:
            play.step()
        assert len(replayed.traced) <= 2  # a store grew
        for one, two in zip(eager._target_stores, other._target_stores, strict=True):
            assert torch.equal(one.kv[: eager.size], two.kv[: eager.size])


def test_a_step_is_replayed_bit_for_bit(device: torch.device) -> None:
    replay(lambda scorer, block, shape: type(scorer).step(scorer, block, shape), device)


def with_a_number(scorer: Any, block: Tensor, shape: Shape) -> Computed:
    """The depth of the first token is read by the host."""
    depth = int(scorer._sent[4 * shape.tokens])
    computed = type(scorer).step(scorer, block, shape)
    return computed._replace(logits=computed.logits + depth)


def with_another_buffer(scorer: Any, block: Tensor, shape: Shape) -> Computed:
    """Keys and values are written to a copy, which is of the capture alone."""
    for store in scorer._target_stores:
        store.kv = store.kv.clone()
    return type(scorer).step(scorer, block, shape)


def with_a_wait(scorer: Any, block: Tensor, shape: Shape) -> Computed:
    """The device is asked for a number."""
    assert block[0].item() >= 0
    return type(scorer).step(scorer, block, shape)


@pytest.mark.parametrize("step", [with_a_number, with_another_buffer, with_a_wait])
def test_a_step_that_cannot_be_replayed_fails(step: Any, device: torch.device) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        replay(step, device)


class FakeGraph:
    """What a CUDA graph is to a scorer: computes again, to where it computed before."""

    def __init__(self, scorer: Any, block: Tensor, shape: Shape) -> None:
        self.replays = 0
        self.again = lambda: scorer.step(block, shape)
        self.computed = Computed(*(torch.full_like(each, -1) for each in self.again()))

    def replay(self) -> None:
        self.replays += 1
        for old, new in zip(self.computed, self.again(), strict=True):
            old.copy_(new)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    """Graphs as they are captured, on a CPU."""
    made: list[FakeGraph] = []

    def capture(scorer: Any, block: Tensor, shape: Shape) -> tuple[Any, Computed]:
        made.append(FakeGraph(scorer, block, shape))
        return made[-1], made[-1].computed

    monkeypatch.setattr(TransformerDevice, "_capture", capture)
    return made


def test_graphs_give_what_the_reference_gives(
    captured: list[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a store that grew, which takes its graphs with it."""
    monkeypatch.setattr("nartk.models.reference._LEAST_CELLS", 4)
    scorers = pairs(0, torch.device("cpu"))
    scorers[1].cuda_graphs = True
    play = OneShape(scorers, 0, 1e-5)
    while sum(each.replays for each in captured) < 100:
        play.step()
    assert len(captured) > scorers[1].captured["graphs"] > 0


def test_graphs_that_were_not_used_for_longest_go(
    captured: list[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nartk.models.device_passes._GRAPHS", 3)
    scorer = TransformerDevice(small_model(1), vocabulary(WORDS))
    scorer.cuda_graphs = True
    for top in (1, 2, 1, 2, 3, 3, 1, 4, 4):
        work = forced(scorer, 1, 0)
        scorer.commit(scorer.run(work, Want(top=top)), ())
    assert [shape.top for shape in scorer._captured] == [3, 1, 4]
    assert scorer.captured == {"graphs": 3, "bytes": 0}


def test_logits_of_a_pass_that_waits_outlive_the_next(captured: list[FakeGraph]) -> None:
    scorer = TransformerDevice(small_model(3), vocabulary(WORDS))
    scorer.cuda_graphs = True
    memory, contexts = scorer.encode([[5, 6, EOS]]), scorer.open(4)
    works = [
        Pass(*(np.array([each], np.int32) for each in (word, 0, memory[0], context, ROOT)))
        for word, context in zip((2, 7, 9, 11), contexts, strict=True)
    ]
    first = [scorer.run(work, Want()) for work in works]  # of one shape; none is committed
    wanted = TransformerReference(small_model(3), vocabulary(WORDS))
    wanted.encode([[5, 6, EOS]]), wanted.open(4)
    for scores, work in zip(first, works, strict=True):
        np.testing.assert_allclose(scores.rows([0]), wanted.run(work, Want()).rows([0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 1), (2, 2), (3, 4), (5, 8), (17, 32), (33, 48), (48, 48), (49, 64), (65, 96), (97, 128), (385, 512)],
)
def test_sizes_are_rounded_up(count: int, size: int) -> None:
    assert rounded(count) == size


@pytest.mark.cuda
def test_passes_are_captured_where_there_is_cuda() -> None:
    model = nartk.load("gec-en", device="cuda")
    model.decode(["He go to school ."] * 3, strategy="greedy", batch_size=1)
    assert min(model.passes.captured.values()) > 0
    assert nartk.load("gec-en", device="cuda", cuda_graphs=False).passes.captured is None
