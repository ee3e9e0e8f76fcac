"""The sentences of a beam search: their hypotheses, in groups, and how a pass extends them.

Symbols: k hypotheses of a group, C candidates after each.
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
        total: The sum of its log-probabilities and of `added`, fp64.
        added: Scores that its log-probabilities leave out (`nartk.decoders.search.fusion`), nats.
        state: The drafter's.
    """

    total: float = 0.0
    added: float = 0.0
    state: State = None


class Candidates(NamedTuple):
    """The best continuations of a group's hypotheses, best first; totals of minus infinity are none.

    Attributes:
        totals: `Beam.total` of the output with the word.
        parents: Index of the hypothesis that each goes on.
        words, log_probs: Word that each adds, and its log-probability.
        added: Scores of the words that their log-probabilities leave out, nats.
    """

    totals: list[float]
    parents: list[int]
    words: list[int]
    log_probs: list[float]
    added: list[float]


class Ended(NamedTuple):
    """A hypothesis that has ended."""

    score: float
    tokens: list[int]
    log_probs: list[float]


@dataclass(frozen=True)
class Ranking:
    """Ranks hypotheses that have ended, and tells when a sentence is done.

    Attributes:
        k: Hypotheses of a group.
        ends: The words that end one.
        length_penalty: Scores are divided by length ** this.
        early_stopping: ``first``: the first k that end are given back, as fairseq's SequenceGenerator does;
            ``true``, ``false`` and ``never``: the k best of those that end, until there are k, until none
            that goes on scores better as long as it is, or as long as it may become, as Hugging Face's
            `generate` does (`_check_early_stop_heuristic` in generation/utils.py).
        counts_ended: True if a continuation that ends counts too where it is asked what may yet come, as
            group beam search of transformers 4.46 has it.
    """

    k: int
    ends: frozenset[int]
    length_penalty: float
    early_stopping: str
    counts_ended: bool = field(default=False, kw_only=True)

    def score(self, total: float, length: int) -> float:
        """The score of a hypothesis with a sum of log-probabilities."""
        norm: float = length**self.length_penalty
        return total / norm

    def kept(self, finished: Sequence[Ended], ended: Sequence[Ended]) -> list[Ended]:
        """Those that have ended before and now that may be given back."""
        found = [*finished, *ended]
        if self.early_stopping != "first":
            found.sort(key=attrgetter("score"), reverse=True)  # of equal ones the first
        return found[: self.k]

    def is_done(self, finished: Sequence[Ended], best: float, length: int, longest: int) -> bool:
        """Tells whether a group is done whose best hypothesis that goes on has a sum of `best`."""
        if len(finished) < self.k or self.early_stopping in ("first", "true"):
            return len(finished) == self.k
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = longest
        return self.score(best, length) <= min(each.score for each in finished)


@dataclass(slots=True, eq=False)
class BeamGroup:
    """Hypotheses of a sentence that are ranked among themselves.

    Attributes:
        request: The sentence's.
        before: Groups of the sentence whose words are chosen before.
        live: Hypotheses that go on, best first, all of one length.
        finished: The hypotheses that have ended and may be given back.
        ended: True if the search is done.
        states: States of the scores that are added, each of all of `live`; None: not read yet.
        parents: Index of the hypothesis that each of `live` comes from, if `states` are still of those.
    """

    request: Request
    before: Sequence[BeamGroup]
    live: list[Beam]
    finished: list[Ended] = field(default_factory=list)
    ended: bool = False
    states: list[object] | None = None
    parents: list[int] | None = None

    def extend(self, found: Candidates, ranking: Ranking) -> None:
        """Ends the hypotheses that reach eos or the limit, and keeps the k best of the others.

        Of the k best candidates those end that hold eos, or all at the limit; the first k that hold none go
        on.
        """
        before, k, ends, longest = self.live, ranking.k, ranking.ends, self.request.max_len
        live: list[Beam] = []
        parents: list[int] = []
        ended: list[Ended] = []
        length = len(before[0].tokens) + 1
        is_last = length >= longest
        for rank, (total, at, word, log_prob, added) in enumerate(zip(*found, strict=True)):
            if len(live) == k:
                break
            if total == -math.inf:
                continue
            parent = before[at]
            tokens, log_probs = [*parent.tokens, word], [*parent.log_probs, log_prob]
            added += parent.added
            if (word in ends or is_last) and rank < k:
                ended.append(Ended(ranking.score(math.fsum(log_probs) + added, length), tokens, log_probs))
            if word not in ends:
                parents.append(at)
                live.append(
                    Beam(
                        self.request,
                        parent.prompt,
                        tokens,
                        log_probs,
                        memory=parent.memory,
                        context=parent.context,
                        cells=parent.cells,
                        node=parent.node,
                        total=total,
                        added=added,
                        state=copy.copy(parent.state),
                    )
                )
        self.live, self.parents = live, parents
        self.finished = ranking.kept(self.finished, ended)
        self.ended = is_last or not live
        if not self.ended:
            best = found.totals[0] if ranking.counts_ended else max(beam.total for beam in live)
            self.ended = ranking.is_done(self.finished, best, length, longest)


@dataclass(slots=True, eq=False)
class BeamRow:
    """A sentence in the batch.

    Attributes:
        groups: Its hypotheses; without diverse beam search, one group.
        live: Those of all groups that go on, all of one length.
        contexts: Handles that are open.
        prompt: Tokens that its hypotheses begin after.
        chosen_at: The pass that chose the tokens at each position, from 1; 0: they were forced.
        ended: True if the search is done.
    """

    request: Request
    memory: int
    started: float
    groups: list[BeamGroup]
    live: list[Beam]
    contexts: list[int]
    prompt: Prompt
    chosen_at: list[int] = field(default_factory=list)
    ended: bool = False
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    def gather(self) -> None:
        """Takes over the words that the groups have chosen."""
        self.chosen_at.append(0 if self.live[0].closing >= 0 else self.passes)
        self.live = [beam for group in self.groups if not group.ended for beam in group.live]
        self.ended = not self.live

    def result(self, now: float, *, nbest: int, phases: PhaseSeconds, early: bool) -> Result:
        """Result of the sentence, when it has ended."""
        found = [
            Hypothesis(
                tokens=tuple(tokens),
                score=score,
                positional_scores=tuple(log_probs),
                trace=self._traced(len(tokens)) if self.request.trace else None,
            )
            for group in self.groups
            for score, tokens, log_probs in group.finished
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
