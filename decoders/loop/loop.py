"""The one loop of all accelerated decoders: draft, run, accept, emit, commit.

Every row advances at its own pace; a row that ends leaves at once, and a waiting sentence takes its place.
Symbols: B rows, K drafted tokens of a row, N tokens of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import ClassVar

from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constrained import BestWords
from nartk.decoders.loop.constraints import Constraints, RowConstraints
from nartk.decoders.loop.drafter import NO_DRAFT, Drafter, combined, verifiable
from nartk.decoders.loop.length import DraftLength
from nartk.decoders.loop.packing import Packed, pack
from nartk.decoders.loop.prompting import Prompt
from nartk.decoders.loop.results import branches, result_of, traced
from nartk.decoders.loop.rows import Row, RowRun
from nartk.decoders.strategy import Strategy
from nartk.protocols.guarantee import IDENTICAL
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import PassScorer, Scores, Want, costs_of, output_length
from nartk.protocols.runs import ACCEPT, DRAFT, VERIFY, Batching, Run
from nartk.registry import option
from nartk.vocab import Vocab

_ANY_LEVELS = 1 << 30  # as many as the drafter makes


@dataclass(frozen=True, kw_only=True)
class DraftAndVerify(Strategy):
    """Base of the strategies that verify drafts. Subclasses say how to draft and what to accept."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer,)

    def make_drafter(self, scorer: PassScorer) -> Drafter | None:
        """Makes the drafter that proposes tokens in a run; None: there is none, one token a pass."""
        return None

    def acceptance(self) -> Acceptance:
        """Makes the rule that accepts or rejects drafted tokens."""
        return ArgmaxAcceptance()

    @property
    def decides_lengths(self) -> bool:
        """Tells whether drafts are as long as pays, and not as the drafter makes them."""
        return False

    def constraints(self, vocab: Vocab) -> Constraints:
        """Rules that outputs must keep to besides their prefix."""
        return Constraints()

    def choice(self, vocab: Vocab) -> RowConstraints:
        """Makes the rules that choose output words: the best ones that keep to the constraints."""
        return RowConstraints(self.constraints(vocab), vocab.eos)

    def begin(self, scorer: PassScorer, batching: Batching) -> Run:
        drafter = self.make_drafter(scorer)
        length = None
        if drafter is not None and self.decides_lengths:
            length = DraftLength(costs_of(scorer), drafter)
        choice = self.choice(scorer.vocab).of_run(scorer)
        return Loop(scorer, drafter, self.acceptance(), choice, batching, length=length)


@dataclass(frozen=True, kw_only=True)
class AdaptiveDrafts(BestWords, DraftAndVerify):
    """Base of strategies whose output is greedy search's, so that drafts may have any length."""

    promise = IDENTICAL

    adaptive: bool = option(
        True,
        "draft as many tokens as pay, by the predicted time of passes and what was accepted so far, and none "
        "where none do; the output stays the same",
    )

    @property
    def decides_lengths(self) -> bool:
        # With options that promise less, what is output depends on what is drafted.
        return self.adaptive and self.promised == self.promise


