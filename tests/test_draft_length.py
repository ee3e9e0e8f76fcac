"""How long drafts are: near to the best fixed length, never much below greedy search, not seen in outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.scripted_passes import decode, differing, outputs_of, random_request, random_table

from nartk.decoders.loop import loop
from nartk.decoders.loop.length import NOTHING, Costs, DraftLength, Outcome, Plan, Reach
from nartk.registry import make_strategy

pytestmark = pytest.mark.adaptive

# What passes over so many tokens take relative to one: four sizes of model on one core, measured with random
# weights.
SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
CURVES = {
    "d 128 fp32": (1, 1.0, 1.7, 2.4, 3.5, 5.0, 7.6, 9.8),
    "d 128 int8": (1, 1.2, 2.1, 2.9, 4.3, 5.3, 8.0, 10),
    "d 256 fp32": (1, 1.2, 2.3, 3.0, 4.9, 6.8, 10, 14),
    "d 256 int8": (1, 1.2, 2.0, 3.0, 4.8, 5.9, 8.7, 12),
    "d 512 fp32": (1, 1.0, 1.0, 1.4, 2.0, 2.6, 3.5, 5.1),
    "d 512 int8": (1, 1.2, 1.2, 1.9, 2.9, 4.7, 5.7, 6.9),
    "d 1024 fp32": (1, 1.0, 1.2, 2.3, 2.9, 3.7, 5.0, 5.8),
    "d 1024 int8": (1, 1.1, 1.2, 1.6, 2.2, 2.7, 3.7, 5.1),
}
RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
Curve = Callable[[float], float]
DRAFT, START = 0.02, 0.1  # of a pass over one token: drafting for a row, and starting it


def curve(costs: Sequence[float]) -> Curve:
    """Linear between the points, in proportion to the tokens behind them."""

    def seconds(tokens: float) -> float:
        for (low, less), (high, more) in zip(
            zip(SIZES, costs, strict=True), zip(SIZES[1:], costs[1:], strict=True), strict=False
        ):
            if tokens <= high:
                return less + (more - less) * (tokens - low) / (high - low)
        return costs[-1] * tokens / SIZES[-1]

    return seconds


class Fixed:
    """Drafts of one length, always."""

    def __init__(self, length: int) -> None:
        self.idle = 0
        self.plan = Plan(length, 1 << 30) if length else NOTHING

    def next(self, rows: int, new: int) -> Plan:
        return self.plan

    def passed(self, *what: Any) -> None:
        """Nothing."""

    started = spent = drafted = passed


def simulated(
    policy: Any,
    seconds: Callable[[float, float], float],
    rate: Callable[[float], float],
    *,
    batch_size: int,
    count: int = 100,
    noise: float = 0.0,
) -> float:
    """The seconds in which so many sentences of 15 to 35 tokens are decoded.

    Args:
        seconds: Of a pass over so many tokens, and of the share of the work that is done.
        rate: At which drafted tokens are accepted, of that share.
    """
    lengths, luck, jitter = random.Random(1), random.Random(2), random.Random(3)
    waiting = [lengths.randint(15, 35) for _ in range(count)]
    work, done, clock = sum(waiting), 0, 0.0
    left: list[int] = []
    known = 0  # rows that the drafter knows: the first ones
    while waiting or left:
        free = batch_size - len(left)
        if waiting and 4 * free >= batch_size:
            left += waiting[:free]
            del waiting[:free]
        rows, share = len(left), done / work
        is_idle = policy.idle > 0
        policy.idle -= is_idle
        plan = NOTHING if is_idle else policy.next(rows, rows - known)
        outcomes = []
        drafting = min(plan.rows, rows)
        if drafting > known:
            policy.started(drafting - known, 25 * (drafting - known), START * (drafting - known))
            policy.spent(START * (drafting - known))
            clock += START * (drafting - known)
            known = drafting
        for size in left[:drafting]:
            given, accepted = min(plan.length, size), 0
            while accepted < min(given, size - 1) and luck.random() < rate(share):
                accepted += 1
            outcomes.append(Outcome(plan.length, given, given, accepted))
        tokens = rows + sum(outcome.tokens for outcome in outcomes)
        took = seconds(tokens, share) * (1 + noise * jitter.random())
        clock += took + DRAFT * drafting
        if drafting:
            policy.drafted(rows, plan, outcomes, took, DRAFT * drafting)
        elif not is_idle:
            policy.passed(rows, took)
        gains = [1 + outcome.accepted for outcome in outcomes] + [1] * (rows - drafting)
        done += sum(gains)
        after = [size - gain for size, gain in zip(left, gains, strict=True)]
        known = sum(size > 0 for size in after[:known])
        left = [size for size in after if size > 0]
    return clock


@pytest.mark.parametrize("batch_size", [1, 8, 32])
@pytest.mark.parametrize("name", CURVES)
def test_it_comes_near_to_the_best_length(name: str, batch_size: int) -> None:
    cost = curve(CURVES[name])
    for rate in RATES:

        def run(policy: Any, rate: float = rate) -> float:
            return simulated(policy, lambda n, _: cost(n), lambda _: rate, batch_size=batch_size)

        greedy = run(Fixed(0))
        best = min(run(Fixed(length)) for length in LENGTHS)
        found = run(DraftLength())
        assert greedy / found >= 0.95, rate
        assert best / found >= 0.87, rate


def test_a_fixed_length_does_not() -> None:
    """None of them is always right, nor above greedy search: there is something to be decided."""
    cost = curve(CURVES["d 256 int8"])

    def speed(length: int, rate: float) -> float:
        greedy, drafting = (
            simulated(Fixed(each), lambda n, _: cost(n), lambda _: rate, batch_size=1) for each in (0, length)
        )
        return greedy / drafting

    for length in LENGTHS[1:]:
        assert speed(length, 0.0) < 0.95
    assert speed(1, 1.0) < 0.87 * speed(8, 1.0)
    assert speed(8, 0.6) < 0.87 * speed(1, 0.6)


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
    rate: Callable[[float], float], slower: float, batch_size: int
) -> None:
    """Acceptance changes, and the machine may become slower."""
    cost = curve(CURVES["d 256 int8"])

    def run(policy: Any) -> float:
        return simulated(
            policy,
            lambda n, share: cost(n) * (slower if share > 0.6 else 1.0),
            rate,
            batch_size=batch_size,
            count=300,
            noise=0.3,
        )

    assert run(Fixed(0)) / run(DraftLength()) >= 0.95


def test_costs_by_hand() -> None:
    costs = Costs()
    assert costs.at(5) == 0
    costs.add(1, 3.0)
    costs.add(1, 2.0)  # less: it was held up the first time
    assert costs.at(1) == 2.0
    assert costs.at(4) == 4.0  # (4 + 2) / (1 + 2) times
    costs.add(5, 4.0)
    assert costs.at(3) == 3.0
    assert costs.at(9) == 5.0  # half as steep as from 1 to 5
    assert costs.at(12, worst=True) == 8.0
    costs.add(20, 1000.0)  # 1.5 times what it may take at worst
    assert costs.at(20) == pytest.approx(1.5 * 4.0 * 22 / 7)


def test_reach_by_hand() -> None:
    reach = Reach(0.5)
    assert reach.expected()[:3] == [0, 0.5, 0.75]
    for _ in range(10_000):
        reach.add(2, is_cut=True)
        reach.add(0, is_cut=False)
    # Half of them reach 1, all of these 2; beyond, a position is like the others.
    assert reach.expected()[1:3] == pytest.approx([0.5, 1.0], abs=0.02)


class Anything(DraftLength):
    """Any length for any rows, or nothing for any number of passes."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(5)

    def next(self, rows: int, new: int) -> Plan:
        self.idle = self.random.choice([0, 0, 0, 1, 5])
        length, count = self.random.choice([1, 2, 5, 64]), self.random.randint(0, rows)
        return Plan(length, count) if count and not self.idle else NOTHING


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
