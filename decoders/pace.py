"""How many tokens it pays to draft, from what passes cost on this device and what has stood so far.

A pass that feeds B rows K tokens each takes T(B, 1 + K) seconds, drafting them D(K), and the first j of them
stand with probability P(j): the K with the most tokens a second, (1 + sum over j <= K of P(j)) divided by
T(B, 1 + K) + D(K), is the best (the speed of Leviathan et al. 2023, arXiv:2211.17192, section 3.4, with
measured costs for their cost coefficient, and P(j) measured for each j for a power of one rate).

Nothing is tried beside the work: costs are those of the passes themselves. What a try may lose is bounded by
an account, in seconds: it is paid a small share of the time of greedy search and what drafts have gained, and
charged what they have lost, and all that the drafter and this arithmetic take; nothing is drafted whose worst
outcome it does not cover. Where nothing pays, greedy search goes on alone for a while: the longer, the longer
nothing has paid.
Symbols: B rows, K drafted tokens, j how many of them, all from 1.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log2
from statistics import median
from typing import Any, Protocol

import torch
from torch.utils.weak import WeakIdKeyDictionary

from nartk.scorer import Seq2SeqScorer

DEEPEST = 64  # drafted tokens that are told apart; who may draft so many may draft without bound
_SHARE = 0.02  # of the time of greedy search that all tries together may lose
_GRANT = 1.0  # greedy passes that the first tries may lose, once
_FIRST = 2.0  # greedy passes that the first source read is charged at most, and the first draft
_MOST = 32.0  # greedy passes that the account holds at most: gains of long ago are no licence to lose
_SAVED = 8.0  # greedy passes that it holds at most of its share of the time
_PAYS = 1.03  # how much faster than greedy search the drafted tokens must be expected to come
_BASE = 3  # greedy passes that are timed before anything is drafted
_STALE = 100  # drafted passes after which a greedy one is timed again
_REPLAN, _SERVES = 8, 32  # passes that a plan serves: at first, and at most
_REST, _LONGEST = 32, 256  # passes that greedy search goes on alone: at first, and at most
_DOUBT, _BELIEF = 256, 4096  # passes without a draft before their costs are measured anew: at first, at most
_WINDOW = 128.0  # rows' drafts that the estimates remember
_OFF = 0.005  # of that memory is lost with each pass without a draft, so that drafting is tried again
_RATE, _HELD = 0.7, 4.0  # the prior: a drafted token stands, and so many tokens' worth of believing it
_ROW = 8.0  # tokens of its own that a row must have drafted to count as much as all rows' do
_KEPT = 0.9  # of what a row remembers, after each draft of its own
_CLASSES = 3  # rows are told apart by doublings of the odds that their drafts stand, so many up and down
_OUTLIER = 2.0  # times what is usual: what takes longer was held up by another program, as any pass may be
_RECENT = 7  # measurements of a shape that are kept
_DEPTHS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, DEEPEST)  # those that are compared
_THRESHOLDS = 48  # ways to cut the drafts of all rows that are compared


class Clock(Protocol):
    """Tells how long things take on a device."""

    def tick(self) -> Any:
        """A point in time, in the order of the device's work."""

    def seconds(self, first: Any, second: Any) -> float:
        """The time between two points; the device has been waited for since the second."""


class HostClock:
    """The host's time: its own work's on a CPU, so that a busy machine does not make drafts look dear."""

    def __init__(self, device: torch.device) -> None:
        self.tick = time.thread_time if device.type == "cpu" else time.perf_counter

    def seconds(self, first: float, second: float) -> float:
        return second - first


