"""Contexts against a naive model: lists of tokens with a number each, copied where a context forks."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

from nartk.errors import PassError
from nartk.protocols.contexts import CellPool, Contexts, Handles, PendingPass, check_sources
from nartk.protocols.passes import ROOT, Limits, Pass

LIMITS = Limits(source=9, target=1000, words=7)


def a_pass(contexts: Sequence[int], parents: Sequence[int], memory: int = 0) -> Pass:
    count = len(contexts)
    return Pass(
        tokens=np.arange(count, dtype=np.int32) % LIMITS.words,
        positions=np.arange(count, dtype=np.int32),
        memory=np.full(count, memory, np.int32),
        contexts=np.array(contexts, np.int32),
        parents=np.array(parents, np.int32),
    )


def begun() -> tuple[Contexts, Handles[None]]:
    memories: Handles[None] = Handles("memory")
    memories.add([None])
    return Contexts(LIMITS), memories


@dataclass
class Naive:
    """What contexts should be: the serial numbers of the tokens of each, and passes that wait."""

    lists: dict[int, list[int]] = field(default_factory=dict)
    passes: list[tuple[PendingPass, Pass, list[int]]] = field(default_factory=list)  # with serial numbers
    tokens: int = 0

    def waiting(self) -> set[int]:
        return {int(c) for _, work, _ in self.passes for c in work.contexts}

    def idle(self) -> list[int]:
        return sorted(set(self.lists) - self.waiting())

    def in_use(self) -> int:
        held = {serial for each in self.lists.values() for serial in each}
        for _, work, serials in self.passes:
            held.update(s for c, s in zip(work.contexts, serials, strict=True) if int(c) in self.lists)
        return len(held)

    def ancestors(self, work: Pass, serials: Sequence[int], i: int) -> list[int]:
        path = [serials[i]]
        while work.parents[i] != ROOT:
            i = int(work.parents[i])
            path.insert(0, serials[i])
        return self.lists[int(work.contexts[i])] + path


class Play:
    """Random operations on both, compared after each."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.contexts, self.memories = begun()
        self.naive = Naive()
        self.serials: dict[int, int] = {}  # by cell: the token written to it last
        self.refused: Counter[str] = Counter()

    def play(self, count: int) -> None:
        acts = [self.open, self.fork, self.truncate, self.close, self.run, self.run, self.commit, self.commit]
        for _ in range(count):
            self.draw.choice([*acts, self.drop, self.break_a_rule])()
            self.compare()

    def compare(self) -> None:
        for handle, wanted in self.naive.lists.items():
            assert [self.serials[cell] for cell in self.contexts.cells(handle)] == wanted
        assert self.contexts.cells_in_use == self.naive.in_use()

    def some(self, handles: Sequence[int]) -> list[int]:
        return self.draw.sample(handles, self.draw.randint(0, min(4, len(handles))))

    def open(self) -> None:
        for handle in self.contexts.open(self.draw.randint(0, 3)):
            assert int(handle) not in self.naive.lists
            self.naive.lists[int(handle)] = []

    def fork(self) -> None:
        idle = self.naive.idle()
        chosen = [self.draw.choice(idle) for _ in range(self.draw.randint(0, 4))] if idle else []
        for old, new in zip(chosen, self.contexts.fork(chosen), strict=True):
            assert int(new) not in self.naive.lists
            self.naive.lists[int(new)] = [*self.naive.lists[old]]

    def truncate(self) -> None:
        chosen = self.some(self.naive.idle())
        lengths = [self.draw.randint(0, len(self.naive.lists[handle])) for handle in chosen]
        self.contexts.truncate(chosen, lengths)
        for handle, length in zip(chosen, lengths, strict=True):
            self.naive.lists[handle] = self.naive.lists[handle][:length]

    def close(self) -> None:
        chosen = self.some(sorted(self.naive.lists))  # those that wait, too
        self.contexts.close(chosen)
        for handle in chosen:
            del self.naive.lists[handle]

    def a_tree(self) -> Pass | None:
        chosen = self.some(self.naive.idle())
        if not chosen:
            return None
        contexts = [self.draw.choice(chosen) for _ in range(self.draw.randint(1, 12))]
        parents = [
            self.draw.choice([ROOT, *(j for j in range(i) if contexts[j] == contexts[i])])
            for i in range(len(contexts))
        ]
        return a_pass(contexts, parents)

    def run(self) -> None:
        work = self.a_tree()
        if work is None:
            return
        waiting = self.contexts.begin(work, self.memories)
        serials = list(range(self.naive.tokens, self.naive.tokens + len(work.tokens)))
        self.naive.tokens += len(serials)
        self.serials.update(zip(waiting.cells, serials, strict=True))
        self.naive.passes.append((waiting, work, serials))
        for i, cells in enumerate(waiting.visible):
            assert [self.serials[cell] for cell in cells] == self.naive.ancestors(work, serials, i)
            assert cells[-1] == waiting.cells[i]
            assert set(waiting.seen[i, len(cells) :].tolist()) <= {cells[-1]}  # no other token's, behind them
        assert max(waiting.cells) < self.contexts.size

    def commit(self) -> None:
        if not self.naive.passes:
            return
        at = self.draw.randrange(len(self.naive.passes))
        waiting, work, serials = self.naive.passes[at]
        kept: list[int] = []
        last: dict[int, int] = {}
        for i, (context, parent) in enumerate(
            zip(work.contexts.tolist(), work.parents.tolist(), strict=True)
        ):
            follows = context in self.naive.lists and last.get(context, ROOT) == parent
            if follows and self.draw.random() < 0.7:
                last[context] = i
                kept.append(i)
        self.contexts.commit(waiting, kept)
        for i in kept:
            self.naive.lists[int(work.contexts[i])].append(serials[i])
        del self.naive.passes[at]

    def drop(self) -> None:
        if self.naive.passes:
            del self.naive.passes[self.draw.randrange(len(self.naive.passes))]

    def break_a_rule(self) -> None:
        rule = self.draw.choice(BREAKS)
        found = rule(self)
        if found is None:
            return
        wanted, act = found
        message = None
        try:
            act()
        except PassError as error:  # not pytest.raises, whose traceback would keep the pass alive
            message = error.message
        assert message == wanted
        self.refused[rule.__name__] += 1


