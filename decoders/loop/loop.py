"""The one loop of all accelerated decoders: draft, run, accept, emit, commit.

Every row advances at its own pace; a row that ends leaves at once, and a waiting sentence takes its place.
Symbols: B rows, K drafted tokens of a row, N tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constraints import Constraints, RowConstraints
from nartk.decoders.loop.drafter import Drafter, combined, verifiable
from nartk.decoders.loop.packing import last_tokens, packed
from nartk.decoders.loop.results import branches, result_of, traced
from nartk.decoders.loop.rows import Batch, Row
from nartk.decoders.strategy import Strategy
from nartk.hypothesis import PhaseSeconds, Request, Result
from nartk.passes import Pass, PassScorer, Scores, Want
from nartk.registry import option


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

    def constraints(self) -> Constraints:
        """What outputs must keep to besides their prefix."""
        return Constraints()

    def choice(self, eos: int, *, are_forcing: bool) -> RowConstraints:
        """What chooses the words that are output: the best ones that keep to the constraints."""
        return RowConstraints(self.constraints(), eos, are_forcing)

    def run(
        self,
        scorer: PassScorer,
        requests: Sequence[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        self.check_helpers()
        choice = self.choice(scorer.vocab.eos, are_forcing=any(request.prefix for request in requests))
        loop = Loop(scorer, self.make_drafter(scorer), self.acceptance(), choice, trace=trace)
        yield from loop.run(requests, batch_size=batch_size, max_tokens=max_tokens)


@dataclass(frozen=True, kw_only=True)
class AdaptiveDrafts(DraftAndVerify):
    """Base of strategies whose output is greedy search's, so that drafts may have any length."""

    # Accepted, and without an effect until the length of drafts is decided in the loop.
    adaptive: bool = option(
        False,
        "draft as many tokens as pay, by the passes' own times, and none where none do: the output stays the "
        "same, what is drafted and the number of passes may differ from run to run",
    )


class Loop:
    """Runs requests through a batch.

    Args:
        trace: Whether hypotheses say where each token came from.
    """

    def __init__(
        self,
        scorer: PassScorer,
        drafter: Drafter | None,
        accept: Acceptance,
        constraints: RowConstraints,
        *,
        trace: bool,
    ) -> None:
        self.scorer, self.drafter, self.accept, self.trace = scorer, drafter, accept, trace
        self.words, self.eos = len(scorer.vocab), scorer.vocab.eos
        self.constraints = None if constraints.are_none else constraints
        wants = [accept.want, Want(margin=trace)]
        self.wanted = combined(wants if drafter is None else [*wants, drafter.want])
        self.seconds = [0.0] * 4  # as PhaseSeconds has them

    def run(
        self, requests: Sequence[Request], *, batch_size: int, max_tokens: int | None
    ) -> Iterator[Result]:
        """Yields results as rows end; however it ends itself, nothing of it stays open."""
        batch = Batch(self.scorer, requests, self._row, size=batch_size, max_tokens=max_tokens)
        try:
            while batch.waiting or batch.rows:
                self._enter(batch)
                self._step(batch.rows)
                yield from self._leave(batch)
        finally:
            self._close(batch)

    def _step(self, rows: list[Row]) -> None:
        """One pass of the verifier, after which each row's output is longer."""
        begun = perf_counter()
        self._draft(rows)
        drafted = perf_counter()
        work, want = self._pass(rows), self._want(rows)
        packed = perf_counter()
        scores = self.scorer.run(work, want)
        scored = perf_counter()
        verified = self._verified(rows, work, scores)
        verdicts = [self.accept(row, verified) for row in rows]
        self._emit(rows, verdicts, scores)
        self._commit(rows, verdicts, scores)
        committed = perf_counter()
        if self.drafter is not None:
            self.drafter.observe(rows, verdicts, verified)
        self.seconds[1] += drafted - begun + perf_counter() - committed
        self.seconds[2] += scored - packed
        self.seconds[3] += packed - drafted + committed - scored

    def _draft(self, rows: list[Row]) -> None:
        """Lets each row's draft follow its last token, as many levels as leave room for one token more."""
        if self.drafter is None:
            return
        budgets = [row.request.max_len - len(row.tokens) - 1 for row in rows]
        for row, draft, budget in zip(rows, self.drafter.draft(rows, budgets), budgets, strict=True):
            row.draft = verifiable(draft, self.words, budget)

    def _pass(self, rows: list[Row]) -> Pass:
        return last_tokens(rows) if self.drafter is None else packed(rows)

    def _want(self, rows: list[Row]) -> Want:
        return self.wanted if self.constraints is None else self.constraints.want(self.wanted, rows)

    def _verified(self, rows: list[Row], work: Pass, scores: Scores) -> Verified:
        if self.constraints is None:
            words, log_probs = scores.best.tolist(), scores.log_probs.tolist()
        else:
            words, log_probs = self.constraints.words(scores, rows)
        return Verified(words, log_probs, self.eos, work, scores)

    def _emit(self, rows: list[Row], verdicts: list[Verdict], scores: Scores) -> None:
        """Appends what each verdict outputs, and counts it."""
        if self.trace:
            assert scores.margins is not None
            margins = scores.margins.tolist()
            for row, verdict in zip(rows, verdicts, strict=True):
                row.trace += traced(row, verdict, margins)
        eos = self.eos
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
            row.ended = last == eos or len(row.tokens) >= row.request.max_len

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

    def _enter(self, batch: Batch[Row]) -> None:
        begun = perf_counter()
        new = batch.enter()
        encoded = perf_counter()
        if new and self.drafter is not None:
            states = self.drafter.start([row.request for row in new], [row.memory for row in new])
            for row, state in zip(new, states, strict=True):
                row.state = state
        self.seconds[0] += encoded - begun
        self.seconds[1] += perf_counter() - encoded

    def _leave(self, batch: Batch[Row]) -> Iterator[Result]:
        ended = batch.leave()
        if not ended:
            return
        if self.drafter is not None:
            self.drafter.stop([row.state for row in ended])
        now, is_early = perf_counter(), bool(batch.rows)
        for row in ended:
            phases, self.seconds = PhaseSeconds(*self.seconds), [0.0] * 4
            yield result_of(row, now, left_mid_batch=is_early, phases=phases)

    def _close(self, batch: Batch[Row]) -> None:
        """Gives everything back. A pass that was not committed ends with its contexts."""
        states = [row.state for row in batch.rows if row.state is not None]
        try:
            batch.close()
        finally:
            if states and self.drafter is not None:
                self.drafter.stop(states)
