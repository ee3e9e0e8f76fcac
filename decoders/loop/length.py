"""How many tokens it pays to draft: from what passes cost here, and from what has been accepted so far.

A pass without drafts takes G(B) seconds for B rows, one with drafts T(N) for N tokens, drafting included. If
each row drafts K tokens, of which the first k are accepted with probability S(k), the best K gives the most
tokens a second, (1 + S(1) + ... + S(K)) B / T(B + B K): the speed of Leviathan et al. 2023 (arXiv:2211.17192,
section 3.4) with measured costs, and with a measured S(k) in the place of a power of one rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LONGEST = 64  # tokens of a draft
_LENGTHS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, LONGEST])  # that are compared
_PAYS = 1.03  # times greedy search's speed that drafts must promise
_SHARE = 0.009  # of greedy search's time that drafts may lose
_GRANT = 1.0  # greedy passes that the first drafts may lose at least
_AHEAD = 0.004  # of the greedy passes that a run will take: what the first drafts may lose of a long one
_SAVED = 16.0  # greedy passes that may be lost at most, however much was gained before
_BASE = 3  # passes without drafts before the first one with: they are timed
_REMEASURED = 64  # passes with drafts after which one without is timed again, at most
_GROWTH = 4  # or after a fourth of those so far: right after an encoding, with cold caches, all are slow
_LONGER = 16  # drafting passes, one of which drafts twice as much: longer drafts may have become better
_FEW = 8  # drafts that an eighth of the rows makes at first: they show what drafts cost
_REPLAN = 32  # passes with drafts that a decision serves at most
_REST, _LONGEST_REST = 32, 256  # passes without drafts where none pay: at first, and at most
_WINDOW = 128  # drafts that are remembered
_PRIOR, _HOPED = 4.0, 0.8  # drafts' worth of belief that a token is accepted so often
_FASTER, _SLOWER = 0.5, 0.06  # of a difference that is believed: other programs only make passes slower


class Costs:
    """Seconds by a size, as measured at some sizes: a moving average for each quarter of an octave."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[float, float]] = {}  # size and seconds, by the leading bits of sizes

    def add(self, size: int, seconds: float) -> float:
        """Records a measurement, of which twice what was expected is believed at most; what is believed."""
        shift = max(size.bit_length() - 3, 0)
        key = size >> shift << shift
        mean, cost = self._cells.get(key, (size, 0.0))
        most = cost if cost else self.one(size)
        seconds = min(seconds, 2 * most) if most else seconds
        rate = _FASTER if seconds < cost else _SLOWER if cost else 1.0
        self._cells[key] = mean + rate * (size - mean), cost + rate * (seconds - cost)
        return seconds

    def at(self, sizes: npt.NDArray[Any], *, growth: float = 1.0) -> Floats:
        """The seconds of sizes [n]; nothing takes longer than what is larger.

        Args:
            growth: How fast costs are taken to grow above what was measured; 1: in proportion to the size.
        """
        if not self._cells:
            return np.zeros(len(sizes))
        known, costs = np.array(sorted(self._cells.values())).T
        costs = np.minimum.accumulate(costs[::-1])[::-1]
        below = np.minimum((sizes + 2) / (known[0] + 2), 1)
        above = 1 + growth * np.maximum(sizes / known[-1] - 1, 0)
        return np.interp(sizes, known, costs) * below * above

    def one(self, size: float) -> float:
        """The seconds of one size."""
        return float(self.at(np.array([size]))[0])


class Plan(NamedTuple):
    """What is drafted in a pass.

    Attributes:
        length: Most levels of a draft.
        rows: How many rows draft, from the first on.
        is_timed: Whether `DraftLength.record` is to be told of the pass.
    """

    length: int
    rows: int
    is_timed: bool = True


NOTHING, IDLE = Plan(0, 0), Plan(0, 0, is_timed=False)
EVERYTHING = Plan(1 << 30, 1 << 30)


