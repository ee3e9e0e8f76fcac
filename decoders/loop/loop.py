"""The one loop of all accelerated decoders: draft, run, accept, emit, commit.

Every row advances at its own pace; a row that ends leaves at once, and a waiting sentence takes its place.
Symbols: B rows, K drafted tokens of a row, N tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.loop.constraints import Constraints, RowConstraints
from nartk.decoders.loop.drafter import Drafter, combined, verifiable
from nartk.decoders.loop.length import EVERYTHING, IDLE, DraftLength, Plan
from nartk.decoders.loop.packing import last_tokens, packed
from nartk.decoders.loop.results import branches, outcomes_of, result_of, traced
from nartk.decoders.loop.rows import NO_DRAFT, Batch, Row
from nartk.decoders.strategy import Batching, Strategy
from nartk.guarantee import IDENTICAL
from nartk.hypothesis import PhaseSeconds, Request, Result
from nartk.passes import Pass, PassScorer, Scores, Want
from nartk.registry import option
from nartk.vocab import Vocab


@dataclass(frozen=True, kw_only=True)
class DraftAndVerify(Strategy):
    """Base of the strategies that verify drafts. Subclasses say how to draft and what to accept."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer,)

    def make_drafter(self, scorer: PassScorer) -> Drafter | None:
        """What proposes tokens to this verifier in a run; None: nothing does, one token a pass."""
        return None

    def acceptance(self) -> Acceptance:
        """What judges them."""
        return ArgmaxAcceptance()

    def draft_length(self, passes: float = 0.0) -> DraftLength | None:
        """What decides in a run of about so many passes how long drafts are; None: the drafter alone."""
        return None

    def constraints(self, vocab: Vocab) -> Constraints:
        """What outputs must keep to besides their prefix."""
        return Constraints()

    def choice(self, vocab: Vocab) -> RowConstraints:
        """What chooses the words that are output: the best ones that keep to the constraints."""
        return RowConstraints(self.constraints(vocab), vocab.eos)

    def results(
        self, scorer: PassScorer, requests: Sequence[Request], batching: Batching
    ) -> Iterator[Result]:
        tokens = sum(len(request.source) for request in requests)  # an output is as long as its source
        loop = Loop(
            scorer,
            self.make_drafter(scorer),
            self.acceptance(),
            self.choice(scorer.vocab).of_run(scorer, requests),
            length=self.draft_length(tokens / batching.size),
            trace=batching.trace,
            clock=perf_counter,
        )
        return loop.run(requests, batch_size=batching.size, max_tokens=batching.max_tokens)


@dataclass(frozen=True, kw_only=True)
class AdaptiveDrafts(Constrained, DraftAndVerify):
    """Base of strategies whose output is greedy search's, so that drafts may have any length."""

    promise = IDENTICAL

    adaptive: bool = option(
        True,
        "draft as many tokens as pay, by the passes' own times, and none where none do: the output stays the "
        "same, what is drafted and the number of passes may differ from run to run",
    )

    def draft_length(self, passes: float = 0.0) -> DraftLength | None:
        # With options that promise less, what is output depends on what is drafted.
        return DraftLength(passes) if self.adaptive and self.promised == self.promise else None


