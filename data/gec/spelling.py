"""Misspellings of any word, sampled from a table of the edits that real misspellings are made of.

The model is that of Brill and Moore (2000, "An Improved Error Model for Noisy Channel Spelling Correction",
aclanthology.org/P00-1037) with a letter of context at both sides: the probability that up to three letters
are written as up to three others between two given ones, and without context where that is rare.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from nartk.data.text import read_shipped
from nartk.errors import InputFormatError

FILE = "spelling.tsv.xz"  # the table that ships
LONGEST_EDIT = 3  # letters of a word that one edit replaces, and that it puts there
MOST_EDITS = 3  # in one word
_CONTEXT = 12.0  # occurrences of a context that weigh as much as the probability without context
_START, _END = "^", "$"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz'-")


@dataclass(frozen=True, order=True)
class LetterEdit:
    """An edit of a word's letters.

    Attributes:
        left: Letter before them, or ``^`` at the start.
        right: Letters that belong there; none: the edit adds letters.
        wrong: Letters that are written.
        after: Letter behind them, or ``$`` at the end.
    """

    left: str
    right: str
    wrong: str
    after: str


def letter_edits(right: str, wrong: str) -> list[LetterEdit] | None:
    """The edits that write a lower-cased word as `wrong`; None where one of them is too long.

    They are those of the smallest Damerau-Levenshtein distance, with neighbours joined. A letter that is
    doubled, or single instead of double, is an edit of that letter rather than of nothing.
    """
    padded = f"{_START}{right}{_END}"
    found = []
    for start, stop, begin, end in _spans(right, wrong):
        doubled = start == stop and wrong[begin:end] == right[stop : stop + 1]
        halved = begin == end and right[start:stop] == right[stop : stop + 1]
        if doubled or halved:
            stop, end = stop + 1, end + 1
        if max(stop - start, end - begin) > LONGEST_EDIT:
            return None
        found.append(LetterEdit(padded[start], right[start:stop], wrong[begin:end], padded[stop + 1]))
    return found


def _spans(right: str, wrong: str) -> list[tuple[int, int, int, int]]:
    """Start and stop in `right`, start and stop in `wrong` of each stretch that differs."""
    rows = [list(range(len(wrong) + 1))]
    for i, a in enumerate(right, start=1):
        row = [i]
        for j, b in enumerate(wrong, start=1):
            cost = min(rows[i - 1][j - 1] + (a != b), rows[i - 1][j] + 1, row[j - 1] + 1)
            if i > 1 and j > 1 and a == wrong[j - 2] and b == right[i - 2]:
                cost = min(cost, rows[i - 2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    i, j = len(right), len(wrong)
    spans: list[tuple[int, int, int, int]] = []
    while i or j:
        cost = rows[i][j]
        if i and j and right[i - 1] == wrong[j - 1] and cost == rows[i - 1][j - 1]:
            i, j = i - 1, j - 1
            continue
        stop, end = i, j
        swapped = i > 1 and j > 1 and right[i - 2 : i] == wrong[j - 2 : j][::-1]
        if swapped and cost == rows[i - 2][j - 2] + 1:
            i, j = i - 2, j - 2
        elif i and j and cost == rows[i - 1][j - 1] + 1:
            i, j = i - 1, j - 1
        elif i and cost == rows[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
        if spans and spans[-1][0] == stop and spans[-1][2] == end:
            _, stop, _, end = spans.pop()
        spans.append((i, stop, j, end))
    return spans[::-1]


def contexts(word: str) -> Iterator[tuple[str, str, str]]:
    """Every stretch of at most `LONGEST_EDIT` letters of a word, and the letters before and behind it."""
    padded = f"{_START}{word}{_END}"
    for start, stop in _stretches(len(word)):
        yield padded[start], word[start:stop], padded[stop + 1]


def _stretches(length: int) -> Iterator[tuple[int, int]]:
    for start in range(length + 1):
        for stop in range(start, min(start + LONGEST_EDIT, length) + 1):
            yield start, stop


class SpellingNoise:
    """Samples misspellings from counts of edits.

    Args:
        counts: Number of times that each edit was made.
        seen: Number of times that each context, edited or not, was in the words.
        edits: Number of misspellings of one edit, of two and so on.
    """

    def __init__(
        self,
        counts: Mapping[LetterEdit, float],
        seen: Mapping[tuple[str, str, str], float],
        edits: Iterable[float],
    ) -> None:
        self.counts, self.seen = dict(counts), dict(seen)
        self.edits = tuple(edits)
        written: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._near: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
        totals: dict[str, float] = defaultdict(float)
        for (_, right, _), number in self.seen.items():
            totals[right] += number
        for edit, number in self.counts.items():
            written[edit.right][edit.wrong] += number
            self._near[edit.left, edit.right, edit.after][edit.wrong] = number
        self._anywhere = {
            right: {wrong: number / max(totals[right], 1) for wrong, number in wrongs.items()}
            for right, wrongs in written.items()
        }
        self._any = {right: sum(wrongs.values()) for right, wrongs in self._anywhere.items()}
        self._choices = lru_cache(maxsize=100_000)(self._find_choices)
        self._chance = lru_cache(maxsize=200_000)(self._find_chance)
        self._plan = lru_cache(maxsize=50_000)(self._find_plan)

    def probability(self, edit: LetterEdit) -> float:
        """Probability that the edit is made where its context stands."""
        seen = self.seen.get((edit.left, edit.right, edit.after), 0.0)
        made = self.counts.get(edit, 0.0)
        anywhere = self._anywhere.get(edit.right, {}).get(edit.wrong, 0.0)
        return (made + _CONTEXT * anywhere) / (seen + _CONTEXT)

    def _find_choices(self, left: str, right: str, after: str) -> tuple[tuple[str, ...], list[float]]:
        """Letters that may be written for `right` in a context, and the sums of their probabilities."""
        wrongs = tuple(sorted(self._anywhere.get(right, ())))
        weights = (self.probability(LetterEdit(left, right, wrong, after)) for wrong in wrongs)
        return wrongs, list(itertools.accumulate(weights))

    def _find_chance(self, left: str, right: str, after: str) -> float:
        """Probability of any edit in a context: the sum that `_find_choices` ends with."""
        anywhere = self._any.get(right)
        if anywhere is None:
            return 0.0
        key = (left, right, after)
        return (sum(self._near.get(key, {}).values()) + _CONTEXT * anywhere) / (
            self.seen.get(key, 0.0) + _CONTEXT
        )

    def _find_plan(self, word: str) -> tuple[list[tuple[int, int]], list[float]]:
        """The stretches of a word that may be edited, and the sums of their probabilities."""
        padded = f"{_START}{word}{_END}"
        spans, weights = [], []
        for start, stop in _stretches(len(word)):
            chance = self._chance(padded[start], word[start:stop], padded[stop + 1])
            if chance > 0:
                spans.append((start, stop))
                weights.append(chance)
        return spans, list(itertools.accumulate(weights))

    def misspell(self, word: str, rng: Random) -> str:
        """A misspelling of a lower-cased word; the word itself where no edit is known for its letters."""
        (number,) = rng.choices(range(1, len(self.edits) + 1), self.edits)
        wrong = word
        for _ in range(number if len(word) > 4 else 1):
            spans, sums = self._plan(wrong)
            if not sums:
                break
            start, stop = spans[min(bisect(sums, rng.random() * sums[-1]), len(spans) - 1)]
            padded = f"{_START}{wrong}{_END}"
            written, weights = self._choices(padded[start], wrong[start:stop], padded[stop + 1])
            put = written[min(bisect(weights, rng.random() * weights[-1]), len(written) - 1)]
            wrong = (wrong[:start] + put + wrong[stop:]) or wrong
        return wrong

    def lines(self) -> Iterator[str]:
        """The lines of a file that `read_spelling` reads."""
        yield json.dumps(self.edits)
        for left, right, after in sorted(self.seen):
            wrongs = self._near.get((left, right, after), {})
            row = [left, right, after, f"{self.seen[left, right, after]:g}"]
            yield "\t".join([*row, *(f"{wrong} {number:g}" for wrong, number in sorted(wrongs.items()))])


def fit_spelling(
    pairs: Iterable[tuple[str, str, float]], *, least: float = 2.0, context: float = 30.0
) -> SpellingNoise:
    """Counts the edits of pairs of a word, a misspelling of it and the weight of the pair.

    Args:
        least: Count below which an edit in one context is counted without its context.
        context: Occurrences below which a context without edits is left out.
    """
    counts: dict[LetterEdit, float] = defaultdict(float)
    seen: dict[tuple[str, str, str], float] = defaultdict(float)
    edits = [0.0] * MOST_EDITS
    for right, wrong, weight in pairs:
        if right == wrong or not (_LETTERS.issuperset(right) and _LETTERS.issuperset(wrong) and right):
            continue
        found = letter_edits(right, wrong)
        if found is None or not 0 < len(found) <= MOST_EDITS:
            continue
        edits[len(found) - 1] += weight
        for edit in found:
            counts[edit] += weight
        for key in contexts(right):
            seen[key] += weight
    kept: dict[LetterEdit, float] = defaultdict(float)
    for edit, number in counts.items():
        # "?" stands for any letter: the row is no context, but counts in the sums over contexts.
        kept[edit if number >= least else LetterEdit("?", edit.right, edit.wrong, "?")] += number
    used = {(edit.left, edit.right, edit.after) for edit in kept}
    known = {edit.right for edit in kept}
    rows: dict[tuple[str, str, str], float] = defaultdict(float)
    for key, number in seen.items():
        if key[1] in known:
            rows[key if key in used or number >= context else ("?", key[1], "?")] += number
    for key in used - set(rows):
        rows[key] = 0
    return SpellingNoise(kept, rows, edits)


def read_spelling(lines: Iterable[str]) -> SpellingNoise:
    """Reads what `SpellingNoise.lines` gives.

    Raises:
        InputFormatError: Not such a table.
    """
    rows = iter(lines)
    counts: dict[LetterEdit, float] = {}
    seen: dict[tuple[str, str, str], float] = {}
    try:
        edits = [float(number) for number in json.loads(next(rows, ""))]
        for row in rows:
            left, right, after, number, *wrongs = row.split("\t")
            seen[left, right, after] = float(number)
            for written in wrongs:
                wrong, _, made = written.rpartition(" ")
                counts[LetterEdit(left, right, wrong, after)] = float(made)
    except (ValueError, TypeError) as error:
        raise InputFormatError(
            f"this is no table of misspellings ({error})", fix="give a file of fit_spelling.py"
        ) from None
    return SpellingNoise(counts, seen, edits)


@lru_cache(maxsize=1)
def spelling_noise() -> SpellingNoise:
    """The shipped table, read once."""
    return read_spelling(read_shipped(FILE))
