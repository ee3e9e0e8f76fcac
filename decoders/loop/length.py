"""Draft lengths of rows, from predicted times and from what was accepted so far.

A pass over B rows takes T(B), and T(B + B K) if each row drafts K tokens. If the first k of these are
accepted with probability S(k), the best K gives the most tokens a second, (1 + S(1) + ... + S(K)) B / T: the
speed of Leviathan et al. 2023 (arXiv:2211.17192, section 3.4), with times that the scorer predicts
(`PassCosts`) and S(k) as counted in the run. No clock is read: the same requests in the same
batches take the same passes, whatever else the machine does.
"""

from __future__ import annotations

from collections.abc import Sequence

from nartk.decoders.loop.acceptance import Verdict
from nartk.decoders.loop.drafter import Drafter
from nartk.decoders.loop.packing import depth
from nartk.decoders.loop.rows import Row
from nartk.protocols.passes import PassCosts

LONGEST = 64  # tokens of a draft
_LENGTHS = frozenset((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, LONGEST))  # that are compared
_DRIFT = 0.1  # share of the drafter's mean start by which it changes before lengths are chosen anew
# Microseconds of the loop, where the engine was measured: a pass, a row, and more of a pass with drafts.
_PASS, _ROW, _PACKING = 12.0, 4.0, 8.0
_BELIEF = 4.0  # drafts' worth of belief in what is assumed before anything was seen
_WINDOW = 256  # drafts after which older ones count half
_REST, _LONGEST_REST = 32, 512  # passes without drafts after which drafts are tried again: at first, at most
_OFTEN = 32  # drafts that a decision serves at most
_AFTER_REJECTED, _AFTER_ACCEPTED = 0, 1  # indices of counts, of a draft's first token; k: of its k-th


class DraftLength:
    """Decides before each pass how many tokens rows draft, and counts what was accepted.

    A token's chance is counted by its place in the draft, and the first one's by whether the row's last draft
    was rejected too: errors come in groups. After a rejection a row may draft fewer tokens, or none for a
    pass. At first few rows draft. Where no length pays, nothing is drafted for a while, ever longer.

    Args:
        costs: Predicted times of the verifier's passes.
    """

    def __init__(self, costs: PassCosts, drafter: Drafter) -> None:
        self._costs, self._drafter, self._start = costs, drafter, 0.0
        self._starts = self._outputs = 0.0
        self._tried, self._passed = [0.0] * (LONGEST + 2), [0.0] * (LONGEST + 2)
        self._asked, self._made = _BELIEF, _BELIEF  # tokens: if drafts were as long as asked for, and drafted
        self._drafts, self._due = 0, 1
        self._passes, self._rest = 0, _REST  # without drafts
        self._choices: dict[int, list[int]] = {}  # by rows: lengths after an accepted and a rejected draft

    def expect(self, start: float, length: float) -> None:
        """Counts a request that was admitted.

        Args:
            start: Microseconds that the drafter's start takes for it.
            length: Tokens of its output, as far as its source tells.
        """
        self._starts += start
        self._outputs += length
        mean = self._starts / self._outputs
        if abs(mean - self._start) > _DRIFT * self._start:
            self._start = mean
            self._choices.clear()

    def levels(self, rows: Sequence[Row]) -> list[int]:
        """Levels that each row drafts in the pass that comes, 0: none; empty: none of the rows drafts.

        What became of a pass without drafts need not be recorded.
        """
        count = len(rows)
        if count not in self._choices:
            longest = self._best(count, was_rejected=False)
            self._choices[count] = [longest, self._best(count, was_rejected=True) if longest else 0]
        if any(choices := self._choices[count]):
            few = _BELIEF + sum(self._tried)
            return [choices[row.was_rejected] if i < few else 0 for i, row in enumerate(rows)]
        self._passes += 1
        if self._passes == self._rest:
            self._passes, self._rest = 0, min(2 * self._rest, _LONGEST_REST)
            self._forget()
        return []

    def record(self, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> None:
        """Counts what became of the drafts of a pass."""
        for row, verdict in zip(rows, verdicts, strict=True):
            asked, accepted = row.budget, len(verdict.accepted)
            first = _AFTER_REJECTED if row.was_rejected else _AFTER_ACCEPTED
            row.was_rejected = asked > 0 and accepted < depth(row.draft)
            if asked <= 0:
                continue
            self._drafts += 1
            self._asked += self._drafter.tokens(asked)
            self._made += len(row.draft.tokens)
            for k in range(min(accepted + 1, asked)):
                index = k + 1 if k else first
                self._tried[index] += 1
                self._passed[index] += k < accepted
        if self._drafts >= self._due:
            self._due = self._drafts + min(self._drafts, _OFTEN)
            self._choices.clear()
            if self._tried[_AFTER_ACCEPTED] > _WINDOW:
                self._rest = _REST
                self._forget()

    def _forget(self) -> None:
        """Lets what was seen so far count half."""
        self._tried, self._passed = ([each / 2 for each in counts] for counts in (self._tried, self._passed))
        self._choices.clear()

    def _best(self, rows: int, was_rejected: bool) -> int:
        """The length that pays best, 0: none does."""
        costs, drafter, filled = self._costs, self._drafter, self._made / self._asked
        host = _PASS + _ROW * rows
        best, fastest = 0, drafter.pays / (costs.run(rows) + host)  # tokens of a row, microseconds of a pass
        # Of a place where little was seen, what was seen of all places tells too.
        share = (sum(self._passed) / drafter.rates[1] + _BELIEF) / (sum(self._tried) + _BELIEF)
        chance = gained = 1.0
        for length in range(1, LONGEST + 1):
            is_after = was_rejected and length == 1
            index, assumed = (_AFTER_REJECTED, drafter.rates[0]) if is_after else (length, drafter.rates[1])
            believed = _BELIEF * min(share * assumed, 1.0)
            chance *= (self._passed[index] + believed) / (self._tried[index] + _BELIEF)
            gained += chance
            if length not in _LENGTHS:
                continue
            took = costs.run(rows + rows * filled * drafter.tokens(length)) + host + _PACKING
            took += drafter.draft_time(rows, length) + rows * gained * self._start
            if gained > fastest * took:
                best, fastest = length, gained / took
        return best