# What breaks a rule, and the message; None where the state has nothing to break it with.
Break = tuple[str, Callable[[], object]] | None


def stale(play: Play) -> int:
    known = set(play.naive.lists)
    return play.draw.choice([c for c in range(-2, max(known, default=0) + 3) if c not in known])


def closed_handle(play: Play) -> Break:
    handle, rest = stale(play), play.some(play.naive.idle())
    act = play.draw.choice(
        [
            lambda: play.contexts.fork([*rest, handle]),
            lambda: play.contexts.truncate([*rest, handle], [0] * (len(rest) + 1)),
            lambda: play.contexts.close([*rest, handle]),
            lambda: play.contexts.begin(a_pass([*rest, handle], [ROOT] * (len(rest) + 1)), play.memories),
        ]
    )
    return f"context {handle} is not open", act


def waiting_context(play: Play) -> Break:
    waits = sorted(play.naive.waiting() & set(play.naive.lists))
    if not waits:
        return None
    handle, rest = play.draw.choice(waits), play.some(play.naive.idle())
    act = play.draw.choice(
        [
            lambda: play.contexts.fork([*rest, handle]),
            lambda: play.contexts.truncate([*rest, handle], [0] * (len(rest) + 1)),
            lambda: play.contexts.begin(a_pass([*rest, handle], [ROOT] * (len(rest) + 1)), play.memories),
        ]
    )
    return f"context {handle} waits for `commit`", act


def twice(play: Play) -> Break:
    chosen = play.some(play.naive.idle())
    if not chosen:
        return None
    act = play.draw.choice(
        [
            lambda: play.contexts.close([*chosen, chosen[0]]),
            lambda: play.contexts.truncate([*chosen, chosen[0]], [0] * (len(chosen) + 1)),
        ]
    )
    return f"context {chosen[0]} is named twice", act


