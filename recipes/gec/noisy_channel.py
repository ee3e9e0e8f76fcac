"""Chooses among suggestions for a misspelling by the words beside it and by how people misspell.

Counts of words and pairs of words say what is probable between two neighbours, and edits of letters in pairs
of a misspelling and its word, how probable it is that one was written for the other.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

PAIRED = 0.7  # weight of a pair's frequency beside the word's own
LISTED = 0.5  # weight of a word's frequency in the list of suggestions beside its count in text
UNKNOWN, WEIGHT, STRANGE = -22.0, 1.0, 3.0  # fitted to UD EWT train
_TOKEN = re.compile(r"n't|'\w+|\w+?(?=n't)|\w+|[^\w\s]")


@dataclass(frozen=True)
class Suggestion:
    """A word for another one.

    Attributes:
        distance: Letters in which they differ.
        frequency: Number of times that it was counted.
    """

    word: str
    distance: int
    frequency: int


Suggest = Callable[[str], Sequence[Suggestion]]
# Chooses a suggestion for a word between two texts, or none.
Choose = Callable[[str, str, str, Sequence[Suggestion]], Suggestion | None]


class Counts:
    """Counts of words and pairs of words of text, in small letters."""

    def __init__(self, lines: Iterable[Sequence[str]]) -> None:
        self.singles, self.pairs = Counter[str](), Counter[tuple[str, str]]()
        for tokens in lines:
            lower = [token.lower() for token in tokens]
            self.singles.update(lower)
            self.pairs.update(pairwise(["", *lower]))
            self.singles[""] += 1
        self.total = self.singles.total()


class Channel:
    """Probabilities of misspellings by their letters, counted in codespell's list.

    Each edit of a letter has the probability with which the list's words have it, given the letter before:
    a simple case of Church and Gale 1991, "Probability scoring for spelling correction".
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        edits_, letters = Counter[tuple[str, str, str]](), Counter[str]()
        for wrong, right in pairs:
            letters.update(f"^{right}")
            letters.update(map("".join, pairwise(f"^{right}")))
            edits_.update(letter_edits(right, wrong))
        self._edits, self._letters = edits_, letters

    @lru_cache(maxsize=500_000)  # noqa: B019
    def log_probability(self, wrong: str, right: str) -> float:
        """Log-probability of writing one word for another, in nats."""
        total = 0.0
        for before, old, new in letter_edits(right, wrong):
            seen = self._letters[before + old[:1]] if old else self._letters[before]
            total += math.log((self._edits[before, old, new] + 0.1) / (seen + 30))
        return total


def letter_edits(right: str, wrong: str) -> list[tuple[str, str, str]]:
    """The fewest edits of letters that turn a word into another: the letter before, old and new letters.

    Damerau 1964: a letter is put in, left out or replaced, or two neighbours change places.
    """
    rows, columns = len(right) + 1, len(wrong) + 1
    cost = [[i + j if not i * j else 0 for j in range(columns)] for i in range(rows)]
    for i in range(1, rows):
        for j in range(1, columns):
            cost[i][j] = min(
                cost[i - 1][j - 1] + (right[i - 1] != wrong[j - 1]), cost[i - 1][j] + 1, cost[i][j - 1] + 1
            )
            if _swapped(right, wrong, i, j):
                cost[i][j] = min(cost[i][j], cost[i - 2][j - 2] + 1)
    found, i, j = [], rows - 1, columns - 1
    while i or j:
        if i and j and right[i - 1] == wrong[j - 1] and cost[i][j] == cost[i - 1][j - 1]:
            i, j = i - 1, j - 1
            continue
        here = cost[i][j] - 1
        m, n = next(
            (m, n)
            for m, n in ((2, 2), (1, 1), (1, 0), (0, 1))
            if m <= i and n <= j and cost[i - m][j - n] == here and (m < 2 or _swapped(right, wrong, i, j))
        )
        i, j = i - m, j - n
        found.append((right[i - 1] if i else "^", right[i : i + m], wrong[j : j + n]))
    return found


def _swapped(right: str, wrong: str, i: int, j: int) -> bool:
    return (
        i > 1 and j > 1 and right[i - 2 : i] == wrong[j - 1] + wrong[j - 2] and right[i - 1] != right[i - 2]
    )


@dataclass(frozen=True)
class InContext:
    """Chooses by the probability of a suggestion between its neighbours and that of the misspelling.

    A noisy channel (Kernighan, Church and Gale 1990, "A spelling correction program based on a noisy channel
    model"). The word stays where no suggestion is more probable than an unknown word.

    Attributes:
        total: Sum of the suggestions' frequencies in their list.
        unknown: Log-probability of a word that no list has, nats.
        weight: Weight of the channel.
        strange: Added to `unknown` for words with a capital, nats.
    """

    counts: Counts
    total: int
    channel: Channel
    unknown: float = UNKNOWN
    weight: float = WEIGHT
    strange: float = STRANGE

    def __call__(self, word: str, before: str, after: str, found: Sequence[Suggestion]) -> Suggestion | None:
        scored = self._scored(word, before, after, found)
        least = self.unknown + (self.strange if word[:1].isupper() else 0.0)
        score, best = max(scored, key=lambda pair: pair[0])
        return best if score > least else None

    def ranked(self, word: str, before: str, after: str, found: Sequence[Suggestion]) -> list[Suggestion]:
        """Suggestions, the most probable first."""
        return [
            each for _, each in sorted(self._scored(word, before, after, found), key=lambda pair: -pair[0])
        ]

    def _scored(
        self, word: str, before: str, after: str, found: Sequence[Suggestion]
    ) -> list[tuple[float, Suggestion]]:
        left, right = (_TOKEN.findall(text.lower()) for text in (before[-40:], after[:40]))
        singles, total = self.counts.singles, self.counts.total

        def pair(one: str, other: str, own: float) -> float:
            beside = self.counts.pairs[one, other] / singles[one] if singles[one] else own
            return math.log(PAIRED * beside + (1 - PAIRED) * own)

        def score(each: Suggestion) -> float:
            inner = each.word.split()
            own = each.frequency / self.total if inner[1:] == [] else 0.0
            at = pair(
                left[-1] if left else "",
                inner[0],
                (1 - LISTED) * (singles[inner[0]] + 0.01) / total + LISTED * own,
            )
            at += sum(pair(one, other, (singles[other] + 0.01) / total) for one, other in pairwise(inner))
            if right:
                next_ = (singles[right[0]] + 0.1) / total
                at += pair(inner[-1], right[0], next_) - math.log(next_)
            return at + self.weight * self.channel.log_probability(
                word.lower(), "".join(inner).replace("'", "")
            )

        return [(score(each), each) for each in found]
