"""Contrastive search over passes: score the likeliest words, choose the one least like the output so far.

Symbols: k candidates of a sentence, n scored tokens of a pass, V words, D features, t tokens before a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt

from nartk.decoders.loop.constraints import RowConstraints
from nartk.decoders.loop.packing import pack
from nartk.decoders.loop.prompting import Prompt
from nartk.decoders.loop.results import result_of
from nartk.decoders.loop.rows import Known, Row, RowRun
from nartk.protocols.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.protocols.passes import FloatArray, PassScorer, Scores, Want
from nartk.protocols.runs import ACCEPT, VERIFY, Batching

_Wide = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False, kw_only=True)
class Candidate(Known):
    """An output with one word more, which a pass scores; or a new one, with what is forced.

    Attributes:
        prob: Probability of the word.
        log_prob: The word's log-probability under the model, nats.
    """

    prob: float = 1.0
    log_prob: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class ContrastiveRow(Row):
    """A sentence in the batch.

    Attributes:
        candidates: Words that the next pass scores; their tokens follow the cells of the row's context.
        features: Features of the output so far, start token and prompt included, each of length 1: [t,D].
    """

    candidates: list[Candidate] = field(default_factory=list)
    features: list[_Wide] = field(default_factory=list)


class ContrastiveSearch(RowRun[ContrastiveRow]):
    """Implements `nartk.protocols.runs.Run`: a row of the batch is a request.

    Args:
        constraints: Rules of outputs.
        top_k: k, at least 1.
        penalty_alpha: Weight of the likeness, 0 to 1; of the probability it is what is left to 1.
    """

    def __init__(
        self,
        scorer: PassScorer,
        constraints: RowConstraints,
        batching: Batching,
        *,
        top_k: int,
        penalty_alpha: float,
    ) -> None:
        super().__init__(scorer, batching)
        self.constraints, self.alpha, self.ends = constraints, penalty_alpha, scorer.vocab.ends
        self.k = min(top_k, len(scorer.vocab)) if penalty_alpha else 1
        self.wanted = Want(top=self.k, hidden=self.k > 1)

    def admit(self, request: Request) -> None:
        super().admit(request)
        self.constraints = self.constraints.including(request)

    def _row(self, request: Request, prompt: Prompt, memory: int, context: int, now: float) -> ContrastiveRow:
        row = ContrastiveRow(
            request, prompt.tokens, memory=memory, context=context, started=now, no_speech=prompt.no_speech
        )
        self.constraints.begin(row)
        row.candidates = [
            Candidate(
                request,
                prompt.tokens,
                row.tokens,
                memory=memory,
                context=context,
                pending=row.pending,
                closing=row.closing,
            )
        ]
        return row

    def _step(self, rows: list[ContrastiveRow]) -> None:
        scored = [each for row in rows for each in row.candidates]
        packed = pack(scored)
        want = self.constraints.want(Want(packed.only, top=self.k, hidden=self.k > 1), scored)
        self.clock.lap(ACCEPT)
        scores = self.scorer.run(packed.work, want)
        self.clock.lap(VERIFY)
        left = self.constraints.left(scores, want, scored)
        kept: list[int] = []
        chosen: list[Candidate] = []
        for row in rows:
            row.passes += 1
            best = self._begun(row, left) if not row.cells else self._chosen(row, left)
            chosen.append(best)
            kept += range(best.begin, best.end + 1)
            row.cells += best.end + 1 - best.begin
            if self.k > 1:
                nodes = slice(best.node - best.pending, best.node + 1)
                row.features += [*_of_length_1(scores.hidden[nodes])]
        self._extend(rows, chosen, scored, left)
        ended = {row.context for row in rows if row.ended}
        self.scorer.commit(scores, [i for i in kept if packed.work.contexts[i] not in ended])
        self.clock.lap(ACCEPT)

    def _begun(self, row: ContrastiveRow, scores: Scores) -> Candidate:
        """Reads the log-probabilities of what a new output is forced to begin with."""
        (first,) = row.candidates
        if row.pending:
            row.log_probs, row.pending = self.constraints.known(first, scores), 0
        row.trace += [TokenTrace("prefix", 1, None)] * len(row.log_probs)
        return first

    def _chosen(self, row: ContrastiveRow, scores: Scores) -> Candidate:
        """Lets the output go on with the best of the words that were scored."""
        best = row.candidates[0]
        if len(row.candidates) > 1:
            probs = np.array([each.prob for each in row.candidates])
            new = _of_length_1(scores.hidden[[each.node for each in row.candidates]])
            likeness = np.einsum("kd,td->kt", new, np.array(row.features)).max(1)  # no BLAS, whose sums vary
            best = row.candidates[int(((1 - self.alpha) * probs - self.alpha * likeness).argmax())]
        self._take(row, best)
        return best

    def _take(self, row: ContrastiveRow, best: Candidate) -> None:
        row.tokens = best.tokens
        row.log_probs.append(best.log_prob)
        origin = "verifier" if row.closing < 0 else "prefix"
        row.trace.append(TokenTrace(origin, row.passes, None))
        length = len(row.tokens)
        row.ended = best.tokens[-1] in self.ends or length >= row.request.max_len or row.closing >= 0

    def _extend(
        self,
        rows: Sequence[ContrastiveRow],
        chosen: Sequence[Candidate],
        scored: Sequence[Candidate],
        scores: Scores,
    ) -> None:
        """Makes the candidates that follow the chosen ones; a word that is the only one and ends is taken."""
        at = [each.node for each in chosen]
        found = self._words(scores, scored, at)
        for row, (words, probs, log_probs) in zip(rows, found, strict=True):
            if row.ended:
                continue
            row.candidates = [
                Candidate(
                    row.request,
                    row.prompt,
                    [*row.tokens, word],
                    memory=row.memory,
                    context=row.context,
                    cells=row.cells,
                    prob=prob,
                    log_prob=log_prob,
                )
                for word, prob, log_prob in zip(words, probs, log_probs, strict=True)
            ]
            last = len(row.tokens) + 1 >= row.request.max_len
            is_fixed = len(row.candidates) == 1 and (last or words[0] in self.ends or row.closing >= 0)
            if (
                is_fixed or row.cells >= self.scorer.limits.target
            ):  # the last word has no position to be scored at
                self._take(row, row.candidates[0])

    def _words(
        self, scores: Scores, scored: Sequence[Candidate], at: Sequence[int]
    ) -> list[tuple[list[int], list[float], list[float]]]:
        """The k best words behind scored tokens, their probabilities, and their own log-probabilities."""
        penalized = {
            i: rules.ranked(logits, output, banned, self.k)
            for i, logits, output, banned, rules in self.constraints.penalized(scores, scored)
        }
        forced = {i: ([word], [1.0], [each]) for i, word, each in self.constraints.forced(scores, scored)}
        found = []
        for i in at:
            words, log_probs = scores.top[i].tolist(), scores.top_log_probs[i].tolist()
            count = max(sum(word >= 0 for word in words), 1)
            plain = words[:count], [math.exp(each) for each in log_probs[:count]], log_probs[:count]
            found.append(forced.get(i) or penalized.get(i) or plain)
        return found

    def _result(self, row: ContrastiveRow, *, early: bool) -> Result:
        if not row.request.trace:
            row.trace.clear()
        return result_of(row, perf_counter(), left_mid_batch=early, phases=self.clock.take())

    def _so_far(self, row: ContrastiveRow) -> Hypothesis:
        count = len(row.log_probs)  # of a forced prefix that was not scored yet there are none
        return Hypothesis(tuple(row.tokens[:count]), math.fsum(row.log_probs), tuple(row.log_probs))


def _of_length_1(features: FloatArray) -> _Wide:
    """Features [n,D] divided by their Euclidean norms; those of zeros stay zeros."""
    wide = features.astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))[:, None]
    found: _Wide = wide / np.where(norms > 0, norms, 1.0)
    return found
