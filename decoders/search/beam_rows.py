"""The sentences of a beam search: their hypotheses, and how a pass extends them.

Symbols: k hypotheses of a sentence, C candidates after each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from nartk.decoders.loop.drafter import State
from nartk.decoders.loop.prompting import Prompt
from nartk.decoders.loop.rows import Known
from nartk.protocols.hypothesis import Hypothesis, PhaseSeconds, Request, Result, TokenTrace


@dataclass(slots=True, eq=False, kw_only=True)
class Beam(Known):
    """A hypothesis that goes on.

    While a pass is read, `context` is that of the hypothesis which it comes from, and `node` the scored token
    that predicts what follows.

    Attributes:
        total: The sum of its log-probabilities, fp64, less what the search makes it pay.
        paid: Penalty that it pays, nats.
        state: The drafter's.
    """

    total: float = 0.0
    paid: float = 0.0
    state: State = None


class Candidates(NamedTuple):
    """The best continuations of a sentence's hypotheses, best first; totals of minus infinity are none.

    Attributes:
        totals: Log-probability of the output with the word, less what it pays.
        parents: Index of the hypothesis that each goes on.
        words, log_probs: Word that each adds, and its log-probability.
        paid: Penalty of each word, nats.
    """

    totals: list[float]
    parents: list[int]
    words: list[int]
    log_probs: list[float]
    paid: list[float]


class Ended(NamedTuple):
    """A hypothesis that has ended."""

    score: float
    tokens: list[int]
    log_probs: list[float]


@dataclass(frozen=True)
class Ranking:
    """Ranks hypotheses that have ended, and tells when a sentence is done.

    Attributes:
        k: Hypotheses of a sentence.
        ends: The words that end one.
        length_penalty: Scores are divided by length ** this.
        early_stopping: ``first``: the first k that end are given back, as fairseq's SequenceGenerator does;
            ``true``, ``false`` and ``never``: the k best of those that end, until there are k, until none
            that goes on scores better as long as it is, or as long as it may become, as Hugging Face's
            `generate` does (`_check_early_stop_heuristic` in generation/utils.py).
    """

    k: int
    ends: frozenset[int]
    length_penalty: float
    early_stopping: str

    def score(self, total: float, length: int) -> float:
        """The score of a hypothesis with a sum of log-probabilities."""
        return total / length**self.length_penalty

    def kept(self, finished: Sequence[Ended], ended: Sequence[Ended]) -> list[Ended]:
        """Those that have ended before and now that may be given back."""
        found = [*finished, *ended]
        if self.early_stopping != "first":
            found.sort(key=attrgetter("score"), reverse=True)  # of equal ones the first
        return found[: self.k]

    def is_done(self, finished: Sequence[Ended], best: float, length: int, longest: int) -> bool:
        """Tells whether a sentence is done whose best hypothesis that goes on has a sum of `best`."""
        if len(finished) < self.k or self.early_stopping in ("first", "true"):
            return len(finished) == self.k
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = longest
        return self.score(best, length) <= min(each.score for each in finished)


@dataclass(slots=True, eq=False)
class BeamRow:
    """A sentence in the batch.

    Attributes:
        live: Hypotheses that go on, best first, all of one length.
        contexts: Handles that are open.
        prompt: Tokens that its hypotheses begin after.
        finished: The hypotheses that have ended and may be given back.
        chosen_at: The pass that chose the tokens at each position, from 1; 0: they were forced.
        ended: True if the search is done.
    """

    request: Request
    memory: int
    started: float
    live: list[Beam]
    contexts: list[int]
    prompt: Prompt
    finished: list[Ended] = field(default_factory=list)
    chosen_at: list[int] = field(default_factory=list)
    ended: bool = False
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    def extend(self, found: Candidates, ranking: Ranking) -> None:
        """Ends the hypotheses that reach eos or the limit, and keeps the k best of the others.

        Of the k best candidates those end that hold eos, or all at the limit; the first k that hold none go
        on.
        """
        parents, k, ends = self.live, ranking.k, ranking.ends
        live: list[Beam] = []
        ended: list[Ended] = []
        length = len(parents[0].tokens) + 1
        is_last = length >= self.request.max_len
        for rank, (total, at, word, log_prob, paid) in enumerate(zip(*found, strict=True)):
            if total == -math.inf or len(live) == k:
                break
            parent = parents[at]
            tokens, log_probs = [*parent.tokens, word], [*parent.log_probs, log_prob]
            paid += parent.paid
            if (word in ends or is_last) and rank < k:
                ended.append(Ended(ranking.score(math.fsum(log_probs) - paid, length), tokens, log_probs))
            if word not in ends:
                live.append(
                    Beam(
                        self.request,
                        parent.prompt,
                        tokens,
                        log_probs,
                        memory=self.memory,
                        context=parent.context,
                        cells=parent.cells,
                        node=parent.node,
                        total=total,
                        paid=paid,
                        state=copy.copy(parent.state),
                    )
                )
        self.live = live
        self.chosen_at.append(0 if parents[0].closing >= 0 else self.passes)
        self.finished = ranking.kept(self.finished, ended)
        self.ended = (
            is_last or not live or ranking.is_done(self.finished, live[0].total, length, self.request.max_len)
        )

    def result(self, now: float, *, nbest: int, phases: PhaseSeconds, early: bool) -> Result:
        """Result of the sentence, when it has ended."""
        found = [
            Hypothesis(
                tokens=tuple(tokens),
                score=score,
                positional_scores=tuple(log_probs),
                trace=self._traced(len(tokens)) if self.request.trace else None,
            )
            for score, tokens, log_probs in self.finished
        ]
        found.sort(key=attrgetter("score"), reverse=True)
        return Result(
            index=self.request.index,
            hypotheses=tuple(found[:nbest]),
            seconds=now - self.started,
            passes=self.passes,
            drafted=self.drafted,
            accepted=self.accepted,
            left_mid_batch=early,
            phases=phases,
            prompt=self.prompt.tokens,
            no_speech=self.prompt.no_speech,
        )

    def _traced(self, length: int) -> tuple[TokenTrace, ...]:
        """A token was drafted if the pass that chose it also chose what follows it."""
        chosen_at: Sequence[int] = self.chosen_at
        follows = [*chosen_at[1:length], 0]
        return tuple(
            TokenTrace("prefix", 0, None)
            if not chosen_at[i]
            else TokenTrace("draft" if chosen_at[i] == after else "verifier", chosen_at[i], None)
            for i, after in enumerate(follows)
        )
