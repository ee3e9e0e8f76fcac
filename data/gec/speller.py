"""Spells English words that are in no list as the word that they most probably stand for.

A noisy channel (Kernighan, Church and Gale 1990, "A spelling correction program based on a noisy channel
model"): how probable a word is between its neighbours, by counts of words and of pairs of words, times how
probable it is that it was written so, by the letter edits of `nartk.data.gec.spelling`. Suggestions are all
words of the list within two edits of letters, and two words that were written as one. Differences from the
paper: words may be two edits apart and edits have the letters beside them for context; the neighbours count;
misspellings that are known have a list.
"""

from __future__ import annotations

import io
import lzma
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nartk.data.gec.confusions import FUNCTION_WORDS
from nartk.data.gec.spelling import MOST_EDITS, SpellingNoise, letter_edits, read_spelling
from nartk.errors import CheckpointError
from nartk.files import read_file

DISTANCE = 2  # edits of letters between a misspelling and a suggestion
SHORTEST, LONGEST = 3, 24  # letters of a word that is changed
_SHORT = 4  # letters of a word that is one edit apart at most
_MOST = 60  # suggestions whose probability is computed
_PAIRED = 0.7  # weight of a pair's frequency beside the word's own
# Log-probability of a word that no list has: that there is one, of each of its letters up to the tenth, and
# what is added for one with a capital, which may be a name; in nats. How much a letter counts was fitted to
# the training part of UD English EWT, where short ones are abbreviations; the rest was chosen on dev.
_UNKNOWN, _LETTER, _COUNTED, _CAPITAL = -11.0, -1.25, 10, 4.0
_RAREST = -12.0  # log-probability of an edit that the table has not, nats
_KNOWN = -6.0  # log-probability of a known misspelling, at least, nats
# Share of function words of a sentence that is English for sure, and of one that hardly is. Between them a
# share of the words may be in no list, or a few whatever the length; below, one. Of 1,014 captions in French
# 11 are changed, of those in German and Czech none.
_ENGLISH, _HARDLY, _FOREIGN, _FEW = 0.3, 0.1, 0.4, 2
# What is offered for a word: the best suggestions and the word itself, unless they are so much less probable
# than the best of them, nats. Chosen on dev, where more of either changed nothing.
_OFFERED, _CLOSE = 2, 3.0
_OFTEN = 3  # times that a contraction was counted
_MOST_BYTES = 100_000_000  # of the file
CLITICS = {"s": "'s", "nt": "n't", "re": "'re", "ve": "'ve", "ll": "'ll", "d": "'d", "m": "'m"}
_RUN = re.compile(r"(.)\1{2,}")
_has_run = _RUN.search
_BEGINNING = frozenset([".", "!", "?", "...", '"', "'", "`", "``", "''", "(", "-", "--"])


@dataclass(frozen=True)
class Offer:
    """A text that a word may stand for, and its log-probability beside other offers', nats."""

    text: str
    score: float