def too_long(play: Play) -> Break:
    chosen = play.some(play.naive.idle())
    if not chosen:
        return None
    held = len(play.naive.lists[chosen[-1]])
    length = play.draw.choice([held + 1, -1])
    lengths = [0] * (len(chosen) - 1) + [length]
    message = f"context {chosen[-1]} of {held} cells cannot keep {length}"
    return message, lambda: play.contexts.truncate(chosen, lengths)


def other_count(play: Play) -> Break:
    chosen = play.some(play.naive.idle())
    if not chosen:
        return None
    return f"{len(chosen)} contexts have 0 lengths", lambda: play.contexts.truncate(chosen, [])


def wrong_pass(play: Play) -> Break:
    work = play.a_tree()
    if work is None:
        return None
    i = play.draw.randrange(len(work.tokens))

    def changed(name: str, value: int) -> Callable[[], object]:
        array = getattr(work, name).copy()
        array[i] = value
        return lambda: play.contexts.begin(replace(work, **{name: array}), play.memories)

    others = [j for j in range(i) if work.contexts[j] != work.contexts[i]]
    later = play.draw.choice([i, i + 1, len(work.tokens), -2])
    cases: list[Break] = [
        (f"token {i} has word 7, not between 0 and 6", changed("tokens", 7)),
        (f"token {i} has word -1, not between 0 and 6", changed("tokens", -1)),
        (f"token {i} has position 1000, not between 0 and 999", changed("positions", 1000)),
        (f"token {i} has position -1, not between 0 and 999", changed("positions", -1)),
        ("memory 5 is not open", changed("memory", 5)),
        (f"token {i} follows token {later} of the pass, which is no earlier one", changed("parents", later)),
    ]
    for j in others[:1]:
        message = f"token {i} of context {work.contexts[i]} follows token {j} of context {work.contexts[j]}"
        cases.append((message, changed("parents", j)))
    return play.draw.choice(cases)


def no_path(play: Play) -> Break:
    if not play.naive.passes:
        return None
    waiting, work, _ = play.draw.choice(play.naive.passes)
    parents, contexts = work.parents.tolist(), work.contexts.tolist()
    count = len(parents)
    commit = partial(play.contexts.commit, waiting)
    first, second = play.draw.randrange(-1, count + 1), play.draw.randrange(count)
    if not 0 <= first < count:
        return f"token {first} is kept, not between 0 and {count - 1}", partial(commit, [first])
    if contexts[first] not in play.naive.lists:
        return f"context {contexts[first]} is not open", partial(commit, [first])
    if parents[first] != ROOT:
        message = f"token {first} is kept after the context's last cell, but follows token {parents[first]}"
        return message, partial(commit, [first])
    if contexts[first] == contexts[second] and parents[second] != first:
        before = "the context's last cell" if parents[second] == ROOT else f"token {parents[second]}"
        message = f"token {second} is kept after token {first}, but follows {before}"
        return message, partial(commit, [first, second])
    return None


BREAKS = [closed_handle, waiting_context, twice, too_long, other_count, wrong_pass, wrong_pass, no_path]


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_are_those_of_lists_of_tokens(seed: int) -> None:
    play = Play(seed)
    play.play(1000)
    assert set(play.refused) == {rule.__name__ for rule in BREAKS}
    play.contexts.close(sorted(play.naive.lists))
    play.naive.lists.clear()
    assert play.contexts.cells_in_use == 0


def test_a_pass_that_is_dropped_keeps_nothing() -> None:
    contexts, memories = begun()
    (handle,) = contexts.open(1)
    waiting = contexts.begin(a_pass([handle, handle], [ROOT, 0]), memories)
    assert contexts.cells_in_use == 2
    assert contexts.waits(waiting)
    del waiting
    gc.collect()
    assert contexts.cells_in_use == 0
    contexts.commit(contexts.begin(a_pass([handle], [ROOT]), memories), [0])
    assert contexts.cells_in_use == 1