class Outcome(NamedTuple):
    """What became of a row's draft: levels that were asked for, its levels and tokens, tokens accepted."""

    asked: int
    levels: int
    tokens: int
    accepted: int


def expected(reached: npt.NDArray[Any], asked: npt.NDArray[Any], *, weight: float, rate: float) -> Floats:
    """How far drafts get on average that are cut at 0, 1, ..., `LONGEST` tokens.

    The estimate of Kaplan and Meier 1958: at each token counts who got there and was asked for more.

    Args:
        reached: [n], how far drafts got.
        asked: [n], how far they might have got at most.
        weight, rate: Drafts' worth of belief that one gets a token further, and how often; where many were
            seen, tokens are like each other.
    """
    ended = reached < asked
    beyond = np.bincount(reached, minlength=LONGEST + 2)[::-1].cumsum()[::-1]  # [k]: reached >= k
    passed = beyond[1 : LONGEST + 1]
    tried = passed + np.bincount(reached[ended], minlength=LONGEST + 1)[:LONGEST]
    mean = (passed.sum() + weight * rate) / (tried.sum() + weight)
    rates = (passed + weight * mean) / (tried + weight)
    return np.concatenate([[0.0], rates.cumprod().cumsum()])


class DraftLength:
    """Decides before each pass of a run what is drafted, and learns from the pass.

    Whatever drafts do, a run loses a share `_SHARE` of greedy search's time, and once `_AHEAD` of its passes
    or `_GRANT` passes: a budget of seconds is paid these and what drafts gain, and charged what they lose;
    nothing is drafted that may lose more than is left of it. Where nothing pays, nothing is drafted for a
    while, the longer the more often that was so.

    Args:
        passes: About how many passes greedy search would take for the run.

    Attributes:
        budget: Seconds that may be lost.
        idle: Passes that come without drafts, before `next` is to be asked again.
    """

    def __init__(self, passes: float = 0.0) -> None:
        self.budget, self.idle = 0.0, 0
        self._granted = min(max(_AHEAD * passes, _GRANT), _SAVED)  # greedy passes
        self._greedy, self._drafting = Costs(), Costs()  # of passes: by rows, and by tokens
        # Of a row: source tokens, and seconds of the drafter's start.
        self._source, self._start_row = 1.0, 0.0
        self._seen: deque[Outcome] = deque(maxlen=_WINDOW)
        self._passes, self._drafts, self._few = 0, 0, _FEW
        self._due, self._timed, self._rest = 0, 1, _REST
        self._choices: dict[int, tuple[int, float]] = {}  # by rows: levels, and seconds of a greedy pass
        self._losses: dict[tuple[int, int, int], float] = {}  # by rows, those that draft, and length
        self._accepted, self._levels, self._branching = np.zeros(0), np.zeros(0), 1.0

    def next(self, rows: int, new: int) -> Plan:
        """What of so many rows is drafted in the pass that comes; for `new` the drafter would be started."""
        if self._passes < _BASE or self._drafts >= self._timed:
            self._timed = self._drafts + min(1 + self._drafts // _GROWTH, _REMEASURED)
            return NOTHING
        if self._drafts >= self._due:
            self._decide()
        length, greedy = self._choice(rows)
        if not length:
            self._seen.clear()  # to be tried once more after the rest
            self._due, self._rest = self._drafts, min(2 * self._rest, _LONGEST_REST)
            return self._wait(self._rest // 2, greedy)
        if self._drafts % _LONGER == _LONGER - 1:
            length = min(2 * length, LONGEST)
        drafting = rows if self._few <= 0 else max(1, rows // 8)
        while (lost := self._loss(rows, new, drafting, length)) > self.budget and drafting * length > 1:
            drafting, length = (drafting // 2, length) if drafting > 1 else (1, length // 2)
        if lost > self.budget:
            missing = (lost - self.budget) / (_SHARE * greedy)
            return self._wait(int(min(missing, _LONGEST_REST)), greedy)
        return Plan(length, drafting)

    def _wait(self, passes: int, greedy: float) -> Plan:
        """Lets this pass and so many more go by without drafts."""
        self.idle = passes
        self.budget += _SHARE * (passes + 1) * greedy
        return IDLE

    def _decide(self) -> None:
        """Looks at all that is known; what follows of it for a number of rows is computed when asked for."""
        self._due = self._drafts + min(2 + self._drafts // 2, _REPLAN)
        self._choices, self._losses = {}, {}
        seen = np.array(self._seen, np.int64).reshape(-1, 4)
        asked, levels, tokens, accepted = seen[seen[:, 0] > 0].T
        self._accepted = expected(accepted, asked, weight=_PRIOR, rate=_HOPED)[_LENGTHS]
        self._levels = expected(np.minimum(levels, asked), asked, weight=_PRIOR, rate=1.0)[_LENGTHS]
        self._branching = tokens.sum() / max(levels.sum(), 1) if tokens.any() else 1.0
        if len(self._seen) == _WINDOW:
            self._rest = _REST

    def _choice(self, rows: int) -> tuple[int, float]:
        """Levels of a draft that pay best, 0: none does; and seconds of a pass without drafts."""
        if rows not in self._choices:
            greedy, emitted = self._greedy.one(rows), rows * (1 + self._accepted)
            starting = emitted * self._start_row / self._source  # an output is as long as its source
            seconds = self._cost(rows * (1 + self._branching * self._levels), growth=0.5) + starting
            best = int((emitted / seconds).argmax())
            pays = emitted[best] / seconds[best] > _PAYS * rows / greedy
            self._choices[rows] = int(_LENGTHS[best]) if pays else 0, greedy
        return self._choices[rows]

    def _cost(self, tokens: Floats, *, growth: float) -> Floats:
        return (self._drafting if self._drafts else self._greedy).at(tokens, growth=growth)

    def _loss(self, rows: int, new: int, drafting: int, length: int) -> float:
        """What a pass may take more than greedy search; of the first drafts nothing may be accepted."""
        lost = self._losses.get((rows, drafting, length))
        if lost is None:
            tokens = np.array([rows + self._branching * drafting * length])
            accepted = float(self._accepted[_LENGTHS.searchsorted(length)]) if self._few <= 0 else 0.0
            lost = float(self._cost(tokens, growth=1.0)[0])
            lost -= self._choice(rows)[1] * (1 + accepted * drafting / rows)
            self._losses[rows, drafting, length] = lost
        started = drafting - (rows - new)
        return lost + started * self._start_row if started > 0 else lost

    def started(self, sources: Sequence[int], seconds: float) -> None:
        """The drafter was started for rows with so many source tokens each."""
        rows = len(sources)
        self._source, took = sum(sources) / rows, seconds / rows
        if self._start_row:
            took = min(took, 2 * self._start_row)
            rate = _FASTER if took < self._start_row else _SLOWER
            self._start_row += rate * (took - self._start_row)
        else:  # it is slow, as code and memory are cold
            self._start_row = took = min(took, self._granted * self._greedy.one(rows) / rows)
        self.budget -= took * rows

    def record(self, rows: int, outcomes: Sequence[Outcome], seconds: float) -> None:
        """A pass of so many rows took so long, drafting included; the outcomes are of those that drafted."""
        self._passes += 1
        if not outcomes:
            self.budget += _SHARE * self._greedy.add(rows, seconds)
            if self._passes == _BASE:
                self.budget += self._granted * self._greedy.one(rows)
            return
        self._drafts += 1
        self._few -= len(outcomes)
        self._seen.extend(outcomes)
        tokens = rows + sum(outcome.tokens for outcome in outcomes)
        if self._drafts == 1:  # it is slow, as code and memory are cold
            seconds = min(seconds, 2 * self._greedy.one(tokens))
        took, greedy = self._drafting.add(tokens, seconds), self._choice(rows)[1]
        gained = sum(outcome.accepted for outcome in outcomes) / rows
        self.budget = min(self.budget + (1 + _SHARE + gained) * greedy - took, _SAVED * greedy)
