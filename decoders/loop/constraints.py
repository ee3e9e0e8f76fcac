"""What an output must begin with, must not hold, or pays for: the same for greedy, beam search and sampling.

Every rule looks at the output before a token alone, never at a draft or at other rows, so that drafts change
nothing. Symbols: N verified tokens, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nartk.decoders.loop.packing import levels_of
from nartk.decoders.loop.rows import Row
from nartk.passes import FloatArray, Ragged, Scores, Want


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
    def are_banning(self) -> bool:
        return bool(self.min_len > 1 or self.suppressed or self.forbidden)

    @property
    def are_penalizing(self) -> bool:
        return self.repetition_penalty != 1.0

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
        penalty, before = np.float32(self.repetition_penalty), logits[repeated]
        found = logits.copy()
        found[repeated] = np.where(before > 0, before / penalty, before * penalty)
        return found

    def best(self, logits: FloatArray, output: Sequence[int], eos: int) -> tuple[int, float]:
        """The best word after an output by its logits [V], and its log-probability under the model itself."""
        found = self.penalize(logits, output)
        found[self.banned(output, eos)] = -np.inf
        word = int(found.argmax())  # of equal ones the first
        return word, log_prob(logits, word)


def log_prob(logits: FloatArray, word: int) -> float:
    """The log-probability of a word under logits [V], computed in fp64."""
    precise = logits.astype(np.float64)
    precise -= precise.max()
    return float(precise[word] - np.log(np.exp(precise).sum()))


@dataclass(frozen=True)
class RowConstraints:
    """The rules, and the prefixes of rows that draft and verify.

    Attributes:
        eos: The word that ends an output.
        are_forcing: Whether a request of the run has a prefix.
        reads_drafts: Whether log-probabilities of drafted chains are read, for acceptances that compare them:
            `Scores.given_log_probs` before each drafted token, where no prefix forces another.
    """

    rules: Constraints
    eos: int
    are_forcing: bool
    reads_drafts: bool = field(default=False, kw_only=True)

    @property
    def are_none(self) -> bool:
        """Whether there is nothing to keep to."""
        rules = self.rules
        return not (self.are_forcing or self.reads_drafts or rules.are_banning or rules.are_penalizing)

    def want(self, want: Want, rows: Sequence[Row]) -> Want:
        """What is wanted of a pass, so that `words` can be read of it."""
        if self.rules.are_banning:
            outputs = (output for row in rows for output in outputs_before(row))
            banned = Ragged.of([self.rules.banned(output, self.eos) for output in outputs])
            want = replace(want, banned=banned)
        if self.are_forcing or self.reads_drafts:
            words_of = given_words if self.reads_drafts else forced_words
            given = [word for row in rows for word in words_of(row)]
            want = replace(want, given=np.array(given, np.int32))
        return want

    def words(self, scores: Scores, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
        """The word [N] that is output after each token of a pass, and its log-probability."""
        words, log_probs = self.chosen(scores, rows)
        if self.are_forcing:
            assert scores.given_log_probs is not None
            given = scores.given_log_probs.tolist()
            for i, word in enumerate(word for row in rows for word in forced_words(row)):
                if word >= 0:
                    words[i], log_probs[i] = word, given[i]
        return words, log_probs

    def chosen(self, scores: Scores, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
        """The same where no prefix forces one: the best words."""
        words, log_probs = scores.best.tolist(), scores.log_probs.tolist()
        if self.rules.are_penalizing:
            outputs = [output for row in rows for output in outputs_before(row)]
            logits = scores.rows(range(len(outputs)))
            for i, output in enumerate(outputs):
                words[i], log_probs[i] = self.rules.best(logits[i], output, self.eos)
        return words, log_probs


def outputs_before(row: Row) -> list[list[int]]:
    """The output that each verified token of a row ends, one for each: the word scored there follows it."""
    outputs = [row.tokens]
    parents = row.draft.parents
    for i, token in enumerate(row.draft.tokens):
        before = i - 1 if parents is None else parents[i]
        outputs.append([*outputs[before + 1], token])
    return outputs


def forced_words(row: Row) -> list[int]:
    """The word of the request's prefix after each verified token of a row, -1 behind its end."""
    prefix, done, count = row.request.prefix, len(row.tokens), len(row.draft.tokens)
    if done >= len(prefix):
        return [-1] * (1 + count)
    return [prefix[done + level] if done + level < len(prefix) else -1 for level in levels_of(row)]


def given_words(row: Row) -> list[int]:
    """The same, and behind the prefix the drafted token that follows each verified one of a chain."""
    drafted = [*row.draft.tokens, -1]
    return [token if word < 0 else word for word, token in zip(forced_words(row), drafted, strict=True)]
