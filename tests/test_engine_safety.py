"""The engine where it is used wrongly, by several threads, after a fork, or broken off.

Symbols: N tokens of a pass.
"""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine import ROOT, build_engine, run_tests
from support.random_transformers import EOS, FIRST_WORD, arrays_of, random_config, random_model, vocabulary
from support.scorers import TransformerEngine

from nartk.architectures.transformer import TransformerConfig
from nartk.engine import TYPES, _native
from nartk.errors import PassError, UsageError
from nartk.protocols.contexts import Contexts, Handles, PendingPass
from nartk.protocols.passes import ROOT as FOLLOWS_CONTEXT
from nartk.protocols.passes import Draw, Limits, Pass, Ragged, Scores, Want
from nartk.protocols.reading import check_want

PLAIN = Want()
QUICK, SLOW = 500, 10_000  # random passes, with other operations between them
HUGE = (2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**64, 2**100)


def scorer_of(config: TransformerConfig, *, type: str = "fp32", threads: int = 1) -> TransformerEngine:
    source_vocab, vocab = vocabulary(config.src_vocab), vocabulary(config.tgt_vocab)
    arrays = arrays_of(random_model(config, 1))
    return TransformerEngine(config, arrays, vocab, source_vocab=source_vocab, type=type, threads=threads)


def small(**fixed: Any) -> TransformerConfig:
    return random_config(random.Random(1), **{"d_model": 30, "encoder_heads": 2, "decoder_heads": 3, **fixed})


def large(**fixed: Any) -> TransformerConfig:
    """So wide that two threads share the work of a token: see `test_two_threads_share_the_work`."""
    return small(**{"d_model": 300, "decoder_ffn": 6000, "decoder_layers": 1, "max_target_len": 30, **fixed})