class Loop:
    """Runs requests through a batch.

    Args:
        length: What decides how long drafts are; None: the drafter alone.
        trace: Whether hypotheses say where each token came from.
        clock: Tells the time, seconds.
    """

    def __init__(
        self,
        scorer: PassScorer,
        drafter: Drafter | None,
        accept: Acceptance,
        constraints: RowConstraints,
        *,
        length: DraftLength | None,
        trace: bool,
        clock: Callable[[], float],
    ) -> None:
        self.scorer, self.drafter, self.accept, self.trace = scorer, drafter, accept, trace
        self.length, self.clock = length, clock
        self.words, self.ends = len(scorer.vocab), scorer.vocab.ends
        self.constraints = None if constraints.are_none else constraints
        wants = [accept.want, Want(margin=trace)]
        self.wanted = combined(wants)  # of passes without drafts
        self.wanted_drafting = self.wanted if drafter is None else combined([*wants, drafter.want])
        self.seconds = [0.0] * 4  # as PhaseSeconds has them

    def run(
        self, requests: Sequence[Request], *, batch_size: int, max_tokens: int | None
    ) -> Iterator[Result]:
        """Yields results as rows end; however it ends itself, nothing of it stays open."""
        batch = Batch(self.scorer, requests, self._row, size=batch_size, max_tokens=max_tokens)
        try:
            while batch.waiting or batch.rows:
                begun = self.clock()
                batch.enter()
                self.seconds[0] += self.clock() - begun
                self._step(batch.rows)
                yield from self._leave(batch)
        finally:
            self._close(batch)

    def _step(self, rows: list[Row]) -> None:
        """One pass of the verifier, after which each row's output is longer."""
        clock = self.clock
        begun = clock()
        plan = self._plan(rows)
        planned = clock()
        self._draft(rows[: plan.rows], plan.length)
        drafted = clock()
        work = packed(rows) if plan.rows else last_tokens(rows)
        want = self.wanted_drafting if plan.rows else self.wanted
        if self.constraints is not None:
            want = self.constraints.want(want, rows)
        ready = clock()
        scores = self.scorer.run(work, want)
        scored = clock()
        verified = self._verified(rows, work, scores)
        verdicts = self.accept(rows, verified)
        self._emit(rows, verdicts, scores)
        self._commit(rows, verdicts, scores)
        committed = clock()
        if plan.rows and self.drafter is not None:
            self.drafter.observe(rows[: plan.rows], verdicts[: plan.rows], verified)
        if self.length is not None and plan.is_timed:
            self.length.record(len(rows), outcomes_of(rows[: plan.rows], verdicts), clock() - planned)
        self.seconds[1] += drafted - begun + clock() - committed
        self.seconds[2] += scored - ready
        self.seconds[3] += ready - drafted + committed - scored

    def _plan(self, rows: list[Row]) -> Plan:
        """Decides which rows draft in this pass, and starts the drafter for those that it does not know."""
        if self.drafter is None:
            return IDLE
        plan = EVERYTHING
        if self.length is not None:
            if self.length.idle:  # no row has a draft, and nothing is to be decided
                self.length.idle -= 1
                return IDLE
            plan = self.length.next(len(rows), [row.is_drafting for row in rows].count(False))
        for row in rows[plan.rows :]:
            row.draft = NO_DRAFT
        if new := [row for row in rows[: plan.rows] if not row.is_drafting]:
            begun = self.clock()
            states = self.drafter.start([row.request for row in new], [row.memory for row in new])
            for row, state in zip(new, states, strict=True):
                row.state, row.is_drafting = state, True
            if self.length is not None:
                self.length.started([len(row.request.source) for row in new], self.clock() - begun)
        return plan

    def _draft(self, rows: list[Row], most: int) -> None:
        """Lets each row's draft follow its last token, as many levels as leave room for one token more."""
        if not rows or self.drafter is None:
            return
        budgets = [min(most, row.request.max_len - len(row.tokens) - 1) for row in rows]
        for row, draft, budget in zip(rows, self.drafter.draft(rows, budgets), budgets, strict=True):
            row.budget, row.draft = budget, verifiable(draft, self.words, budget)

    def _verified(self, rows: list[Row], work: Pass, scores: Scores) -> Verified:
        if self.constraints is None:
            words, log_probs = scores.best.tolist(), scores.log_probs.tolist()
        else:
            words, log_probs = self.constraints.words(scores, rows)
        return Verified(words, log_probs, self.ends, work, scores)

    def _emit(self, rows: list[Row], verdicts: list[Verdict], scores: Scores) -> None:
        """Appends what each verdict outputs, and counts it."""
        if self.trace:
            margins = scores.margins.tolist()
            for row, verdict in zip(rows, verdicts, strict=True):
                row.trace += traced(row, verdict, margins)
        for row, (accepted, tokens, log_probs) in zip(rows, verdicts, strict=True):
            row.tokens += tokens
            row.log_probs += log_probs
            row.last = last = tokens[-1]
            row.passes += 1
            if row.draft.tokens:
                row.drafted += len(row.draft.tokens)
                row.accepted += len(accepted)
                row.branches += branches(row, accepted)
            row.drafter_passes += row.draft.passes
            row.ended = last in self.ends or len(row.tokens) >= row.request.max_len

    def _commit(self, rows: list[Row], verdicts: list[Verdict], scores: Scores) -> None:
        """Keeps the cells of each row's last token before the pass and of what was accepted after it."""
        kept: list[int] = []
        for row, verdict in zip(rows, verdicts, strict=True):
            if not row.ended:
                kept.append(row.begin)
                if verdict.accepted:
                    kept += [row.begin + 1 + i for i in verdict.accepted]
        self.scorer.commit(scores, kept)

    def _row(self, request: Request, memory: int, context: int, now: float) -> Row:
        return Row(request, memory, context, self.scorer.start_token, now)

    def _leave(self, batch: Batch[Row]) -> Iterator[Result]:
        if not (ended := batch.leave()):
            return
        self._stop(ended)
        now, is_early = self.clock(), bool(batch.rows)
        for row in ended:
            phases, self.seconds = PhaseSeconds(*self.seconds), [0.0] * 4
            yield result_of(row, now, left_mid_batch=is_early, phases=phases)

    def _close(self, batch: Batch[Row]) -> None:
        """Gives everything back. A pass that was not committed ends with its contexts."""
        rows = batch.rows
        try:
            batch.close()
        finally:
            self._stop(rows)

    def _stop(self, rows: Sequence[Row]) -> None:
        if self.drafter is not None and (states := [row.state for row in rows if row.is_drafting]):
            self.drafter.stop(states)
