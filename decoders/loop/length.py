"""How many tokens it pays to draft: from what passes cost here, and from what has been accepted so far.

A pass over N tokens takes T(N) seconds. If B rows draft K tokens each, the first k of them are accepted with
probability S(k), and drafting takes D seconds, the best K gives the most tokens a second,
(1 + S(1) + ... + S(K)) B / (T(B + B K) + D): the speed of Leviathan et al. 2023 (arXiv:2211.17192, section
3.4) with measured costs, and with a measured S(k) in the place of a power of one rate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

LONGEST = 64  # tokens of a draft
_SHARE = 0.03  # of greedy search's time that drafts may lose
_GRANT = 2.0  # greedy passes that the first drafts may lose
_SAVED = 16.0  # greedy passes that may be lost at most, however much was gained before
_PAYS = 1.03  # times greedy search's speed that drafts must promise
_BASE = 3  # greedy passes before the first draft: they are timed
_REMEASURED = 64  # passes with drafts after which a greedy one is timed again
_PROBES = 8  # drafts after which is decided whether they pay
_PROBE = 3  # tokens of such a draft
_RARE = 0.02  # how seldom no longer draft is considered
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, LONGEST)  # that are compared
_TICK = 1e-9  # seconds: nothing takes less
_REST, _LONGEST_REST = 32, 512  # passes without drafts where none pay: at first, and at most
_IDLE = 8  # passes for which nothing is decided: deciding takes time as well
_REPLAN = 32  # passes that a decision serves at most
_WINDOW = 128  # drafts that are remembered
_REMEMBERED = 512  # measurements of other sizes after which that of a size is forgotten
_PRIOR = 2.0  # drafts' worth of belief that a position is like the others


class Costs:
    """Seconds by a size, from measurements of some sizes. Other programs make them larger, never smaller."""

    def __init__(self) -> None:
        # A size, its seconds and when they were measured last, by the leading bits of sizes.
        self._cells: dict[int, tuple[float, float, int]] = {}
        self._count = 0
        self._points: list[tuple[float, float]] = []

    def add(self, size: int, seconds: float) -> float:
        """Takes a measurement in: quickly where it is below what was measured before, else slowly.

        Returns:
            What of it the size may have taken, without what another program held it up.
        """
        shift = max(size.bit_length() - 3, 0)
        key, seconds = size >> shift << shift, max(seconds, _TICK)
        self._count += 1
        cell = self._cells.get(key)
        if cell is None:
            most = 1.5 * self.at(size, worst=True)
            seconds = min(seconds, most) if most else seconds
            self._cells[key] = size, seconds, self._count
            self._points = []
            return seconds
        mean, cost, _ = cell
        seconds = min(seconds, 2 * cost)
        rate = 1.0 if seconds < cost else 0.05
        self._cells[key] = mean + rate * (size - mean), cost + rate * (seconds - cost), self._count
        return seconds

    def refresh(self) -> None:
        """Lets `at` know of all measurements, not of the first of each size alone, and forgets old ones."""
        oldest = self._count - _REMEMBERED
        self._cells = {key: cell for key, cell in self._cells.items() if cell[2] > oldest}
        self._points = []

    def at(self, size: float, *, worst: bool = False) -> float:
        """The seconds of a size, 0 if none is known.

        Above all known ones costs are hoped to grow half as fast as among them: a try shows if they do.
        At worst, and below them, they are in proportion to two more than the size.
        """
        points = self._points
        if not points:
            least = float("inf")
            for mean, cost, _ in sorted(self._cells.values(), reverse=True):
                least = min(least, cost)  # no size takes longer than a larger one
                points.append((mean, least))
            points.reverse()
        if not points:
            return 0.0
        above = bisect_right(points, (size, 0.0))
        if 0 < above < len(points):
            (low, less), (high, more) = points[above - 1], points[above]
            return less + (more - less) * (size - low) / (high - low)
        near, cost = points[min(above, len(points) - 1)]
        if above == 0 or worst or len(points) == 1:
            return cost * (size + 2) / (near + 2)
        low, less = points[0]
        return cost + (cost - less) / (near - low) * (size - near) / 2


class Reach:
    """How far drafts reach: of those of long ago less is remembered.

    Args:
        rate: How probable it is taken to be that a draft reaches one further, before any is seen.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._ended, self._cut = [0.0] * (LONGEST + 1), [0.0] * (LONGEST + 1)
        self._weight = 1.0

    def add(self, count: int, *, is_cut: bool) -> None:
        """A draft reached so far; cut: it might have reached further."""
        (self._cut if is_cut else self._ended)[count] += self._weight
        self._weight *= 1 + 1 / _WINDOW

    def forget(self, share: float) -> None:
        """Forgets a share of all drafts."""
        self._ended = [(1 - share) / self._weight * weight for weight in self._ended]
        self._cut = [(1 - share) / self._weight * weight for weight in self._cut]
        self._weight = 1.0

    def expected(self) -> list[float]:
        """How far drafts of at most 0, 1, 2, ... tokens reach, as far as hardly any reach further."""
        self.forget(0.0)
        counts = [ended + cut for ended, cut in zip(self._ended, self._cut, strict=True)]
        beyond = list(accumulate(reversed(counts)))[::-1]
        passed = sum(beyond) - beyond[0]
        rate = (passed + _PRIOR * self._rate) / (passed + sum(self._ended) + _PRIOR)
        sums, reached = [0.0], 1.0
        for k in range(1, LONGEST + 1):
            reached *= (beyond[k] + _PRIOR * rate) / (beyond[k - 1] - self._cut[k - 1] + _PRIOR)
            if reached < _RARE:
                break
            sums.append(sums[-1] + reached)
        return sums


