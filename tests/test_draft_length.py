"""How long drafts are: near to the best fixed length, never much below greedy search, not seen in outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.scripted_passes import decode, differing, outputs_of, random_request, random_table

from nartk.decoders.loop import loop
from nartk.decoders.loop.length import IDLE, NOTHING, Costs, DraftLength, Outcome, Plan, expected
from nartk.registry import make_strategy

pytestmark = pytest.mark.adaptive

# What passes of the engine over so many tokens take relative to one: by random weights on a core.
SIZES = (1, 2, 3, 5, 9, 17, 33)
CURVES = {
    "d 128 fp32": (1, 1.09, 1.21, 1.91, 3.34, 6.3, 13.4),
    "d 256 int8": (1, 1.15, 1.33, 2.06, 3.54, 6.57, 13.1),
    "flat": (1, 1.04, 1.05, 1.1, 1.69, 2.81, 6.03),
}
RATES = (0.0, 0.4, 0.6, 0.8, 0.9, 0.95)
LENGTHS = (0, 1, 2, 4, 8, 16, 64)
ROW = 0.5  # of a pass over one token: what a row costs besides its tokens
COLD = (1.0, 0.5, 0.25, 0.1)  # of a pass without drafts: what the first passes after an encoding take more
DRAFTERS = {  # drafting for a row, starting it, of a pass over one token; tokens a level
    "cheap": (0.05, 0.1, 1),
    "expensive": (0.2, 1.0, 1),
    "tree": (0.3, 0.5, 4),
}


def simulated(
    policy: Callable[[float], DraftLength] | int,
    costs: Sequence[float],
    rate: Callable[[float], float],
    *,
    drafter: str,
    batch_size: int,
    slower: float = 1.0,
    count: int = 200,
) -> float:
    """The seconds in which so many sentences of 5 to 60 tokens are decoded, without what disturbs the clock.

    The longest come first. What the policy reads of the clock is up to a third too much, and now and then ten
    times as much.

    Args:
        policy: Or a fixed length; 0: greedy search.
        costs: Of passes over `SIZES` tokens.
        rate: At which drafted tokens are accepted, of the share of the work that is done.
        slower: Times as long as before everything takes when three fifths are done.
    """
    lengths, luck, jitter = random.Random(1), random.Random(2), random.Random(3)
    drafting_row, start, width = DRAFTERS[drafter]

    def clock(true: float) -> float:
        return true * (1 + 0.3 * jitter.random() + 10 * (jitter.random() < 0.005))

    waiting = sorted((lengths.randint(5, 60) for _ in range(count)), reverse=True)  # as a batch takes them
    work, done, seconds, warm = sum(waiting), 0, 0.0, 0
    fixed = policy if isinstance(policy, int) else 0
    length = None if isinstance(policy, int) else policy(work / batch_size)
    left: list[int] = []
    known = 0  # rows that the drafter knows: the first ones
    while waiting or left:
        free = batch_size - len(left)
        if waiting and 4 * free >= batch_size:
            left += waiting[:free]
            del waiting[:free]
            warm = 0
        rows, share = len(left), done / work
        pace = slower if share > 0.6 else 1.0
        if length is None:
            plan = Plan(fixed, rows) if fixed else NOTHING
        elif length.idle:
            length.idle -= 1
            plan = IDLE
        else:
            plan = length.next(rows, rows - known)
        drafting = min(plan.rows, rows)
        if drafting > known:
            took = start * (drafting - known) * pace
            seconds += took
            if length is not None:
                length.started([25] * (drafting - known), clock(took))
            known = drafting
        outcomes = []
        for size in left[:drafting]:
            given, accepted = min(plan.length, size - 1), 0
            while accepted < given and luck.random() < rate(share):
                accepted += 1
            outcomes.append(Outcome(given, given, given * width, accepted))
        tokens = rows + sum(outcome.tokens for outcome in outcomes)
        beyond = max(tokens / SIZES[-1], 1)
        took = float(np.interp(tokens, SIZES, costs)) * beyond + ROW * rows + drafting_row * drafting
        took *= 1 + sum(left) / rows / 100  # longer contexts
        if warm < len(COLD):
            alone = float(np.interp(rows, SIZES, costs)) + ROW * rows
            took, warm = took + COLD[warm] * alone, warm + 1
        seconds += took * pace
        if length is not None and plan.is_timed:
            length.record(rows, outcomes, clock(took * pace))
        gains = [1 + outcome.accepted for outcome in outcomes] + [1] * (rows - drafting)
        done += sum(gains)
        after = [size - gain for size, gain in zip(left, gains, strict=True)]
        known = sum(size > 0 for size in after[:known])
        left = [size for size in after if size > 0]
    return seconds


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("batch_size", [1, 8, 32])
@pytest.mark.parametrize("name", CURVES)
def test_it_comes_near_to_the_best_length(name: str, batch_size: int, drafter: str) -> None:
    for rate in RATES:
        run = partial(
            simulated,
            costs=CURVES[name],
            rate=lambda _, rate=rate: rate,
            batch_size=batch_size,
            drafter=drafter,
        )
        greedy, *fixed = (run(length) for length in LENGTHS)
        found = run(DraftLength)
        assert greedy / found >= 0.95, rate
        assert min(fixed) / found >= 0.9 or min(fixed) > greedy, rate


def test_a_fixed_length_does_not() -> None:
    """None of them is always right, nor above greedy search: there is something to be decided."""

    def speed(length: int, rate: float) -> float:
        run = partial(
            simulated, costs=CURVES["d 256 int8"], rate=lambda _: rate, batch_size=1, drafter="cheap"
        )
        return run(0) / run(length)

    for length in LENGTHS[1:]:
        assert speed(length, 0.0) < 0.95
    assert speed(1, 0.95) < 0.9 * speed(8, 0.95)
    assert speed(8, 0.6) < 0.9 * speed(1, 0.6)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("batch_size", [1, 8, 32])
@pytest.mark.parametrize(
    "rate",
    [
        lambda share: 0.95 * (share < 0.5),
        lambda share: 0.95 * (share >= 0.5),
        lambda share: round(3 * share) % 2,
    ],
    ids=["falls", "rises", "goes up and down"],
)
@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_what_changes_midway_costs_little(
    rate: Callable[[float], float], slower: float, batch_size: int, drafter: str
) -> None:
    """Acceptance changes, and the machine may become slower."""
    run = partial(
        simulated,
        costs=CURVES["d 256 int8"],
        rate=rate,
        slower=slower,
        batch_size=batch_size,
        drafter=drafter,
    )
    assert run(0) / run(DraftLength) >= 0.95


def test_costs_by_hand() -> None:
    costs = Costs()
    assert costs.one(5) == 0
    costs.add(1, 3.0)
    costs.add(1, 1.0)  # less: half of the difference is believed at once
    assert costs.one(1) == 2.0
    assert costs.add(1, 100.0) == 4.0  # twice what it took so far is believed
    costs = Costs()
    costs.add(1, 2.0)
    assert costs.one(4) == 8.0
    assert costs.at(np.array([4]), growth=0.5) == [5.0]
    costs.add(5, 4.0)
    assert costs.one(3) == 3.0
    assert costs.add(20, 1000.0) == 32.0  # twice as much as in proportion


def test_expected_by_hand() -> None:
    nothing = np.zeros(0, np.int64)
    assert expected(nothing, nothing, weight=1.0, rate=0.5)[:3].tolist() == [0, 0.5, 0.75]
    reached = np.array([2, 0] * 10_000)
    # Half of them reach 1, all of these 2, and no more was asked for: beyond, a token is like the others.
    found = expected(reached, np.full(20_000, 2), weight=1.0, rate=0.5)
    assert found[1:4] == pytest.approx([0.5, 1.0, 1 + 0.5 * 2 / 3], abs=0.01)


class Anything(DraftLength):
    """Any length for any rows, or nothing for any number of passes."""

    def __init__(self, passes: float) -> None:
        super().__init__(passes)
        self.random = random.Random(5)

    def next(self, rows: int, new: int) -> Plan:
        self.idle = self.random.choice([0, 0, 0, 1, 5])
        length, count = self.random.choice([1, 2, 5, 64]), self.random.randint(0, rows)
        return Plan(length, count) if count and not self.idle else NOTHING

    def record(self, *rest: Any) -> None:
        """Learns nothing."""

    started = record


@pytest.mark.parametrize("length", [Anything, DraftLength])
@pytest.mark.parametrize("name", ["iad", "ngram", "verify"])
def test_the_output_is_greedy_searchs_whatever_it_decides(
    name: str, length: type[DraftLength], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "DraftLength", length)
    rng = random.Random(name)
    drafted = accepted = 0
    for _ in range(20):
        scorer = random_table(rng)
        requests = [random_request(rng, i, len(scorer.vocab), longest=20) for i in range(12)]
        requests = [replace(request, drafts=(request.source[:-1],)) for request in requests]
        wanted = decode(make_strategy("greedy", {}), scorer, requests, batch_size=12)
        found = decode(make_strategy(name, {}), scorer, requests, batch_size=rng.choice([1, 3, 12]))
        assert differing(outputs_of(found), outputs_of(wanted)) == []
        assert [result.hypotheses for result in found] == [result.hypotheses for result in wanted]
        assert scorer.cells_in_use == 0
        drafted += sum(result.drafted for result in found)
        accepted += sum(result.accepted for result in found)
    assert drafted > accepted
    assert accepted > 0 or length is DraftLength


def test_where_it_is_switched_off_drafts_are_whole() -> None:
    assert make_strategy("iad", {"adaptive": False}).draft_length() is None
    assert isinstance(make_strategy("iad", {}).draft_length(), DraftLength)
    assert make_strategy("greedy", {}).draft_length() is None


@pytest.mark.parametrize(
    ("name", "options"), [("gad", {"beta": 2}), ("speculative", {"temperature": 1.0}), ("bild", {})]
)
def test_where_outputs_depend_on_lengths_drafts_are_whole(name: str, options: dict[str, Any]) -> None:
    assert make_strategy(name, options).draft_length() is None
