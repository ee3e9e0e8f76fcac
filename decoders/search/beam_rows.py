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

from nartk.decoders.loop.drafter import Draft, State
from nartk.hypothesis import Hypothesis, PhaseSeconds, Request, Result, TokenTrace

_NOTHING = Draft()


@dataclass(slots=True, eq=False)
class Beam:
    """A hypothesis that goes on.

    Attributes:
        tokens, log_probs: The output so far and its log-probabilities.
        total: Their sum, fp64.
        memory: Handle of the encoded source.
        context: Handle of its cells; while a pass is read, that of the hypothesis which it comes from.
        cells: Tokens that the context holds, the start token among them.
        node: While a pass is read: the scored token of the pass that predicts what follows.
        draft: What follows the output in the pass in progress.
        state: The drafter's.
    """

    request: Request
    tokens: list[int]
    log_probs: list[float]
    total: float
    memory: int
    context: int
    cells: int = 0
    node: int = 0
    draft: Draft = _NOTHING
    state: State = None


class Candidates(NamedTuple):
    """The best continuations of a sentence's hypotheses, best first; totals of minus infinity are none.

    Attributes:
        totals: Log-probability of the output with the word.
        parents: Index of the hypothesis that each goes on.
        words, log_probs: What each adds.
    """

    totals: list[float]
    parents: list[int]
    words: list[int]
    log_probs: list[float]


@dataclass(slots=True, eq=False)
class BeamRow:
    """A sentence in the batch.

    Attributes:
        live: Hypotheses that go on, best first, all of one length.
        contexts: Handles that are open.
        finished: Tokens and log-probabilities of the hypotheses that have ended.
        chosen_at: The pass that chose the tokens at each position, from 1.
        ended: Whether the search is done.
    """

    request: Request
    memory: int
    started: float
    live: list[Beam]
    contexts: list[int]
    finished: list[tuple[list[int], list[float]]] = field(default_factory=list)
    chosen_at: list[int] = field(default_factory=list)
    ended: bool = False
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    def extend(self, found: Candidates, k: int, eos: int) -> None:
        """Ends the hypotheses that reach eos or the limit, and keeps the k best of the others.

        Of the k best candidates those end that hold eos, or all at the limit; the first k that hold none go
        on. The rules of fairseq's SequenceGenerator, but for the limit, where it adds an eos.
        """
        parents = self.live
        live: list[Beam] = []
        is_last = len(parents[0].tokens) + 1 >= self.request.max_len
        for rank, (total, at, word, log_prob) in enumerate(zip(*found, strict=True)):
            if total == -math.inf or len(live) == k:
                break
            parent = parents[at]
            tokens, log_probs = [*parent.tokens, word], [*parent.log_probs, log_prob]
            if (word == eos or is_last) and rank < k and len(self.finished) < k:
                self.finished.append((tokens, log_probs))
            if word != eos:
                live.append(
                    Beam(
                        self.request,
                        tokens,
                        log_probs,
                        total,
                        self.memory,
                        parent.context,
                        parent.cells,
                        parent.node,
                        _NOTHING,
                        copy.copy(parent.state),
                    )
                )
        self.live = live
        self.chosen_at.append(self.passes)
        self.ended = len(self.finished) == k or is_last or not live

    def result(
        self, now: float, *, length_penalty: float, nbest: int, trace: bool, phases: PhaseSeconds, early: bool
    ) -> Result:
        """What it gives, when it has ended."""
        found = [
            Hypothesis(
                tokens=tuple(tokens),
                score=math.fsum(log_probs) / len(tokens) ** length_penalty,
                positional_scores=tuple(log_probs),
                trace=self._traced(len(tokens)) if trace else None,
            )
            for tokens, log_probs in self.finished
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
        )

    def _traced(self, length: int) -> tuple[TokenTrace, ...]:
        """A token was drafted if the pass that chose it also chose what follows it."""
        chosen_at: Sequence[int] = self.chosen_at
        follows = [*chosen_at[1:length], 0]
        return tuple(
            TokenTrace("prefix", 0, None)
            if i < len(self.request.prefix)
            else TokenTrace("draft" if chosen_at[i] == after else "verifier", chosen_at[i], None)
            for i, after in enumerate(follows)
        )