class Plan(NamedTuple):
    """What is drafted in a pass.

    Attributes:
        length: Most tokens of a draft.
        rows: How many rows draft, from the first on.
        risk: What it takes more than a greedy pass, seconds.
    """

    length: int
    rows: int
    risk: float = 0.0


NOTHING = Plan(0, 0)
EVERYTHING = Plan(1 << 30, 1 << 30)


class Outcome(NamedTuple):
    """What became of a row's draft: levels that were asked for, its levels and tokens, tokens accepted."""

    asked: int
    levels: int
    tokens: int
    accepted: int


class DraftLength:
    """Decides before each pass of a run what is drafted, and learns from the pass.

    Whatever drafts do, a run loses a share `_SHARE` of greedy search's time at most, and once `_GRANT` of its
    passes: an account in seconds is paid this share and what drafts gain, charged what they lose, and nothing
    is drafted whose whole loss it does not cover. Where nothing pays, nothing is drafted for a while, the
    longer the more often that was so.

    Attributes:
        credit: Of that account.
        idle: Passes that come without drafts, before `next` is to be asked again.
    """

    def __init__(self) -> None:
        self.credit, self.idle = 0.0, 0
        self._verify, self._draft = Costs(), Costs()  # by tokens of a pass, and by tokens that may be drafted
        self._start, self._source = 0.0, 0.0  # seconds a source token, and tokens of a source
        self._starting = 0.0  # seconds of the present pass
        self._accepted, self._given, self._fan = Reach(0.5), Reach(1.0), 1.0
        self._gains, self._tokens = [0.0], [0.0]  # by length: tokens accepted, and tokens verified
        self._plans: dict[int, Plan] = {}  # by rows
        self._alone: dict[int, float] = {}  # seconds of passes without drafts, by rows
        self._age, self._drafts, self._due, self._tried, self._since = 0, 0, 0, 0, 0
        self._rest, self._pause, self._low = 0, _REST, 0

    def next(self, rows: int, new: int) -> Plan:
        """What of so many rows is drafted in the pass that comes; for some the drafter is not started yet."""
        if self._rest and rows > self._low:
            self._rest = max(self._rest - 1 - _IDLE, 0)
            if not self._rest:
                self._tried, self._due = 0, self._drafts
                self._accepted.forget(0.75)
            return self._nothing(rows)
        if self._age < _BASE or self._since >= min(2 + self._drafts // 4, _REMEASURED):
            self._since, self._due = 0, self._drafts
            return NOTHING
        if self._drafts >= self._due:
            self._learn(rows)
        plan = self._plans.get(rows)
        if plan is None:
            plan = self._plans[rows] = self._plan(rows)
        if not plan.rows or plan.risk > self.credit:
            return self._nothing(rows)
        known, start = rows - new, self._start * self._source
        if known < plan.rows and start * (plan.rows - known) > self.credit - plan.risk:
            known += int((self.credit - plan.risk) / start)
            return plan._replace(rows=known) if known else self._nothing(rows)
        return plan

    def _nothing(self, rows: int) -> Plan:
        """Nothing is drafted, nor decided in the next passes, which are taken to cost what they did."""
        self.idle = _IDLE
        self.credit += _SHARE * _IDLE * self._greedy(rows)
        return NOTHING

    def _learn(self, rows: int) -> None:
        self._verify.refresh()
        self._draft.refresh()
        self._gains = self._accepted.expected()
        self._tokens = [self._fan * tokens for tokens in self._given.expected()]
        self._plans, self._alone = {}, {}
        self._due = self._drafts + min(2 + self._drafts // 2, _REPLAN)
        self._rest, self._low = 0, 0
        self.credit = min(self.credit, _SAVED * self._verify.at(rows))

    def _plan(self, rows: int) -> Plan:
        greedy = self._verify.at(rows)
        best, top, wanted, wanted_top = NOTHING, _PAYS * rows / greedy, 0, _PAYS * rows / greedy
        for length in _LENGTHS:
            if length >= min(len(self._gains), len(self._tokens)):
                break
            emitted = rows * (1 + self._gains[length])
            took = self._verify.at(rows * (1 + self._tokens[length])) + self._draft.at(rows * length)
            speed = emitted / (took + self._start * emitted)
            if speed > wanted_top:
                wanted, wanted_top = length, speed
            if speed > top:
                risk = self._risk(rows, length, rows)
                if risk <= self.credit:
                    best, top = Plan(length, rows, risk), speed
        if not wanted and self._tried < _PROBES:
            some = max(1, rows // 8)
            return Plan(_PROBE, some, self._risk(rows, _PROBE, some))
        if not wanted:
            self._rest, self._low = self._pause, rows // 2
            self._pause = min(2 * self._pause, _LONGEST_REST)
            return NOTHING
        self._pause = _REST
        if best.rows:
            return best
        some, risk = rows, self._risk(rows, wanted, rows)
        while some > 1 and risk > self.credit:
            some //= 2
            risk = self._risk(rows, wanted, some)
        return Plan(wanted, some, risk)

    def _risk(self, rows: int, length: int, drafting: int) -> float:
        """What a pass takes more than a greedy one, if drafts are as long as they may be."""
        more = self._verify.at(rows + self._fan * drafting * length, worst=True) - self._verify.at(rows)
        return more + self._draft.at(drafting * length, worst=True)

    def spent(self, seconds: float) -> None:
        """Deciding, starting and learning took so long."""
        self.credit -= min(seconds - self._starting, 2 * self._verify.at(1))  # else another program ran
        self._starting = 0.0

    def started(self, rows: int, tokens: int, seconds: float) -> None:
        """The drafter was started for so many rows, of so many source tokens in all, in a part of `spent`."""
        cost, self._starting = seconds / tokens, seconds
        # The first time it takes longer, as code and memory are cold: that says nothing of the next times.
        most = 2 * self._start * tokens if self._start else _GRANT / 2 * self._verify.at(1)
        self.credit -= min(seconds, most)
        if not self._start or cost < self._start:
            self._start = cost
        self._start += 0.05 * (min(cost, 2 * self._start) - self._start)
        self._source = tokens / rows

    def passed(self, rows: int, seconds: float) -> None:
        """A pass without drafts."""
        self._age += 1
        took = self._verify.add(rows, seconds)
        self.credit += _SHARE * took
        if self._age == _BASE:
            self.credit += _GRANT * self._verify.at(rows)

    def drafted(
        self, rows: int, plan: Plan, outcomes: Sequence[Outcome], seconds: float, drafting: float
    ) -> None:
        """A pass with drafts of some rows; the seconds that it took, and that they took."""
        self._age += 1
        self._drafts += 1
        self._since += 1
        self._tried += len(outcomes)
        tokens = gained = 0
        for asked, levels, given, accepted in outcomes:
            tokens += given
            gained += accepted
            if asked > 0:
                self._accepted.add(accepted, is_cut=accepted == asked)
                self._given.add(min(levels, asked), is_cut=levels >= asked)
                if levels:
                    self._fan += (given / levels - self._fan) / _WINDOW
        took = self._verify.add(rows + tokens, seconds)
        took += self._draft.add(plan.rows * plan.length, drafting)
        self.credit += (1 + _SHARE + gained / rows) * self._greedy(rows) - took

    def _greedy(self, rows: int) -> float:
        """The seconds of a pass without drafts, as they were when the last decision was made."""
        found = self._alone.get(rows)
        if found is None:
            found = self._alone[rows] = self._verify.at(rows)
        return found