def int32(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def chain(tokens: Any, memory: int, context: int, first: int = 0) -> Pass:
    count = len(tokens)
    return Pass(
        int32(tokens),
        np.arange(first, first + count, dtype=np.int32),
        np.full(count, memory, np.int32),
        np.full(count, context, np.int32),
        np.arange(-1, count - 1, dtype=np.int32),
    )


def greedy(scorer: TransformerEngine, source: list[int], passes: int) -> list[bytes]:
    """All that greedy search reads, bit for bit."""
    (memory,), (context,) = scorer.encode([source]), scorer.open(1)
    word, read = scorer.start_token, []
    for position in range(passes):
        scores = scorer.run(chain([word], memory, context, position), Want(hidden=True))
        word = int(scores.best[0])
        read += [scores.best.tobytes(), scores.log_probs.tobytes(), scores.hidden.tobytes()]
        scorer.commit(scores, [0])
    scorer.close([context])
    scorer.free([memory])
    return read


# --- Rules


class Both:
    """The engine, and beside it nartk.protocols.contexts, which says what is right."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.config = small(max_target_len=25, max_source_len=9, tgt_vocab=20, src_vocab=20)
        self.scorer, self.spare = scorer_of(self.config), scorer_of(self.config)
        self.limits: Limits = self.scorer.limits
        self.contexts = Contexts(self.limits)
        self.memories: Handles[list[int]] = Handles("memory")
        self.waiting: list[tuple[Scores, PendingPass, Pass]] = []
        self.ended: list[tuple[Scores, PendingPass, Pass]] = []
        self.content: dict[int, tuple[int, int, int]] = {}  # of each cell: word, position, source's handle
        self.sources: list[list[int]] = []
        self.handles: list[int] = []  # of contexts, closed ones too
        self.names: Counter[str] = Counter()  # of what was refused, N in place of numbers
        self.passes = self.compared = 0

    def step(self) -> None:
        actions = (self.encode, self.free, self.open, self.fork, self.truncate, self.close, self.drop)
        weights = (2, 1, 2, 2, 1, 1, 1)
        many = (self.run, self.commit)
        before = self.contexts.cells_in_use
        failed = self.refused
        self.rng.choices([*actions, *many], [*weights, 8, 7])[0]()
        after = self.contexts.cells_in_use
        assert self.scorer.cells_in_use == after
        assert failed == self.refused or before == after

    def refuse(self, engine: Callable[[], Any]) -> None:
        try:
            engine()
        except PassError as error:  # which keeps what it was raised in alive, and a pass with it, until here
            self.names[re.sub(r"-?\d+", "N", error.message)] += 1
        else:
            raise AssertionError("a rule was broken, and nothing refused")

    @property
    def refused(self) -> int:
        return self.names.total()

    def same(self, engine: Callable[[], Any], oracle: Callable[[], Any]) -> tuple[Any, Any] | None:
        """What both give, or None if both refuse."""
        try:
            wanted = oracle()
        except PassError:
            self.refuse(engine)
            return None
        found = engine()
        if isinstance(wanted, np.ndarray):
            assert found.dtype == np.int32
            assert found.tolist() == wanted.tolist()
        return found, wanted

    def some_contexts(self) -> Any:
        """Handles, mostly open ones, in one of the types that are taken."""
        rng = self.rng
        some = [self.a_context() for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.05:
            some.append(rng.choice([*HUGE, -1, -(2**31), -(2**40)]))
            return some
        return rng.choice([list, tuple, np.array, int32])(some) if some else []

    def a_context(self) -> int:
        if self.rng.random() < 0.1 or not self.handles:
            return self.rng.choice([-1, -5, 0, 1, 10**6, *self.handles])
        return self.rng.choice(self.handles[-6:])

    def encode(self) -> None:
        rng = self.rng
        sources = [[rng.randrange(20) for _ in range(rng.randint(1, 9))] for _ in range(rng.randint(0, 2))]
        bad = rng.random()
        if bad < 0.3:
            sources.append(rng.choice([[], [1] * 10, [20], [-1], [2**31], [2**40]]))
            self.refuse(lambda: self.scorer.encode(sources))
            return
        assert self.scorer.encode(sources).tolist() == self.memories.add(sources).tolist()
        self.sources += sources

    def a_memory(self) -> int:
        return self.rng.randint(max(0, len(self.sources) - 5), len(self.sources))

    def free(self) -> None:
        which = [self.a_memory() for _ in range(self.rng.randint(0, 2))]
        self.same(lambda: self.scorer.free(which), lambda: self.memories.remove(which))

    def open(self) -> None:
        count = self.rng.choice([-1, 0, 1, 2, 3])
        pair = self.same(lambda: self.scorer.open(count), lambda: self.contexts.open(count))
        self.handles += pair[0].tolist() if pair else []

    def fork(self) -> None:
        which = self.some_contexts()
        pair = self.same(lambda: self.scorer.fork(which), lambda: self.contexts.fork(which))
        self.handles += pair[0].tolist() if pair else []

    def truncate(self) -> None:
        which = self.some_contexts()
        lengths: Any = [self.rng.choice([-1, 0, 1, 1, 2, 3, 40]) for _ in which]
        if self.rng.random() < 0.05:
            lengths.append(self.rng.choice([0, *HUGE]))
        self.same(
            lambda: self.scorer.truncate(which, lengths), lambda: self.contexts.truncate(which, lengths)
        )

    def close(self) -> None:
        which = self.some_contexts()
        self.same(lambda: self.scorer.close(which), lambda: self.contexts.close(which))

    def a_pass(self) -> Pass:
        rng = self.rng
        idle = rng.sample(self.handles[-8:], min(len(self.handles), rng.randint(1, 3), 8)) or [0]
        count = rng.randint(1, 7)
        owners = [rng.choice(idle) for _ in range(count)]
        parents = [
            rng.choice([FOLLOWS_CONTEXT, *(j for j in range(i) if owners[j] == owner)])
            for i, owner in enumerate(owners)
        ]
        memory = [self.a_memory() if rng.random() < 0.05 else max(0, self.a_memory() - 1)] * count
        work = Pass(
            tokens=int32([rng.randrange(20) for _ in owners]),
            positions=int32([rng.randrange(25) for _ in owners]),
            memory=int32(memory),
            contexts=int32(owners),
            parents=int32(parents),
        )
        return self.broken(work) if rng.random() < 0.3 else work

    def broken(self, work: Pass) -> Pass:
        """The pass with one thing that is wrong, or may be."""
        rng = self.rng
        name = rng.choice(["tokens", "positions", "memory", "contexts", "parents"])
        array = getattr(work, name).copy()
        kind = rng.randrange(7)
        if kind < 4:
            array[rng.randrange(len(array))] = rng.choice([-2, -1, 0, 3, 6, 20, 25, 2**31 - 1, -(2**31)])
        elif kind == 4:
            array = array.astype(rng.choice([np.int64, np.float32, np.uint32, np.int16, ">i4"]))
        elif kind == 5:
            array = rng.choice([array[:-1], array[:, None], array[None], np.append(array, array[:1])])
        else:  # whole, but spread in memory
            array = np.repeat(array, 2)[::2]
        return replace(work, **{name: array})

    def a_want(self, count: int) -> Want:
        rng = self.rng
        if rng.random() < 0.7:
            return PLAIN
        n = max(0, count + rng.choice([0, 0, 0, 1, -1]))
        return rng.choice(
            [
                Want(only=int32(sorted(rng.randrange(-1, count + 1) for _ in range(rng.randint(0, 3))))),
                Want(only=int32([0]).astype(rng.choice([np.int64, np.int32]))),
                Want(banned=Ragged.of([[rng.randrange(19)]] * n)),
                Want(banned=Ragged.of([[rng.choice([-1, 20, 5])]] * n)),
                Want(banned=Ragged.of([list(range(20))] * n)),
                Want(banned=Ragged(int32([0, 2, 1, *[2] * max(0, n - 2)]), int32([3, 4]))),
                Want(banned=Ragged(int32([1] * (n + 1)), int32([3]))),
                Want(top=rng.choice([-1, 0, 5, 21])),
                Want(given=int32([rng.choice([-2, -1, 19, 20])] * n)),
                Want(given=np.zeros(n, np.int64)),
                Want(draw=Draw(np.full(n, rng.choice([0.0, 0.5, 1.0, -0.1, float("nan")])))),
                Want(draw=Draw(np.full(n, 0.5, np.float32))),
                Want(draw=Draw(np.full(n, 0.5), temperature=rng.choice([0.0, -1.0, float("nan"), 2.0]))),
                Want(draw=Draw(np.full(n, 0.5), temperature=float("inf"))),
                Want(draw=Draw(np.full(n, 0.5), top_k=rng.choice([-1, 3]))),
                Want(draw=Draw(np.full(n, 0.5), top_p=rng.choice([0.0, -1.0, 1.1, float("nan"), 0.3]))),
            ]
        )

    def run(self) -> None:
        self.passes += 1
        work, want = self.a_pass(), PLAIN
        if work.tokens.ndim == 1:
            want = self.a_want(len(work.tokens))

        def oracle() -> PendingPass:
            waiting = self.contexts.begin(work, self.memories)
            try:
                check_want(want, len(work.tokens), self.limits.words)
            except PassError:
                self.contexts.commit(waiting, ())
                raise
            return waiting

        pair = self.same(lambda: self.scorer.run(work, want), oracle)
        if pair is None:
            return
        scores, waiting = pair
        self.waiting.append((scores, waiting, work))
        for at, cell in enumerate(waiting.cells):
            self.content[cell] = int(work.tokens[at]), int(work.positions[at]), int(work.memory[at])
        if want is PLAIN:
            self.compare(scores, waiting)

    def compare(self, scores: Scores, waiting: PendingPass) -> None:
        """What a token sees, read alone from the beginning, gives the same bits."""
        at = self.rng.randrange(len(waiting.cells))
        words, positions, memories = zip(*(self.content[cell] for cell in waiting.visible[at]), strict=True)
        encoded = {handle: self.spare.encode([self.sources[handle]])[0] for handle in set(memories)}
        (context,) = self.spare.open(1)
        work = replace(
            chain(words, 0, context),
            positions=int32(positions),
            memory=int32([encoded[handle] for handle in memories]),
        )
        alone = self.spare.run(work, Want(only=int32([len(words) - 1])))
        assert alone.best[0] == scores.best[at]
        assert alone.log_probs[0].tobytes() == scores.log_probs[at].tobytes()
        self.spare.commit(alone, [])
        self.spare.close([context])
        self.spare.free(list(encoded.values()))
        self.compared += 1

    def commit(self) -> None:
        if not self.waiting:
            return
        rng = self.rng
        some = self.ended if self.ended and rng.random() < 0.1 else self.waiting
        scores, waiting, work = some[rng.randrange(len(some))]
        kept: list[int] = []
        last: dict[int, int] = {}
        for at, (context, parent) in enumerate(
            zip(work.contexts.tolist(), work.parents.tolist(), strict=True)
        ):
            if last.get(context, FOLLOWS_CONTEXT) == parent and rng.random() < 0.7:
                kept.append(at)
                last[context] = at
        if rng.random() < 0.2:
            kept.insert(rng.randint(0, len(kept)), rng.choice([-1, 0, 1, len(work.tokens), *HUGE]))
        pair = self.same(
            lambda: self.scorer.commit(scores, kept), lambda: self.contexts.commit(waiting, kept)
        )
        if pair is not None:
            self.waiting = [each for each in self.waiting if each[1] is not waiting]
            self.ended = [*self.ended[-3:], (scores, waiting, work)]
            with pytest.raises(PassError, match="the pass has ended"):
                scores.rows([0])

    def drop(self) -> None:
        """A pass that is dropped without `commit` ends as if nothing were kept."""
        if self.waiting:
            del self.waiting[self.rng.randrange(len(self.waiting))]


def check_rules(passes: int, seed: int) -> Both:
    both = Both(seed)
    while both.passes < passes:
        both.step()
    both.waiting.clear()
    both.ended.clear()
    gc.collect()
    both.scorer.close([handle for handle in both.handles if handle in both.contexts._lists])
    assert both.scorer.cells_in_use == both.spare.cells_in_use == 0
    return both


# Rules that are broken, as the refusals name them.
RULES = {
    "N is no number of N bits",
    "N contexts are asked for",
    "N likeliest words are asked for",
    "`banned.offsets` has N numbers, not N",
    "`memory` has N numbers, not N",
    "`tokens` is no array of one dimension and of the type of the pass",
    "`uniforms` holds a number that is not in [N, N)",
    "a forbidden word is none of the model's",
    "a given word is none of the model's",
    "context N has N cells, not N",
    "context N is named twice",
    "context N is not open",
    "context N waits for the end of a pass",
    "encoded source N is named twice",
    "encoded source N is not there",
    "lists of forbidden words ascend",
    "lists of forbidden words begin at N and end with the last",
    "position N of token N is none of N",
    "scored tokens are ascending indices of the pass",
    "source N has N tokens, not N to N",
    "temperature, top-k or top-p is out of bounds",
    "the kept tokens form no path: token N does not follow the one before",
    "the pass has ended before",
    "token N has a parent of another context",
    "token N has parent N, which is no earlier token",
    "token N is kept of a pass of N",
    "word N of source N is none of N",
    "word N of token N is none of N",
}


def test_random_operations_keep_the_rules() -> None:
    both = check_rules(QUICK, 0)
    assert both.refused > 50
    assert both.compared > 20
    assert both.names.keys() >= RULES


@pytest.mark.slow
def test_many_random_operations_keep_the_rules() -> None:
    names, compared = Counter[str](), 0
    for seed in range(1, 11):
        both = check_rules(SLOW // 10, seed)
        names, compared = names + both.names, compared + both.compared
    print(f"{SLOW} passes, {compared} compared, {names.total()} refusals:", *names.most_common(), sep="\n")
    assert names.keys() >= RULES


def test_handles_of_any_type_are_taken() -> None:
    scorer = scorer_of(small())
    contexts = scorer.open(6)
    for some in (contexts, contexts.tolist(), contexts.astype(np.int64), contexts.astype(np.uint8), range(6)):
        scorer.close(scorer.fork(some))
    scorer.close(scorer.fork([]))
    scorer.close(scorer.fork(np.array([])))
    scorer.truncate([contexts[0], contexts[1]], [np.int64(0), 0])


@pytest.mark.parametrize("bad", [[value] for value in (*HUGE, -1, -(2**31), -(2**40), -(2**70))])
def test_handles_that_were_never_given_are_refused(bad: list[int]) -> None:
    scorer = scorer_of(small())
    scorer.open(3), scorer.encode([[EOS]])
    for call in (scorer.fork, scorer.close, scorer.free, lambda which: scorer.truncate(which, [0])):
        with pytest.raises(PassError):
            call(bad)


@pytest.mark.parametrize("bad", [[0.5], [None], ["0"], [[0]], 0, None, np.array([0.0]), [0, [1]]])
def test_what_is_no_list_of_handles_is_refused(bad: Any) -> None:
    scorer = scorer_of(small())
    scorer.open(3)
    with pytest.raises(PassError, match="handles, lengths and words are "):
        scorer.fork(bad)


@pytest.mark.parametrize("stop", [SystemExit(143), KeyboardInterrupt(), MemoryError()])
def test_an_interrupt_while_a_list_is_read_is_no_bad_list(stop: BaseException) -> None:
    class Interrupted:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise stop

    scorer = scorer_of(small())
    with pytest.raises(type(stop)) as raised:
        scorer.fork(Interrupted())  # type: ignore[arg-type]
    assert raised.value is stop


def test_what_run_did_not_give_is_not_committed() -> None:
    scorer, other = scorer_of(small()), scorer_of(small())
    for each in (scorer, other):
        each.encode([[EOS]]), each.open(1)
    with pytest.raises(PassError, match="what is committed is not what `run` gave"):
        scorer.commit(object(), [])  # type: ignore[arg-type]
    with pytest.raises(PassError, match="the pass is another engine's"):
        scorer.commit(other.run(chain([1], 0, 0), Want()), [])


def test_a_context_that_waits_can_be_closed() -> None:
    scorer = scorer_of(small())
    scorer.encode([[EOS]])
    first, second = scorer.open(2).tolist()
    two = [chain([1, 2], 0, each) for each in (first, second)]
    work = Pass(*(np.concatenate([getattr(w, n) for w in two]) for n in Pass.__slots__))
    work.parents[:] = [-1, 0, -1, 2]
    scores = scorer.run(work, Want())
    scorer.close([first])
    assert scorer.cells_in_use == 2
    with pytest.raises(PassError, match=f"context {first} is not open"):
        scorer.commit(scores, [0, 2])
    scorer.commit(scores, [2])
    assert scorer.cells_in_use == 1


def test_scores_outlive_their_scorer() -> None:
    scorer = scorer_of(small())
    scores = scorer.run(chain([1, 2, 3], scorer.encode([[EOS]])[0], scorer.open(1)[0]), Want())
    wanted = scores.rows([2, 0])
    del scorer
    gc.collect()
    assert scores.rows([2, 0]).tobytes() == wanted.tobytes()
    with pytest.raises(PassError, match="token 3 was not scored"):
        scores.rows([3])


def test_a_number_of_threads_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="`threads` is -1, below 0"):
        scorer_of(small(), threads=-1)


# --- Threads, forks, interrupts


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
@pytest.mark.skipif(_native.cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("type", TYPES)
def test_two_threads_share_the_work(type: str) -> None:
    scorer = scorer_of(large(), type=type, threads=2)
    before = len(os.listdir("/proc/self/task"))
    greedy(scorer, [EOS], 1)
    assert len(os.listdir("/proc/self/task")) == before + 1


@pytest.mark.parametrize("type", TYPES)
def test_callers_at_the_same_time_read_the_same_bits(type: str) -> None:
    scorer = scorer_of(large(), type=type, threads=2)
    sources = [[*range(FIRST_WORD, FIRST_WORD + size), EOS] for size in range(8)]
    wanted = [greedy(scorer, source, 12) for source in sources]
    fresh = scorer_of(large(), type=type, threads=2)  # whose pool is not started yet
    with ThreadPoolExecutor(4) as pool:
        for each in (scorer, fresh):
            found = list(pool.map(lambda source: greedy(each, source, 12), sources * 3))  # noqa: B023
            assert found == wanted * 3
            assert each.cells_in_use == 0


def test_passes_that_begin_at_the_same_time_share_no_cell() -> None:
    """Long ones, whose cells take a while to give."""
    callers, count, rounds = 4, 8000, 10
    scorer = scorer_of(small(src_vocab=20, tgt_vocab=20))
    (memory,), contexts = scorer.encode([[5, 6, EOS]]), scorer.open(callers)
    together = threading.Barrier(callers, timeout=60)

    def read(caller: int) -> bytes:
        """Of tokens that each follow the context alone."""
        own = [np.full(count, value, np.int32) for value in (5 + caller, 0, memory, contexts[caller], -1)]
        scores = scorer.run(Pass(*own), Want(only=np.arange(0, count, 100, dtype=np.int32)))
        read = scores.log_probs.tobytes()
        scorer.commit(scores, [])
        return read

    def again(caller: int) -> list[bytes]:
        return [read(caller) for _ in range(rounds) if together.wait() >= 0]

    wanted = [read(caller) for caller in range(callers)]
    with ThreadPoolExecutor(callers) as pool:
        assert list(pool.map(again, range(callers))) == [[each] * rounds for each in wanted]
    assert scorer.cells_in_use == 0


def in_child(body: Callable[[], bool], seconds: float) -> bool:
    """Whether the body gave true in a forked child, within its time."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if body() else 1)
        finally:
            os._exit(2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_decodes() -> None:
    """With threads of its own, also while another of the parent's threads is in a pass."""
    scorer, source = scorer_of(large(), threads=2), [5, 6, EOS]
    wanted = greedy(scorer, source, 8)
    again = lambda: greedy(scorer, source, 8) == wanted and scorer.cells_in_use == before  # noqa: E731
    before = 0
    assert in_child(again, 30)
    assert in_child(lambda: again() and in_child(again, 15), 30)  # a child's child
    assert again()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            greedy(scorer, source, 8)

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        for _ in range(5):
            assert in_child(lambda: greedy(scorer, source, 8) == wanted, 30)
    finally:
        stop.set()
        worker.join()


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Sends an interrupt to this process, which must end what runs here."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_a_pass(threads: int) -> None:
    config = small(decoder_ffn=1500, max_target_len=20_000, max_source_len=2000, encoder_layers=40)
    scorer = scorer_of(config, threads=threads)
    wanted = greedy(scorer, [5, EOS], 4)
    (memory,), (context,) = scorer.encode([[EOS]]), scorer.open(1)
    scorer.commit(scorer.run(chain([1, 2], memory, context), Want()), [0, 1])
    begin = time.monotonic()
    with interrupted_after(0.2):
        scorer.run(chain([3] * 19_000, memory, context, 2), Want(only=int32([0])))
    assert time.monotonic() - begin < 3  # the whole pass takes far longer
    assert scorer.cells_in_use == 2
    begin = time.monotonic()
    with interrupted_after(0.2):
        scorer.encode([[5] * 1999 + [EOS]])
    assert time.monotonic() - begin < 3
    scores = scorer.run(chain([3], memory, context, 2), Want())  # the context no longer waits
    scorer.commit(scores, [])
    assert greedy(scorer, [5, EOS], 4) == wanted


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="the processor always keeps small numbers")
def test_the_callers_rounding_is_left_alone() -> None:
    scorer = scorer_of(large(), threads=2)
    wanted = greedy(scorer, [5, EOS], 4)
    tiny = torch.tensor(1e-40)
    torch.set_flush_denormal(True)
    try:
        assert greedy(scorer, [5, EOS], 4) == wanted
        assert (tiny * 0.5).item() == 0
    finally:
        torch.set_flush_denormal(False)


# --- Test builds


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt" or shutil.which("g++") is None, reason="needs g++ and POSIX threads")
def test_the_tests_of_threads_and_forks_fail_without_locks(tmp_path: Path) -> None:
    native = build_engine(tmp_path, f"-O1 -include {ROOT / 'tests' / 'support' / 'no_locks.h'}")
    file = "tests/test_engine_safety.py"
    for locks, name, code in (
        ("none", "begin_at_the_same_time", -signal.SIGABRT),
        ("no fork", "forked_child", pytest.ExitCode.TESTS_FAILED),
    ):
        done = run_tests(native, file, "-k", name, "--tb=no", NARTK_TEST_LOCKS=locks)
        assert done.returncode == code, done.stdout + done.stderr
        done = run_tests(native, file, "-k", name, "--tb=short")
        assert done.returncode == 0, done.stdout + done.stderr


def library(name: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_engine_is_clean_under_sanitizers(tmp_path: Path) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer over the quick tests of the engine."""
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
    native = build_engine(tmp_path, flags)
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("test_engine_*.py"))
    done = run_tests(
        native,
        *files,
        "--tb=short",
        LD_PRELOAD=f"{library('libasan.so')} {library('libstdc++.so')}",
        ASAN_OPTIONS="detect_leaks=0",
        PYTHONMALLOC="malloc",
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
