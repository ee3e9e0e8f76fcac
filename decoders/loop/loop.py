"""The one loop of all accelerated decoders: draft, run, accept, emit, commit.

Every row advances at its own pace; a row that ends leaves at once, and a waiting sentence takes its place.
Symbols: B rows, K drafted tokens of a row, N tokens of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter
from typing import ClassVar

import numpy as np

from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constraints import (
    Constraints,
    forced_words,
    given_words,
    levels,
    outputs_before,
    ragged,
)
from nartk.decoders.loop.drafter import Drafter, verifiable
from nartk.decoders.loop.rows import Batch, Row
from nartk.decoders.strategy import Strategy
from nartk.hypothesis import Hypothesis, PhaseSeconds, Request, Result, TokenTrace
from nartk.passes import ROOT, Pass, PassScorer, Scores, Want


@dataclass(frozen=True, kw_only=True)
class DraftAndVerify(Strategy):
    """Base of the strategies that verify drafts. Subclasses say how to draft and what to accept."""

    needs: ClassVar[tuple[type, ...]] = (PassScorer,)

    def make_drafter(self, scorer: PassScorer) -> Drafter | None:
        """What proposes tokens to this verifier in a run; None: nothing does, one token a pass."""
        return None

    def acceptance(self) -> Acceptance:
        """What judges them."""
        return ArgmaxAcceptance()

    def constraints(self) -> Constraints:
        """What outputs must keep to besides their prefix."""
        return Constraints()

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
        loop = DraftAndVerifyLoop(
            scorer, self.make_drafter(scorer), self.acceptance(), self.constraints(), requests, trace=trace
        )
        yield from loop.run(requests, batch_size=batch_size, max_tokens=max_tokens)


class DraftAndVerifyLoop:
    """Runs requests through a batch.

    Args:
        requests: All of the run, of which `run` may be given some.
        trace: Whether hypotheses say where each token came from.
    """

    def __init__(
        self,
        scorer: PassScorer,
        drafter: Drafter | None,
        accept: Acceptance,
        constraints: Constraints,
        requests: Sequence[Request],
        *,
        trace: bool,
    ) -> None:
        self.scorer, self.drafter, self.accept, self.constraints = scorer, drafter, accept, constraints
        self.trace = trace
        self.want = replace(accept.want, margin=accept.want.margin or trace)
        self.is_forcing = any(request.prefix for request in requests)
        self.is_constrained = self.is_forcing or constraints.needs_outputs
        self.words, self.eos = len(scorer.vocab), scorer.vocab.eos
        self.pending: Scores | None = None  # of a pass that is not committed
        self.seconds = [0.0] * 4  # as PhaseSeconds has them

    def run(
        self, requests: Sequence[Request], *, batch_size: int, max_tokens: int | None
    ) -> Iterator[Result]:
        """Yields results as rows end; however it ends, nothing of it stays open."""
        batch = Batch(self.scorer, requests, self._row, size=batch_size, max_tokens=max_tokens)
        try:
            while batch.waiting or batch.rows:
                self._enter(batch)
                self._step(batch.rows)
                yield from self._leave(batch)
        finally:
            self._close(batch)

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

    def _step(self, rows: list[Row]) -> None:
        """One pass of the verifier, after which each row's output is longer."""
        begun = perf_counter()
        self._draft(rows)
        drafted = perf_counter()
        work, want = self._pass(rows), self._want(rows)
        packed = perf_counter()
        scores = self.pending = self.scorer.run(work, want)
        verified = perf_counter()
        verdicts = self._accept(rows, scores)
        self._emit(rows, verdicts, scores)
        self._commit(rows, verdicts, scores)
        committed = perf_counter()
        if self.drafter is not None:
            self.drafter.observe(rows, verdicts)
        self.seconds[1] += drafted - begun + perf_counter() - committed
        self.seconds[2] += verified - packed
        self.seconds[3] += packed - drafted + committed - verified

    def _draft(self, rows: list[Row]) -> None:
        """Lets each row's draft follow its last token, as many levels as leave room for one token more."""
        if self.drafter is None:
            return
        budgets = [row.request.max_len - len(row.tokens) - 1 for row in rows]
        for row, draft, budget in zip(rows, self.drafter.draft(rows, budgets), budgets, strict=True):
            row.draft = verifiable(draft, self.words, budget)

    def _pass(self, rows: list[Row]) -> Pass:
        """The last token and the draft of each row."""
        if self.drafter is None:
            for i, row in enumerate(rows):
                row.begin = i
            columns = [
                [row.last for row in rows],
                [len(row.tokens) for row in rows],
                [row.memory for row in rows],
                [row.context for row in rows],
                [ROOT] * len(rows),
            ]
            return Pass(*np.array(columns, np.int32))
        tokens: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        for row in rows:
            begin = row.begin = len(tokens)
            done, count, tree = len(row.tokens), len(row.draft.tokens), row.draft.parents
            tokens.append(row.last)
            tokens += row.draft.tokens
            positions.append(done)
            parents.append(ROOT)
            if tree is None:
                positions += range(done + 1, done + 1 + count)
                parents += range(begin, begin + count)
            else:
                positions += [done + level for level in levels(tree)]
                parents += [begin + 1 + parent for parent in tree]
        counts = [1 + len(row.draft.tokens) for row in rows]
        memory, contexts = (
            list(chain.from_iterable([handle] * count for handle, count in zip(handles, counts, strict=True)))
            for handles in ([row.memory for row in rows], [row.context for row in rows])
        )
        return Pass(*np.array([tokens, positions, memory, contexts, parents], np.int32))

    def _want(self, rows: list[Row]) -> Want:
        if not self.is_constrained:
            return self.want
        want = self.want
        if self.constraints.is_banning:
            before = chain.from_iterable(map(outputs_before, rows))
            banned = ragged([self.constraints.banned(output, self.eos) for output in before])
            want = replace(want, banned=banned)
        given = given_words([word for row in rows for word in forced_words(row)])
        return want if given is None else replace(want, given=given)

    def _accept(self, rows: list[Row], scores: Scores) -> list[Verdict]:
        verified = Verified(*self._best(rows, scores), self.eos, scores)
        accept = self.accept
        return [accept(row, verified) for row in rows]

    def _best(self, rows: list[Row], scores: Scores) -> tuple[list[int], list[float]]:
        """The word that greedy search outputs after each token of the pass, and its log-probability."""
        if not self.is_constrained:
            return scores.best.tolist(), scores.log_probs.tolist()
        before = [output for row in rows for output in outputs_before(row)]
        words, log_probs = self.constraints.best(scores, before, self.eos)
        if self.is_forcing and scores.given_log_probs is not None:
            given = scores.given_log_probs.tolist()
            for i, word in enumerate(word for row in rows for word in forced_words(row)):
                if word >= 0:
                    words[i], log_probs[i] = word, given[i]
        return words, log_probs

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
            row.last = tokens[-1]
            row.passes += 1
            if row.draft.tokens:
                row.drafted += len(row.draft.tokens)
                row.accepted += len(accepted)
                row.branches += branches(row, accepted)
            row.drafter_passes += row.draft.passes
            row.ended = row.last == eos or len(row.tokens) >= row.request.max_len

    def _commit(self, rows: list[Row], verdicts: list[Verdict], scores: Scores) -> None:
        """Keeps the cells of each row's last token before the pass and of what was accepted after it."""
        kept: list[int] = []
        for row, verdict in zip(rows, verdicts, strict=True):
            if not row.ended:
                kept.append(row.begin)
                if verdict.accepted:
                    kept += [row.begin + 1 + i for i in verdict.accepted]
        self.scorer.commit(scores, kept)
        self.pending = None

    def _leave(self, batch: Batch[Row]) -> Iterator[Result]:
        ended = batch.leave()
        if not ended:
            return
        if self.drafter is not None:
            self.drafter.stop([row.state for row in ended])
        now, early = perf_counter(), bool(batch.rows)
        for row in ended:
            phases, self.seconds = PhaseSeconds(*self.seconds), [0.0] * 4
            yield result_of(row, now, left_mid_batch=early, phases=phases)

    def _close(self, batch: Batch[Row]) -> None:
        try:
            if self.pending is not None:
                self.scorer.commit(self.pending, ())
        finally:
            states = [row.state for row in batch.rows if row.state is not None]
            batch.close()
            if states and self.drafter is not None:
                self.drafter.stop(states)