class CudaClock:
    """The time of a CUDA stream: the host runs ahead of it, and is not made to wait."""

    def tick(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        return first.elapsed_time(second) / 1000  # ms


def usual(costs: Iterable[float]) -> float:
    """What is seldom undercut: what other programs do makes passes take longer, never shorter."""
    ordered = sorted(costs)
    return ordered[len(ordered) // 4]


@dataclass
class Curve:
    """A cost that grows with a size, from recent measurements of some sizes.

    Attributes:
        anchor: A size and its cost that are known beforehand.
    """

    anchor: tuple[float, float] | None = None
    _cells: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    _points: list[tuple[float, float]] | None = None

    def add(self, size: float, cost: float) -> None:
        """Takes in a measurement."""
        start = 0.0 if self.anchor is None else self.anchor[0]
        cell = round(2 * log2(max(size - start, 2.0**-6)))  # sizes within a factor of 1.4 count as one
        self._cells.setdefault(cell, deque(maxlen=_RECENT)).append((size, cost))
        self._points = None

    def known(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._cells)

    def at(self, size: float, *, worst: bool = False) -> float:
        """The cost of a size. Beyond what is known it goes on as before, or at worst in proportion."""
        points = self._smooth()
        if not points:
            return 0.0
        above = bisect_right(points, (size, float("inf")))
        if above == 0:
            return points[0][1]
        low, cost = points[above - 1]
        if above < len(points):
            high, more = points[above]
            return cost + (more - cost) * (size - low) / (high - low)
        if worst:
            return cost * max(1.0, size / low)
        first, least = points[0]
        slope = (cost - least) / (low - first) if low > first else cost / low / 2
        return cost + slope * (size - low)

    def _smooth(self) -> list[tuple[float, float]]:
        """Sizes and their usual costs, ascending; no size costs more than a larger one."""
        if self._points is None:
            points = [
                (median(size for size, _ in cell), usual(cost for _, cost in cell))
                for cell in self._cells.values()
            ]
            points = sorted([*points, self.anchor] if self.anchor else points)
            costs = [*accumulate((cost for _, cost in reversed(points)), min)][::-1]
            self._points = [(size, cost) for (size, _), cost in zip(points, costs, strict=True)]
        return self._points


_UNKNOWN = Curve((1.0, 1.0))


class Costs:
    """What passes take here, in seconds.

    Greedy passes are timed by their rows, others as multiples of them by tokens a row: so what slows all of
    them, such as longer sources or a busy machine, slows the comparison little.
    """

    def __init__(self) -> None:
        self._greedy: dict[int, deque[tuple[int, float]]] = {}
        self._ratio: dict[int, Curve] = {}
        self._draft: dict[int, Curve] = {}
        self._since: dict[int, int] = {}
        self._own: deque[float] = deque(maxlen=_RECENT)
        self._usual: dict[int, float] = {}  # what `greedy` has said since a pass was timed last

    def add_greedy(self, rows: int, seconds: float) -> None:
        """Takes in a pass that fed every row one token."""
        octave = rows.bit_length()
        self._usual.clear()
        self._greedy.setdefault(octave, deque(maxlen=_RECENT)).append((rows, seconds))
        self._since[octave] = 0

    def add_pass(self, rows: int, tokens: int, seconds: float) -> None:
        """Takes in a pass that fed more; greedy ones have been timed."""
        octave = rows.bit_length()
        self._since[octave] = self._since.get(octave, 0) + 1
        greedy = self.greedy(rows)
        if greedy > 0 and octave in self._greedy:
            self._ratio.setdefault(octave, Curve((1.0, 1.0))).add(tokens / rows, seconds / greedy)

    def add_draft(self, rows: int, depth: int, seconds: float) -> None:
        """Takes in the drafting of at most so many tokens a row."""
        self._draft.setdefault(rows.bit_length(), Curve()).add(depth, seconds)

    def add_own(self, seconds: float) -> None:
        """Takes in what the choice of lengths itself took in a pass."""
        self._own.append(seconds)

    @property
    def own(self) -> float:
        """What that usually takes."""
        return usual(self._own) if self._own else 0.0

    def doubt(self) -> None:
        """Forgets what drafts have cost: it may have been too much by accident, and is never seen again."""
        self._ratio, self._draft = {}, {}

    def measured(self, rows: int) -> bool:
        """Whether enough greedy passes of so many rows have been timed, and not too long ago."""
        octave = rows.bit_length()
        return len(self._greedy.get(octave, ())) >= _BASE and self._since[octave] < _STALE

    def greedy(self, rows: int) -> float:
        """A pass of one token a row: half of it is taken to grow with the rows, within a factor of two."""
        if rows not in self._usual:
            if not self._greedy:
                return 0.0
            octave = rows.bit_length()
            near = min(self._greedy, key=lambda other: (abs(other - octave), other))
            costs = (cost * (1 + min(2.0, rows / of)) / 2 for of, cost in self._greedy[near])
            self._usual[rows] = usual(costs)
        return self._usual[rows]

    def verify(self, rows: int, tokens: float, *, worst: bool = False) -> float:
        """A pass of so many tokens in all."""
        curve = self._ratio.get(rows.bit_length(), _UNKNOWN)
        return self.greedy(rows) * curve.at(tokens / rows, worst=worst)

    def draft(self, rows: int, depth: float, *, worst: bool = False) -> float:
        """Drafting so many tokens for so many rows; 0 where nothing has been drafted yet."""
        octave = rows.bit_length()
        if not self._draft:
            return 0.0
        near = min(self._draft, key=lambda other: (abs(other - octave), other))
        scale = 2.0 ** max(0, octave - near) if worst else 1.0
        return scale * self._draft[near].at(depth, worst=worst)


@dataclass
class Row:
    """What is remembered of one row.

    Attributes:
        tried, stood: Tokens of its drafts that were judged, and that stood; the older the less.
        ended: Whether its output is complete.
    """

    tried: float = 0.0
    stood: float = 0.0
    ended: bool = False


@dataclass(frozen=True)
class Judgement:
    """What became of a row's draft.

    Attributes:
        asked: Tokens that it might have had.
        fed: Those that it had.
        levels: How deep it was: as many, unless it branched.
        stood: Those that stand.
    """

    row: Row
    asked: int
    fed: int
    levels: int
    stood: int

    def learn(self, standing: Standing) -> None:
        """Takes it into the estimates of the row and of all rows."""
        standing.add(self.asked, self.levels, self.stood)
        self.row.tried = _KEPT * self.row.tried + min(self.stood + 1, self.levels)
        self.row.stood = _KEPT * self.row.stood + self.stood


class Standing:
    """How often drafts reach each depth, and stand there; what is long ago counts less."""

    def __init__(self) -> None:
        size = DEEPEST + 2
        self._held = [0.0] * size  # drafts of which so many tokens stood, and no further one was there
        self._fell = [0.0] * size  # so many stood, and the next fell
        self._given = [0.0] * size  # drafts as long as they might be, by their tokens
        self._short = [0.0] * size  # drafts that had no further token
        self._weight = 1.0

    def add(self, asked: int, given: int, stood: int) -> None:
        """Takes in a row's draft: the tokens it might have, had, and those that stood."""
        asked, given, stood = (min(each, DEEPEST) for each in (asked, given, stood))
        (self._fell if stood < given else self._held)[stood] += self._weight
        (self._short if given < asked else self._given)[given] += self._weight
        self.fade(1 / _WINDOW)

    def fade(self, share: float) -> None:
        """Forgets a share of what has been."""
        self._weight /= 1 - share

    def rates(self) -> tuple[float, list[float], list[float]]:
        """How often a drafted token stands; by depth, if all before it do; that a draft goes on so far."""
        if self._weight > 1e12:
            for counts in (self._held, self._fell, self._given, self._short):
                counts[:] = [count / self._weight for count in counts]
            self._weight = 1.0
        scale = 1 / self._weight
        stood = [scale * a for a in _from_end([h + f for h, f in zip(self._held, self._fell, strict=True)])]
        fell = [scale * f for f in self._fell]
        given = [scale * g for g in _from_end([g + s for g, s in zip(self._given, self._short, strict=True)])]
        short = [scale * s for s in self._short]
        total = sum(stood[1:])
        rate = (total + _HELD * _RATE) / (total + sum(fell) + _HELD)
        total = sum(given[1:])
        length = (total + _HELD) / (total + sum(short) + _HELD)
        depths = range(1, DEEPEST + 1)
        return (
            rate,
            [(stood[j] + _HELD * rate) / (stood[j] + fell[j - 1] + _HELD) for j in depths],
            [(given[j] + _HELD * length) / (given[j] + short[j - 1] + _HELD) for j in depths],
        )


def _from_end(counts: list[float]) -> list[float]:
    """Sums from each on to the last."""
    return list(accumulate(reversed(counts)))[::-1]


@dataclass(frozen=True)
class Outlook:
    """What drafts of 0, 1, 2, ... tokens are expected to give a row.

    Attributes:
        standing: The probability that all of them stand if they are there; falls.
        gained: Tokens that stand.
        fed: Tokens that are fed.
    """

    standing: list[float]
    gained: list[float]
    fed: list[float]

    def depth(self, threshold: float) -> int:
        """How many tokens all stand with at least some probability."""
        return bisect_right(self.standing, -threshold, key=lambda each: -each) - 1

    @classmethod
    def of(cls, stands: Sequence[float], goes_on: Sequence[float], odds: float = 1.0) -> Outlook:
        """From the rates by depth, the odds that a token stands multiplied by `odds`."""
        standing, gained, fed, there = [1.0], [0.0], [0.0], 1.0
        for stand, on in zip(stands, goes_on, strict=True):
            there *= on
            standing.append(standing[-1] * odds * stand / (1 - stand + odds * stand))
            gained.append(gained[-1] + there * standing[-1])
            fed.append(fed[-1] + there)
        return cls(standing, gained, fed)


@dataclass(frozen=True)
class Plan:
    """How deep to draft in each class of rows, and what that may cost beyond a greedy pass, in seconds.

    Attributes:
        speed: Tokens a second, of greedy search's.
    """

    depths: dict[int, int]
    risk: float = 0.0
    speed: float = 1.0


_NOTHING = Plan({})


def best_plan(
    costs: Costs, rows: int, outlooks: dict[int, Outlook], counts: dict[int, int], fan: float, credit: float
) -> Plan:
    """The plan with the most tokens a second, of those whose worst outcome `credit` covers.

    Rows draft on as long as their drafts stand with a probability above a threshold, the same for all.

    Args:
        rows: B, of which counts of each class draft, with the class's outlook.
        fan: Tokens that are fed for each level of a draft: 1 unless drafts branch.
    """
    greedy = costs.greedy(rows)
    drafting = sum(counts.values())
    levels = sorted({outlooks[key].standing[depth] for key in counts for depth in _DEPTHS})
    thresholds = levels[:: -(-len(levels) // _THRESHOLDS)] if levels else []
    best = _NOTHING
    for threshold in thresholds:
        depths = {key: outlooks[key].depth(threshold) for key in counts}
        deepest = max(depths.values())
        gained = sum(count * outlooks[key].gained[depths[key]] for key, count in counts.items())
        fed = rows + fan * sum(count * outlooks[key].fed[depths[key]] for key, count in counts.items())
        more = costs.verify(rows, fed) - greedy + costs.draft(drafting, deepest) + costs.own
        # What is added must itself pay: a few rows' drafts hardly change the speed of all.
        if gained * greedy <= rows * more * _PAYS:
            continue
        speed = (1 + gained / rows) * greedy / (greedy + more)
        if speed <= best.speed:
            continue
        risk = costs.verify(rows, fed, worst=True) - greedy + costs.draft(drafting, deepest, worst=True)
        if risk <= credit:
            best = Plan(depths, risk, speed)
    return best


class Pace:
    """Sets how many tokens each row may draft, 0 for none, and learns from each pass.

    However badly drafts do, a run takes at most a share `_SHARE` longer than greedy search, all that is done
    here and by the drafter included; besides, once, `_GRANT` of its passes and what the first source that is
    read and the first draft take; and what the last drafted pass takes beyond the worst that was expected of
    it. Where nothing pays it lets greedy search go on alone, which then is all that is done.

    Args:
        clock: Of the model's device.

    Attributes:
        credit: What tries may lose, seconds; None before greedy passes have been timed.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.costs, self.standing = Costs(), Standing()
        self.credit: float | None = None
        self._start: deque[float] = deque(maxlen=_RECENT)  # seconds a row
        self._fan, self._rate = 1.0, _RATE
        self._age = self._idle = 0
        self._next = _REPLAN  # the age at which plans are made anew
        self._worst = 0.0  # what the drafts asked for last may take at worst, seconds
        self._rest, self._left = _REST // 2, 0  # passes of the next rest, and of the present one
        self._belief = _DOUBT  # passes without a draft before costs are doubted
        self._won = 0.0  # by drafts since the last rest, seconds
        self._waking = False  # whether the first pass after a rest has not been timed
        self._most = 1  # rows that have been fed at once
        self._warm: set[bool] = set()  # which of starting and drafting has been done before
        self._rates: list[list[float]] = []
        self._outlooks: dict[int, Outlook] = {}
        # Until replanned: rows known and fed for which nothing pays, and whether no further source is read.
        self._quiet: tuple[int, int] | None = None
        self._refused = False
        self._plans: dict[tuple[int, tuple[tuple[int, int], ...]], Plan] = {}
        self._spans: list[tuple[bool, int, int, Any, Any]] = []
        self._spent: list[tuple[bool, Any, Any]] = []
        self._rested: list[tuple[int, Any, Any]] = []
        self._reserved = 0.0  # for what is not charged yet

    @property
    def looks_again(self) -> bool:
        """Whether sources that were not read may be worth it now: asked now and then."""
        return self._age % _REPLAN == 0

    def admit(self, lengths: Sequence[int], live: int) -> int:
        """For how many sentences, from the first on, the drafter should read the source.

        Args:
            lengths: Of the sources, tokens: as long as the outputs may be.
            live: B, these included.
        """
        if self.credit is None or self._waking or not lengths or not self.costs.measured(live):
            return 0
        credit = self.credit - self._reserved
        if not self._start:
            # One shows what it takes.
            count = int(credit >= 0 and not any(is_start for is_start, *_ in self._spans))
            self._refused = credit < 0
            return count
        cost = usual(self._start)
        for count in _fewer(len(lengths)):
            if cost * count > credit:
                continue
            speed = self._plan(live, ((0, count),)).speed
            saved = (1 - 1 / speed) * self.costs.greedy(live) * sum(lengths[:count]) / count
            if cost * count < saved:
                self._reserved += cost * count
                return count
        self._refused = True
        return 0

    def budgets(self, rows: Sequence[Row], live: int) -> list[int]:
        """The tokens that each row may draft.

        Args:
            rows: Those that the drafter knows.
            live: B, rows that are fed.
        """
        asked = [0] * len(rows)
        if self.credit is None or self._waking or not rows or self.is_quiet(len(rows), live):
            return asked
        if not self.costs.measured(live):
            return asked
        classes = [self._class(row) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: -classes[i])
        for count in _fewer(len(rows)):
            chosen = order[:count]
            counts: dict[int, int] = {}
            for i in chosen:
                counts[classes[i]] = counts.get(classes[i], 0) + 1
            plan = self._plan(live, tuple(sorted(counts.items())))
            if plan.depths and plan.risk <= self.credit:
                for i in chosen:
                    asked[i] = plan.depths[classes[i]]
                self._worst = plan.risk
                return asked
        self._quiet = (len(rows), live)
        return asked

    def is_quiet(self, known: int, live: int) -> bool:
        """Whether `budgets` of so many rows would be 0: quick to ask."""
        return self._quiet == (known, live)

    def rest(self, known: int, live: int) -> int:
        """For how many passes nothing is to be drafted, and greedy search goes on alone; 0: for none.

        Args:
            known: Rows that the drafter knows, of the `live` that are fed. Nothing is drafted for them now.
        """
        if self._left or self.credit is None or self._waking or not live:
            return self._left
        refused = self.is_quiet(known, live) if known else self._refused
        if self.credit < 0 or (refused and self.costs.measured(live)):
            self._rest = _REST if self._won > 0 else min(2 * self._rest, _LONGEST)
            self._left = self._rest
        return self._left

    def rested(self, passes: int, first: Any, second: Any) -> None:
        """Hears that of a rest so many passes have been run, between which points in time."""
        self._rested.append((passes, first, second))
        self.standing.fade(1 - (1 - _OFF) ** passes)
        self._left = max(0, self._left - passes)
        self._idle += passes
        if self._left:
            return
        self._waking, self._won, self._age = True, 0.0, -1
        if self._idle >= self._belief:
            self.costs.doubt()
            self._start.clear()
            self._belief, self._idle = min(2 * self._belief, _BELIEF), 0
        self._replan()

    def started(self, rows: int, first: Any, second: Any) -> None:
        """Hears between which points in time the drafter read so many sources."""
        self._spans.append((True, rows, 0, first, second))

    def drafted(self, rows: int, depth: int, first: Any, second: Any) -> None:
        """Hears between which points in time it drafted at most so many tokens for so many rows."""
        self._spans.append((False, rows, depth, first, second))

    def spent(self, first: Any, second: Any, *, in_pass: bool) -> None:
        """Hears between which points in time something was done that greedy search does not.

        Args:
            in_pass: Whether it is a part of the pass that `passed` is told of next.
        """
        self._spent.append((in_pass, first, second))

    def passed(self, live: int, judged: Sequence[Judgement], emitted: int, first: Any, second: Any) -> None:
        """Learns from a pass, once the host has waited for it.

        Args:
            live: B.
            judged: The drafts that were in it.
            emitted: Tokens that it put out, of all rows.
            first, second: When it was begun, and when it was known what stood.
        """
        self._most = max(self._most, live)
        seconds = self.clock.seconds(first, second) - self._charge()
        fed = live + sum(each.fed for each in judged)
        if fed == live:
            self.costs.add_greedy(live, seconds)
            self._earn(_SHARE * seconds)
        else:
            self.costs.add_pass(live, fed, seconds)
            greedy = self.costs.greedy(live)
            if seconds > greedy + self._worst:
                seconds = min(seconds, _OUTLIER * self.costs.verify(live, fed, worst=True))
            # What greedy search takes for as many tokens is saved.
            self._win((1 + _SHARE) * greedy * emitted / live - seconds)
        if self.credit is None:
            if self.costs.measured(live):
                self.credit = (_GRANT + _SHARE * _BASE) * self.costs.greedy(live)
        elif self._age % _REPLAN == 0:
            self.credit = min(self.credit, _MOST * self.costs.greedy(live))
        for each in judged:
            each.learn(self.standing)
            if each.levels:
                self._fan += (each.fed / each.levels - self._fan) / _WINDOW
        self._tick_over(bool(judged))

    def _charge(self) -> float:
        """Charges what has been spent, and pays what rests earn; returns what of it was spent in the pass."""
        inside = spent = known = excess = 0.0
        for in_pass, first, second in self._spent:
            seconds = self.clock.seconds(first, second)
            spent += seconds
            inside += in_pass * seconds
        for is_start, rows, depth, first, second in self._spans:
            seconds = self.clock.seconds(first, second)
            known += seconds
            most = seconds
            if is_start:
                self._start.append(seconds / rows)
                most = _OUTLIER * rows * usual(self._start)
            else:
                self.costs.add_draft(rows, depth, seconds)
                if seconds > self._worst:
                    most = _OUTLIER * self.costs.draft(rows, depth, worst=True)
            # The first time, code is loaded and memory is got: it says nothing of the next.
            if is_start not in self._warm:
                self._warm.add(is_start)
                self.costs.doubt()
                self._start.clear()
                most = _FIRST * self.costs.greedy(rows)
            excess += max(0.0, seconds - most)
        self.costs.add_own(spent - known)
        self._win(excess - spent)
        for passes, first, second in self._rested:
            # What else was done meanwhile, such as with results, earns nothing.
            seconds = min(self.clock.seconds(first, second), passes * self.costs.greedy(self._most))
            self._earn(_SHARE * seconds)
        self._spans, self._spent, self._rested, self._reserved = [], [], [], 0.0
        return inside

    def _win(self, seconds: float) -> None:
        """Takes in what drafts have gained, less than 0 if they have lost."""
        if self.credit is not None:
            self._won += seconds
            self.credit += seconds

    def _earn(self, seconds: float) -> None:
        """Pays the account its share, up to what it may save."""
        if self.credit is not None:
            most = _SAVED * self.costs.greedy(self._most)
            self.credit = max(self.credit, min(self.credit + seconds, most))

    def _tick_over(self, drafted: bool) -> None:
        self._age += 1
        self._waking = False
        if drafted:
            self._idle = 0
        else:
            self._idle += 1
            self.standing.fade(_OFF)
        if self._won > 0:
            self._belief = _DOUBT
        if self._age >= self._next:
            self._replan()

    def _replan(self) -> None:
        self._rates, self._outlooks, self._plans = [], {}, {}
        self._quiet, self._refused = None, False
        self._next = self._age + min(max(_REPLAN, self._age // 4), _SERVES)

    def _class(self, row: Row) -> int:
        """Doublings of the odds that a drafted token of it stands, compared with all rows'."""
        rate = (row.stood + _ROW * self._rate) / (row.tried + _ROW)
        if row.tried == 0 or not 0 < rate < 1:
            return 0
        odds = log2(rate / (1 - rate) * (1 - self._rate) / self._rate)
        return max(-_CLASSES, min(_CLASSES, round(odds)))

    def _plan(self, live: int, counts: tuple[tuple[int, int], ...]) -> Plan:
        key = (live, counts)
        if key not in self._plans:
            if not self._rates:
                self._rate, *self._rates = self.standing.rates()
            for each, _ in counts:
                if each not in self._outlooks:
                    stands, goes_on = self._rates
                    self._outlooks[each] = Outlook.of(stands, goes_on, 2.0**each)
            credit = 0.0 if self.credit is None else self.credit
            self._plans[key] = best_plan(self.costs, live, self._outlooks, dict(counts), self._fan, credit)
        return self._plans[key]


def _fewer(count: int) -> list[int]:
    """All, a quarter of them, one: where all cost too much, some may be tried."""
    return sorted({count, max(1, count // 4), 1}, reverse=True)


_PACES: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by a tensor that a scorer keeps in all its modes


def pace_of(strategy: Hashable, scorer: Seq2SeqScorer) -> Pace:
    """The pace of a strategy with a model, as it was left by the last run with both."""
    paces = _PACES.setdefault(scorer.source_to_target, {})
    if strategy not in paces:
        device = torch.device(scorer.device)
        paces[strategy] = Pace(CudaClock() if device.type == "cuda" else HostClock(device))
    return paces[strategy]
