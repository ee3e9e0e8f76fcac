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

from nartk.data.gec.spelling import MOST_EDITS, letter_edits, spelling_noise

PAIRED = 0.7  # weight of a pair's frequency beside the word's own
LISTED = 0.5  # weight of a word's frequency in the list of suggestions beside its count in text
UNKNOWN, WEIGHT, STRANGE = -22.0, 1.0, 3.0  # fitted to UD EWT train
_RAREST = -12.0  # log-probability of an edit of letters that the table has not
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


@lru_cache(maxsize=500_000)
def log_probability(wrong: str, right: str) -> float:
    """Log-probability of writing one word for another, in nats, by the shipped table of letter edits."""
    edits = letter_edits(right, wrong)
    if edits is None:
        return MOST_EDITS * _RAREST
    noise = spelling_noise()
    return sum(math.log(max(noise.probability(edit), math.exp(_RAREST))) for edit in edits)


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
            return at + self.weight * log_probability(word.lower(), "".join(inner).replace("'", ""))

        return [(score(each), each) for each in found]