def test_a_pass_remembers_what_it_was_given() -> None:
    contexts, memories = begun()
    (handle,) = contexts.open(1)
    work = a_pass([handle, handle], [ROOT, 0])
    waiting = contexts.begin(work, memories)
    work.contexts[:], work.parents[:] = 9, ROOT  # the caller's arrays
    contexts.commit(waiting, [0, 1])
    assert contexts.cells(handle) == waiting.cells.tolist()


def test_a_pass_ends_once_and_where_it_began() -> None:
    contexts, memories = begun()
    other, _ = begun()
    (handle,) = contexts.open(1)
    waiting = contexts.begin(a_pass([handle], [ROOT]), memories)
    with pytest.raises(PassError) as caught:
        other.commit(waiting, [0])
    contexts.commit(waiting, [0])
    with pytest.raises(PassError) as again:
        contexts.commit(waiting, [0])
    message = "error[E105 Pass] the pass has ended, or is another scorer's. Fix: commit each pass once."
    assert (str(caught.value), str(again.value)) == (message, message)
    assert len(contexts.cells(handle)) == 1


def test_cells_are_handed_out_again() -> None:
    contexts, memories = begun()
    (handle,) = contexts.open(1)
    for _ in range(100):
        contexts.commit(contexts.begin(a_pass([handle] * 3, [ROOT, 0, ROOT]), memories), [0])
        contexts.truncate([handle], [0])
    assert contexts.size == 3


def test_a_cell_lives_as_long_as_a_context_holds_it() -> None:
    contexts, memories = begun()
    (first,) = contexts.open(1)
    contexts.commit(contexts.begin(a_pass([first, first], [ROOT, 0]), memories), [0, 1])
    shared = contexts.cells(first)
    (second,) = contexts.fork([first])
    contexts.truncate([first], [0])
    assert contexts.cells(second) == shared
    waiting = contexts.begin(a_pass([first, second], [ROOT, ROOT]), memories)
    assert not set(waiting.cells) & set(shared)
    contexts.commit(waiting, [0, 1])
    assert contexts.cells(second)[:2] == shared
    contexts.close([second])
    assert contexts.cells_in_use == 1


def arrays(**changes: np.ndarray) -> Pass:
    return replace(a_pass([0, 0], [ROOT, 0]), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (a_pass([], []), "the pass has no tokens"),
        (arrays(memory=np.zeros(2, np.int64)), "`memory` is int64 [2], not int32 [2]"),
        (arrays(parents=np.full(3, ROOT, np.int32)), "`parents` is int32 [3], not int32 [2]"),
        (arrays(positions=np.zeros((2, 1), np.int32)), "`positions` is int32 [2, 1], not int32 [2]"),
    ],
)
def test_arrays_of_another_type_or_shape_are_refused(work: Pass, message: str) -> None:
    contexts, memories = begun()
    contexts.open(1)
    with pytest.raises(PassError) as caught:
        contexts.begin(work, memories)
    assert caught.value.message == message
    assert contexts.cells_in_use == 0


def test_a_negative_number_of_contexts_is_refused() -> None:
    contexts, _ = begun()
    with pytest.raises(PassError) as caught:
        contexts.open(-1)
    assert caught.value.message == "cannot open -1 contexts"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "source 1 has 0 tokens, not between 1 and 9"),
        ([2] * 10, "source 1 has 10 tokens, not between 1 and 9"),
        ([5, 7, 2], "source 1 holds word 7, not between 0 and 6"),
        ([-1], "source 1 holds word -1, not between 0 and 6"),
    ],
)
def test_sources_that_no_model_reads_are_refused(source: list[int], message: str) -> None:
    check_sources([[2], [6] * 9], longest=9, words=7)
    with pytest.raises(PassError) as caught:
        check_sources([[2], source], longest=9, words=7)
    assert caught.value.message == message


def test_a_pool_counts_holders() -> None:
    pool = CellPool()
    first = pool.take(3)
    pool.share(first[:1])
    pool.release(first)
    assert (pool.in_use, pool.size) == (1, 3)
    second = pool.take(3)
    assert (pool.in_use, pool.size) == (4, 4)
    assert first[0] not in second
