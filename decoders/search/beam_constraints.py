"""Words that constraints leave after each hypothesis, and their log-probabilities.

Symbols: n scored tokens of a pass, C candidates after each, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.decoders.loop.constraints import Constraints, RowConstraints
from nartk.decoders.loop.rows import Known
from nartk.protocols.passes import FloatArray, IntArray, Scores


@dataclass(frozen=True)
class BeamConstraints(RowConstraints):
    """The rules and prefixes of hypotheses, as Hugging Face's `generate` has them in beam search.

    Attributes:
        is_greedy: True if a sentence has one hypothesis: greedy search's.
    """

    is_greedy: bool

    def candidates(self, scores: Scores, rows: Sequence[Known]) -> tuple[IntArray, FloatArray]:
        """The best words [n,C] after each token of a pass, and their log-probabilities.

        What is forced is the only one. A repetition penalty multiplies log-probabilities.
        """
        top, log_probs = scores.top.copy(), scores.top_log_probs.copy()
        if self.is_greedy:
            top[:, 0], log_probs[:, 0] = self.words(scores, rows)
            log_probs[:, 1:] = -np.inf
            return top, log_probs
        for i, logits, output, banned, rules in self.penalized(scores, rows, all_rows=self.renormalize):
            top[i], log_probs[i] = self._left(logits, output, banned, rules, top[i])
        for i, word, log_prob in self.forced(scores, rows):
            log_probs[i] = -np.inf
            top[i, 0], log_probs[i, 0] = word, log_prob
        return top, log_probs

    def _left(
        self,
        logits: FloatArray,
        output: Sequence[int],
        banned: Sequence[int],
        rules: Constraints,
        top: IntArray,
    ) -> tuple[IntArray, FloatArray]:
        """The best words [C] by logits [V] after the start token and an output; `top` are the model's."""
        found = logits
        if rules.are_penalizing:
            found = rules.penalize(logits - _log_sum_exp(logits), output)
        found = found.copy()
        found[[*banned]] = -np.inf
        if rules.are_penalizing:
            top = np.argsort(-found, kind="stable")[: len(top)].astype(np.int32)  # of equal ones the first
        log_probs = np.where(top < 0, np.float32(-np.inf), found[top])
        return top, log_probs - _log_sum_exp(found) if self.renormalize else log_probs


def _log_sum_exp(values: FloatArray) -> np.float32:
    """The logarithm of the sum of exp of values [V], summed in fp64."""
    most = values.max()
    return np.float32(most + np.log(np.exp(values - most).sum(dtype=np.float64)))