class Loop(RowRun[Row]):
    """Implements `nartk.protocols.runs.Run`: a row of the batch is a request.

    Args:
        choice: Chooses words.
        length: Decides how long drafts are; None: the drafter alone does.
    """

    def __init__(
        self,
        scorer: PassScorer,
        drafter: Drafter | None,
        accept: Acceptance,
        choice: RowConstraints,
        batching: Batching,
        *,
        length: DraftLength | None,
    ) -> None:
        super().__init__(scorer, batching)
        self.drafter, self.accept, self.length = drafter, accept, length
        self.words, self.ends = len(scorer.vocab), scorer.vocab.ends
        self.choice = choice
        self.constraints = None if choice.are_none else choice
        # What is drafted from hidden states is drafted from the last pass's, even if no row drafted in it.
        self.sees_all = drafter is not None and drafter.want.hidden
        self._may_draft = False  # some row in the last pass: its outcome counts
        self._set_wants(trace=False)

    def _set_wants(self, *, trace: bool) -> None:
        self.traces = trace
        wants = [self.accept.want, Want(margin=trace)]
        with_drafts = wants if self.drafter is None else [*wants, self.drafter.want]
        self.wanted_drafting = combined(with_drafts)
        self.wanted = self.wanted_drafting if self.sees_all else combined(wants)  # of passes without drafts

    def admit(self, request: Request) -> None:
        super().admit(request)
        self.choice = self.choice.including(request)
        self.constraints = None if self.choice.are_none else self.choice
        if request.trace and not self.traces:
            self._set_wants(trace=True)
        if self.length is not None and self.drafter is not None:
            source = request.source
            self.length.expect(self.drafter.start_time(len(source)), output_length(source))

    def _step(self, rows: list[Row]) -> None:
        drafting = self._draft(rows)
        self.clock.lap(DRAFT)
        packed = pack(rows)
        want = self.wanted_drafting if drafting else self.wanted
        if packed.only is not None:
            want = replace(want, only=packed.only)
        if self.constraints is not None:
            want = self.constraints.want(want, rows)
        self.clock.lap(ACCEPT)
        scores = self.scorer.run(packed.work, want)
        self.clock.lap(VERIFY)
        verified = self._verified(rows, packed, want, scores)
        verdicts = self.accept(rows, verified)
        if self.length is not None and self._may_draft:
            self.length.record(rows, verdicts)
        self._emit(rows, verdicts, verified.scores)
        self._commit(rows, verdicts, scores)
        self.clock.lap(ACCEPT)
        if self.drafter is not None and (seen := range(len(rows)) if self.sees_all else drafting):
            self.drafter.observe([rows[i] for i in seen], [verdicts[i] for i in seen], verified)
            self.clock.lap(DRAFT)

    def _draft(self, rows: list[Row]) -> list[int]:
        """Lets drafts follow the rows' last tokens, as many levels as leave room for one token more.

        Returns the indices of the rows that draft; the drafter is started for those that it does not know.
        """
        if self.drafter is None:
            return []
        levels = [_ANY_LEVELS] * len(rows) if self.length is None else self.length.levels(rows)
        if self._may_draft:
            for row in rows:
                row.budget, row.draft = 0, NO_DRAFT
                row.was_rejected &= bool(levels)
        self._may_draft = bool(levels)
        if not levels and not self.sees_all:
            return []
        chosen = [i for i, most in enumerate(levels) if most and (rows[i].passes or not self.sees_all)]
        drafting = [rows[i] for i in chosen]
        if new := [row for row in (rows if self.sees_all else drafting) if not row.is_drafting]:
            states = self.drafter.start([row.request for row in new], [row.memory for row in new])
            for row, state in zip(new, states, strict=True):
                row.state, row.is_drafting = state, True
        if not chosen:
            return chosen
        budgets = [min(levels[i], self._longest_draft(rows[i])) for i in chosen]
        for row, draft, budget in zip(drafting, self.drafter.draft(drafting, budgets), budgets, strict=True):
            row.budget, row.draft = budget, verifiable(draft, self.words, budget)
        return chosen

    def _longest_draft(self, row: Row) -> int:
        """Levels that leave room for one token more.

        Acceptances that compare what drafter and verifier scored do not know which words are forbidden behind
        a prefix: the word there is not drafted.
        """
        done, request, rules = len(row.tokens), row.request, self.constraints
        if row.closing >= 0:
            return 0
        if request.after_prefix and rules is not None and rules.reads_drafts and done == len(request.prefix):
            return 0
        return request.max_len - done - 1

    def _verified(self, rows: list[Row], packed: Packed, want: Want, scores: Scores) -> Verified:
        if self.constraints is None:
            words, log_probs = scores.best.tolist(), scores.log_probs.tolist()
        else:
            scores = self.constraints.left(scores, want, rows)
            words, log_probs = self.constraints.words(scores, rows)
        return Verified(words, log_probs, self.ends, packed.scored, scores)

    def _emit(self, rows: list[Row], verdicts: list[Verdict], scores: Scores) -> None:
        """Appends what each verdict outputs, and counts it."""
        if self.traces:
            margins = scores.margins.tolist()
            for row, verdict in zip(rows, verdicts, strict=True):
                if row.request.trace:
                    row.trace += traced(row, verdict, margins)
        for row, (accepted, tokens, log_probs) in zip(rows, verdicts, strict=True):
            if row.pending and self.constraints is not None:
                row.log_probs, row.pending = self.constraints.known(row, scores), 0
            row.tokens += tokens
            row.log_probs += log_probs
            row.passes += 1
            if row.draft.tokens:
                row.drafted += len(row.draft.tokens)
                row.accepted += len(accepted)
                row.branches += branches(row, accepted)
            row.drafter_passes += row.draft.passes
            row.ended = tokens[-1] in self.ends or len(row.tokens) >= row.request.max_len or row.closing >= 0

    def _commit(self, rows: list[Row], verdicts: list[Verdict], scores: Scores) -> None:
        """Keeps the cells of what each row had not read, and of what was accepted after it."""
        kept: list[int] = []
        for row, verdict in zip(rows, verdicts, strict=True):
            if row.ended:
                continue
            if row.begin == row.end:
                kept.append(row.end)
            else:
                kept += range(row.begin, row.end + 1)
            row.cells += row.end + 1 - row.begin
            if verdict.accepted:
                kept += [row.end + 1 + i for i in verdict.accepted]
                row.cells += len(verdict.accepted)
        self.scorer.commit(scores, kept)

    def _row(self, request: Request, prompt: Prompt, memory: int, context: int, now: float) -> Row:
        row = Row(
            request, prompt.tokens, memory=memory, context=context, started=now, no_speech=prompt.no_speech
        )
        self.choice.begin(row)
        return row

    def _result(self, row: Row, *, early: bool) -> Result:
        return result_of(row, perf_counter(), left_mid_batch=early, phases=self.clock.take())

    def _so_far(self, row: Row) -> Hypothesis:
        count = len(row.log_probs)  # of a forced prefix that was not scored yet there are none
        log_probs = tuple(row.log_probs)
        return Hypothesis(tuple(row.tokens[:count]), math.fsum(log_probs), log_probs)

    def _left(self, rows: Sequence[Row]) -> None:
        if self.drafter is not None and (states := [row.state for row in rows if row.is_drafting]):
            self.drafter.stop(states)
