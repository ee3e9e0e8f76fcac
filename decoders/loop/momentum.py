"""Momentum decoding, in which repeated words pay (Lan et al. 2022, https://arxiv.org/abs/2212.02175).

Symbols: V words, p the model's probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.protocols.passes import FloatArray

# Resistance of a word by the length of the n-gram that it would repeat, in the authors' first release:
# github.com/gmftbyGMFTBY/MomentumDecoding, 2b58b6f, models/utlis_ngram.py. Later ones change the table.
RESISTANCE = (0.0, 1.0, 3.0, 4.0, 5.0, 6.0)
TOP = 5  # words that are compared, as the authors do
_LEAST = np.finfo(np.float32).min  # of a word that is not forbidden


@dataclass(frozen=True)
class Momentum:
    """Chooses among the likeliest words the one with the largest p less what it pays.

    A word pays `strength` times its resistance, which grows with the length of the n-gram that would recur.

    It differs from the authors' program in this: an output has a source, and the n-grams are of the output,
    its prefix included, and not of the source or the start token. Words that other rules forbid are not
    compared, and probabilities are of those that are left, behind a repetition penalty; both are computed in
    fp64. Of equal words the lowest id is the first.

    Attributes:
        strength: The paper's alpha, at least 0; 0: greedy search.
        top: Number of likeliest words that are compared, the paper's k, at least 1.
    """

    strength: float = 0.0
    top: int = TOP

    def best(self, logits: FloatArray, output: Sequence[int]) -> int:
        """The word that follows an output by logits [V]; minus infinity is that of forbidden words."""
        count = min(self.top, len(logits))
        words = np.flatnonzero(logits >= max(np.partition(logits, -count)[-count], _LEAST))
        words = words[np.argsort(-logits[words], kind="stable")[:count]]  # of equal ones the first
        if not len(words):
            return 0
        weights = np.exp(logits.astype(np.float64) - logits[words[0]])
        cost = [RESISTANCE[recurring(output, word)] for word in words.tolist()]
        scores = weights[words] / weights.sum() - self.strength * np.array(cost)
        return int(words[scores.argmax()])


GREEDY = Momentum()


def recurring(output: Sequence[int], word: int) -> int:
    """Length of the longest n-gram that a word ends behind an output and that the output has already.

    0: the output does not hold the word. No n-gram is longer than the table has resistances.
    """
    longest, found = len(RESISTANCE) - 1, 0
    for end, each in enumerate(output):
        if each == word:
            length = 1
            while length < min(longest, end + 1) and output[end - length] == output[-length]:
                length += 1
            found = max(found, length)
    return found
