"""What an output must begin with, must not hold, or pays for: the same for greedy, beam search and sampling.

Every rule looks at the output before a token alone, never at a draft or at other rows, so that drafts change
nothing. Symbols: N verified tokens, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.decoders.loop.rows import Row
from nartk.passes import ROOT, FloatArray, IntArray, Ragged, Scores


@dataclass(frozen=True)
class Constraints:
    """Rules for outputs. A forced prefix, which each request has of its own, goes before all of them.

    Attributes:
        min_len: Shortest output, tokens with eos; 0: any.
        repetition_penalty: Logits of words that the output holds are divided by it where they are above 0 and
            multiplied elsewhere (Keskar et al. 2019, arXiv:1909.05858, section 4.1); 1: none.
        suppressed: Words that are never output.
        forbidden: Sequences of words that no output holds, none empty.
    """

    min_len: int = 0
    repetition_penalty: float = 1.0
    suppressed: tuple[int, ...] = ()
    forbidden: tuple[tuple[int, ...], ...] = ()

    @property
    def is_banning(self) -> bool:
        return bool(self.min_len > 1 or self.suppressed or self.forbidden)

    @property
    def needs_outputs(self) -> bool:
        """Whether a rule looks at the words of an output."""
        return self.is_banning or self.repetition_penalty != 1.0

    def banned(self, output: Sequence[int], eos: int) -> list[int]:
        """The words that may not follow an output."""
        words = list(self.suppressed)
        if len(output) + 1 < self.min_len:
            words.append(eos)
        for *before, last in self.forbidden:
            if not before or list(output[-len(before) :]) == before:
                words.append(last)
        return words

    def penalize(self, logits: FloatArray, output: Sequence[int]) -> FloatArray:
        """Logits [V] after an output, with what it pays for repeating itself."""
        repeated = np.unique(np.array(output, np.int64))
        penalty = np.float32(self.repetition_penalty)
        found = logits.copy()
        found[repeated] = np.where(
            logits[repeated] > 0, logits[repeated] / penalty, logits[repeated] * penalty
        )
        return found

    def best(
        self, scores: Scores, outputs: Sequence[Sequence[int]], eos: int
    ) -> tuple[list[int], list[float]]:
        """The best words [N] after outputs, and their log-probabilities under the model itself."""
        if self.repetition_penalty == 1.0:
            return scores.best.tolist(), scores.log_probs.tolist()
        words, log_probs = [], []
        for logits, output in zip(scores.rows(range(len(outputs))), outputs, strict=True):
            penalized = self.penalize(logits, output)
            penalized[self.banned(output, eos)] = -np.inf
            word = int(penalized.argmax())  # of equal ones the first
            words.append(word)
            log_probs.append(log_prob(logits, word))
        return words, log_probs


def log_prob(logits: FloatArray, word: int) -> float:
    """The log-probability of a word under logits [V], computed in fp64."""
    precise = logits.astype(np.float64)
    highest = precise.max()
    return float(precise[word] - highest - np.log(np.exp(precise - highest).sum()))


def ragged(lists: Sequence[Sequence[int]]) -> Ragged | None:
    """The lists as one; None where all are empty."""
    return Ragged.of(lists) if any(lists) else None


def outputs_before(row: Row) -> list[list[int]]:
    """The output that each verified token of a row ends, one for each: the word scored there follows it."""
    outputs = [row.tokens]
    parents = row.draft.parents
    for i, token in enumerate(row.draft.tokens):
        before = i - 1 if parents is None else parents[i]
        outputs.append([*outputs[before + 1], token])
    return outputs


def forced_words(row: Row) -> list[int]:
    """The word of the request's prefix after each verified token of a row; `ROOT` (-1) behind its end."""
    prefix, done = row.request.prefix, len(row.tokens)
    count = 1 + len(row.draft.tokens)
    if done >= len(prefix):
        return [-1] * count
    if row.draft.parents is None:
        inside = list(prefix[done : done + count])
        return inside + [-1] * (count - len(inside))
    depths = [done, *(done + depth for depth in levels(row.draft.parents))]
    return [prefix[depth] if depth < len(prefix) else -1 for depth in depths]


def levels(parents: Sequence[int]) -> list[int]:
    """How many drafted tokens lie on the way to each of a tree's, itself included."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return found


def given_words(words: Sequence[int]) -> IntArray | None:
    """What `Want.given` is to hold; None where nothing is forced."""
    return np.array(words, np.int32) if max(words) >= 0 else None