@dataclass(eq=False)
class Speller:
    """Words with their counts, and the letter edits by which they are misspelt.

    Attributes:
        words: Words and other tokens [W] in small letters; the first is empty, and stands before a sentence.
        counts: Times that each was counted in text [W].
        probabilities: Probability of each [W], by text and a list of frequencies; 0: it is not suggested.
        starts: Position in `followers` at which those of each token begin [W+1].
        followers: Numbers of the tokens that stood behind it [P], ascending for each.
        together: Times that each pair was counted [P].
        edits: Lines of the table of letter edits.
        misspellings: Lines of misspellings in small letters that are known, and behind a tab each what they
            stand for.
    """

    words: tuple[str, ...]
    counts: NDArray[np.uint32]
    probabilities: NDArray[np.float32]
    starts: NDArray[np.uint32]
    followers: NDArray[np.uint32]
    together: NDArray[np.uint32]
    edits: tuple[str, ...]
    misspellings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.suggest = lru_cache(maxsize=10_000)(self._suggest)

    def __reduce__(self) -> tuple[type[Speller], tuple[object, ...]]:
        return Speller, tuple(getattr(self, each.name) for each in fields(self))  # what is cached stays

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def known(self) -> dict[str, list[str]]:
        """Known misspellings, and what each stands for."""
        return {wrong: right for wrong, *right in (line.split("\t") for line in self.misspellings if line)}

    @cached_property
    def noise(self) -> SpellingNoise:
        return read_spelling(self.edits)

    @cached_property
    def _letters(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint8]]:
        """Numbers of the words to suggest [N], lengths [N], sets of letters [N] and letters [N,LONGEST+2]."""
        most = LONGEST + DISTANCE
        chosen = [
            i
            for i, word in enumerate(self.words)
            if self.probabilities[i] and word.isalpha() and word.isascii() and len(word) <= most
        ]
        text = np.array([self.words[i] for i in chosen], dtype=f"S{most}")
        letters = text.view(np.uint8).reshape(len(chosen), most)
        lengths = (letters != 0).sum(1)
        bits = np.where(letters != 0, np.uint32(1) << (letters.astype(np.uint32) & 31), np.uint32(0))
        return np.array(chosen, dtype=np.int64), lengths, np.bitwise_or.reduce(bits, axis=1), letters

    def __contains__(self, word: str) -> bool:
        """Tells whether a word in small letters is in the list."""
        return self._probability(word) > 0

    def spell(self, tokens: Sequence[str]) -> list[str]:
        """A sentence's tokens with the misspelt ones spelled: as many, some of which hold a space."""
        found = [*tokens]
        for i, offers in self.offers(tokens).items():
            found[i] = offers[0].text
        return found

    def offers(self, tokens: Sequence[str]) -> dict[int, list[Offer]]:
        """Finds the misspelt tokens of a sentence, and what each may stand for, the most probable first.

        Misspelt are words of letters alone that are in no list; inside a sentence, none with a capital but
        for known misspellings. Of a sentence of another language no word is.
        """
        wrong = [i for i in range(len(tokens)) if self._is_wrong(tokens, i)]
        if not wrong or self._is_foreign(tokens):
            return {}
        found: dict[int, list[Offer]] = {}
        for i in wrong:
            before = tokens[i - 1] if i else ""
            if i - 1 in found:
                before = found[i - 1][0].text.rpartition(" ")[2]
            after = tokens[i + 1].lower() if i + 1 < len(tokens) else None
            found[i] = [
                replace(each, text=_cased(each.text, tokens[i]))
                for each in self.offers_for(tokens[i], before.lower(), after)
            ]
        return found

    def _is_foreign(self, tokens: Sequence[str]) -> bool:
        """Tells by words in no list and by function words whether a sentence is of another language."""
        words = [token.lower() for token in tokens if token.isalpha()]
        share = sum(word in FUNCTION_WORDS for word in words) / max(1, len(words))
        if share >= _ENGLISH:
            return False
        plain = [
            each.lower() for each in tokens if len(each) >= SHORTEST and each.isalpha() and not each.isupper()
        ]
        strange = sum(word not in self and word not in self.known for word in plain)
        return strange > (max(_FEW, _FOREIGN * len(plain)) if share >= _HARDLY else 1)

    def _is_wrong(self, tokens: Sequence[str], i: int) -> bool:
        token = tokens[i]
        begins = i == 0 or tokens[i - 1] in _BEGINNING
        is_plain = token.islower() or (begins and token[1:].islower())
        return (
            SHORTEST <= len(token) <= LONGEST
            and token.isalpha()
            and token.isascii()
            and (is_plain or (token[0] == "I" and token[1:] in CLITICS) or self._is_known(token))
            and token.lower() not in self
        )

    def _is_known(self, token: str) -> bool:
        """Tells whether a token with capitals is a known misspelling; short ones may be abbreviations."""
        return (
            token[1:].islower() or (token.isupper() and len(token) > _SHORT)
        ) and token.lower() in self.known

    def offers_for(self, token: str, before: str, after: str | None) -> list[Offer]:
        """Lists what a word may stand for, in small letters, the most probable first; it may be the word.

        Of a word with a letter three times in a row, such as "soooo", the letter is there once or twice.
        """
        word = token.lower()
        listed = self.known.get(word, [])
        if _has_run(word):
            shorter = [_RUN.sub(by, word) for by in (r"\1", r"\1\1")]
            known = max(shorter, key=self._probability)
            if known in self:
                return [Offer(known, 0.0)]
            word = shorter[1]
        found = [Offer(each, self._score(word, each, before, after)) for each in listed or self.suggest(word)]
        found = sorted(found, key=lambda offer: -offer.score)[:_OFFERED]
        if not (listed and token.islower()):  # with a capital it may be a name
            unknown = _UNKNOWN + _LETTER * min(len(word), _COUNTED)
            found.append(Offer(token, unknown + (0.0 if token.islower() else _CAPITAL)))
            found.sort(key=lambda offer: -offer.score)
        return [each for each in found if found[0].score - each.score <= _CLOSE]

    def _suggest(self, word: str) -> tuple[str, ...]:
        """Lists what a word in small letters may stand for, the nearest first; of two words with a space."""
        found = [(distance, -self._probability(each), each) for each, distance in self._near(word)]
        for i in range(1, len(word)):
            parts = word[:i], word[i:]
            if min(map(len, parts)) == 1 and parts[0] not in ("a", "i") and parts[1] != "a":
                continue
            probability = self._probability(parts[0]) * self._probability(parts[1])
            if probability:
                found.append((1, -probability, " ".join(parts)))
        for end, clitic in CLITICS.items():
            if word.endswith(end) and (times := self._together(word.removesuffix(end), clitic)) >= _OFTEN:
                found.append((0, -times, f"{word.removesuffix(end)} {clitic}"))
        return tuple(each for *_, each in sorted(found)[:_MOST])

    def _near(self, word: str) -> list[tuple[str, int]]:
        """Words of the list within `DISTANCE` edits of a letter, or swaps of two, and the number of these.

        The distance is that of optimal string alignment, computed of all words at once.
        """
        if len(word) > LONGEST or not word.isascii():
            return []
        numbers, lengths, sets, letters = self._letters
        mine = np.frombuffer(word.encode(), dtype=np.uint8)
        own = np.bitwise_or.reduce(np.uint32(1) << (mine.astype(np.uint32) & 31))
        # An edit changes at most two letters of a word's set of letters.
        near = np.flatnonzero((np.abs(lengths - len(word)) <= DISTANCE) & (_ones(sets ^ own) <= 2 * DISTANCE))
        theirs, ends, wide = letters[near].T, lengths[near], len(word) + DISTANCE
        far = np.full(len(near), 99, dtype=np.int8)
        rows = [[np.full(len(near), j, dtype=np.int8) for j in range(wide + 1)]]
        for i in range(1, len(word) + 1):
            row = [np.full(len(near), i, dtype=np.int8) if i <= DISTANCE else far] + [far] * wide
            for j in range(max(1, i - DISTANCE), i + DISTANCE + 1):
                here = rows[i - 1][j - 1] + (theirs[j - 1] != mine[i - 1])
                here = np.minimum(here, np.minimum(rows[i - 1][j], row[j - 1]) + np.int8(1))
                if i > 1 and j > 1:
                    swapped = (theirs[j - 1] == mine[i - 2]) & (theirs[j - 2] == mine[i - 1])
                    here = np.where(swapped, np.minimum(here, rows[i - 2][j - 2] + np.int8(1)), here)
                row[j] = here.astype(np.int8)
            rows.append(row)
        most = DISTANCE if len(word) > _SHORT else 1
        distances = np.stack(rows[-1])[ends, np.arange(len(near))]
        return [(self.words[numbers[near[k]]], int(distances[k])) for k in np.flatnonzero(distances <= most)]

    def _probability(self, word: str) -> float:
        number = self.numbers.get(word)
        return 0.0 if number is None else float(self.probabilities[number])

    def _together(self, left: str, right: str) -> int:
        """Times that one token stood behind another."""
        one, other = self.numbers.get(left), self.numbers.get(right)
        if one is None or other is None:
            return 0
        begin, end = int(self.starts[one]), int(self.starts[one + 1])
        at = begin + int(np.searchsorted(self.followers[begin:end], other))
        return int(self.together[at]) if at < end and self.followers[at] == other else 0

    def _score(self, word: str, suggestion: str, before: str, after: str | None) -> float:
        """Log-probability of a suggestion between its neighbours, and of a word as its misspelling, nats."""
        inner = suggestion.split(" ")
        total = math.fsum(self._beside(*pair) for pair in pairwise([before, *inner]))
        if after is not None:
            total += self._beside(inner[-1], after) - self._alone(after)
        edits = letter_edits("".join(inner).replace("'", ""), word)
        least = _KNOWN if suggestion in self.known.get(word, ()) else MOST_EDITS * _RAREST
        if edits is None:
            return total + least
        written = (math.log(max(self.noise.probability(each), math.exp(_RAREST))) for each in edits)
        return total + max(least, math.fsum(written))

    def _alone(self, word: str) -> float:
        """Log-probability of a token, nats."""
        number = self.numbers.get(word)
        seen = 0.01 if number is None else max(float(self.counts[number]), 0.01)
        return math.log(max(self._probability(word), seen / self._total))

    @cached_property
    def _total(self) -> float:
        return float(self.counts.sum())

    def _beside(self, left: str, right: str) -> float:
        """Log-probability of a token behind another, nats."""
        own = math.exp(self._alone(right))
        number = self.numbers.get(left)
        times = 0 if number is None else int(self.counts[number])
        paired = self._together(left, right) / times if times else own
        return math.log(_PAIRED * paired + (1 - _PAIRED) * own)

    def write(self, path: Path) -> None:
        """Writes the file that `read_speller` reads."""
        file = io.BytesIO()
        np.savez(
            file,
            words=_packed(self.words),
            counts=self.counts,
            probabilities=self.probabilities,
            starts=self.starts,
            followers=self.followers,
            together=self.together,
            edits=_packed(self.edits),
            misspellings=_packed(self.misspellings),
        )
        path.write_bytes(lzma.compress(file.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def make_speller(
    counts: Mapping[str, int],
    pairs: Mapping[tuple[str, str], int],
    probabilities: Mapping[str, float],
    edits: Iterable[str],
    misspellings: Iterable[str] = (),
) -> Speller:
    """Makes a speller of counts of text in small letters.

    Args:
        counts: Times that each token was counted; "" is what stands before a sentence.
        pairs: Times that one token stood behind another.
        probabilities: Probability of each word that may be suggested.
        edits: Lines of `SpellingNoise.lines`.
        misspellings: Lines of `Speller.misspellings`.
    """
    words = ("", *sorted({*counts, *probabilities} - {""}))
    numbers = {word: i for i, word in enumerate(words)}
    kept = sorted((numbers[one], numbers[other], times) for (one, other), times in pairs.items())
    columns = np.array(kept, dtype=np.uint32).reshape(-1, 3)
    starts = np.searchsorted(columns[:, 0], np.arange(len(words) + 1)).astype(np.uint32)
    return Speller(
        words,
        np.array([counts.get(word, 0) for word in words], dtype=np.uint32),
        _rounded(np.array([probabilities.get(word, 0.0) for word in words], dtype=np.float32)),
        starts,
        columns[:, 1].copy(),
        columns[:, 2].copy(),
        tuple(edits),
        tuple(misspellings),
    )


def _rounded(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounds to nine bits, which pack in half of the bytes."""
    bits = (numbers.view(np.uint32) + np.uint32(1 << 14)) & np.uint32(0xFFFF_8000)
    return bits.view(np.float32)


def read_speller(path: Path) -> Speller:
    """Reads what `Speller.write` has written.

    Raises:
        CheckpointError: It is no such file.
    """
    try:
        unpacked = lzma.LZMADecompressor().decompress(read_file(path, most=_MOST_BYTES), _MOST_BYTES)
        with np.load(io.BytesIO(unpacked), allow_pickle=False) as arrays:
            found = Speller(
                words=_unpacked(arrays["words"]),
                edits=_unpacked(arrays["edits"]),
                misspellings=_unpacked(arrays["misspellings"]),
                probabilities=arrays["probabilities"].astype(np.float32),
                **{
                    name: arrays[name].astype(np.uint32)
                    for name in ("counts", "starts", "followers", "together")
                },
            )
    except (ValueError, KeyError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"no file of a speller ({error})", where=str(path)) from None
    sizes = len(found.words), len(found.followers)
    if (
        found.words[:1] != ("",)
        or {found.counts.shape, found.probabilities.shape} != {sizes[:1]}
        or found.starts.shape != (sizes[0] + 1,)
        or found.together.shape != sizes[1:]
        or not (np.diff(found.starts.astype(np.int64)) >= 0).all()
        or (int(found.starts[0]), int(found.starts[-1])) != (0, sizes[1])
    ):
        raise CheckpointError("the arrays of a speller do not fit each other", where=str(path))
    return found


def _cased(text: str, token: str) -> str:
    """A text in small letters with the capitals of the token in whose place it is."""
    text = "I" + text[1:] if text.partition(" ")[0] == "i" else text
    if token.islower():
        return text
    return text.upper() if token.isupper() else text[:1].upper() + text[1:]


def _packed(lines: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


def _unpacked(array: NDArray[np.uint8]) -> tuple[str, ...]:
    return tuple(array.astype(np.uint8).tobytes().decode().split("\n"))


def _ones(sets: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Counts the bits of each number."""
    table = _bit_counts()
    counts: NDArray[np.uint8] = table[sets & 0xFFFF] + table[sets >> 16]
    return counts


@lru_cache(maxsize=1)
def _bit_counts() -> NDArray[np.uint8]:
    numbers = np.arange(1 << 16, dtype=np.uint32)
    ones = np.zeros(1 << 16, dtype=np.uint8)
    for bit in range(16):
        ones += (numbers >> bit & 1).astype(np.uint8)
    return ones