def branches(row: Row, accepted: Sequence[int]) -> int:
    """Accepted tokens that are not the first of those drafted after the one before."""
    parents = row.draft.parents
    return 0 if parents is None else sum(parents.index(parents[i]) != i for i in accepted)


def traced(row: Row, verdict: Verdict, margins: Sequence[float]) -> Iterator[TokenTrace]:
    """Where each token that a verdict outputs came from; margins [N] are the pass's."""
    nodes = [row.begin, *(row.begin + 1 + i for i in verdict.accepted)]
    parents = row.draft.parents
    for i, node in enumerate(nodes[: len(verdict.tokens)]):
        if len(row.tokens) + i < len(row.request.prefix):
            origin = "prefix"
        elif i < len(verdict.accepted):
            origin = "draft"
        else:
            at = node - row.begin - 1
            was_drafted = at + 1 < len(row.draft.tokens) if parents is None else at in parents
            origin = "rollback" if was_drafted else "verifier"
        yield TokenTrace(origin, row.passes + 1, margins[node])


def result_of(row: Row, now: float, *, left_mid_batch: bool, phases: PhaseSeconds) -> Result:
    """What a row that has ended gives."""
    hypothesis = Hypothesis(
        tokens=tuple(row.tokens),
        score=math.fsum(row.log_probs),
        positional_scores=tuple(row.log_probs),
        trace=tuple(row.trace) if row.trace else None,
    )
    return Result(
        index=row.request.index,
        hypotheses=(hypothesis,),
        seconds=now - row.started,
        passes=row.passes,
        drafted=row.drafted,
        accepted=row.accepted,
        drafter_passes=row.drafter_passes,
        branches=row.branches,
        left_mid_batch=left_mid_batch,
        phases=phases,
    )
