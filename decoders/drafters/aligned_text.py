"""Alignment of an output with a text that it resembles: its source, or a draft that somebody gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from nartk.vocab import Vocab

# Positions nearer to the guess that a longer suffix, by one token, is worth. Of 1 to 1000, 3 took the fewest
# passes on 6,000 sentences with learners' errors.
_TOKEN_WORTH = 3
_WORD_MARKS = ("▁", "Ġ")  # of sentencepiece, and of byte-level BPE


class Spelling(NamedTuple):
    """Spelling of the words of a vocabulary, each list by id.

    What is no word, id -1, reads the lists' last item: it begins a word of no letters.

    Attributes:
        begins: True if it begins a word of the text. Pieces do if they carry the mark of the space before
            them; in a vocabulary without such marks all do.
        first: Its first letter in lower case, or nothing.
        letters: Number of its letters.
    """

    begins: list[bool]
    first: list[str]
    letters: list[int]


@lru_cache(maxsize=8)
def spelling(vocab: Vocab) -> Spelling:
    """Spelling of each word."""
    marked = any(word.startswith(_WORD_MARKS) for word in vocab.words)
    begins = [not marked or word.startswith(_WORD_MARKS) for word in vocab.words]
    written = [word[1:] if word.startswith(_WORD_MARKS) else word for word in vocab.words]
    return Spelling([*begins, True], [*(word.lower()[:1] for word in written), ""], [*map(len, written), 0])


@dataclass(slots=True)
class AlignedText:
    """A text that is copied, and how far an output has come in it.

    Attributes:
        words: Target ids; -1 for what cannot be drafted.
        positions: Positions of each word in the text.
        matched: Number of tokens before a position of the text that equal the output's last ones, if any.
        cursor: Position in the text from which was drafted last.
        seen: Tokens that the output had then.
    """

    words: list[int]
    positions: dict[int, list[int]] = field(default_factory=dict)
    matched: dict[int, int] = field(default_factory=dict)
    cursor: int = 0
    seen: int = 0

    def __post_init__(self) -> None:
        for i, word in enumerate(self.words):
            self.positions.setdefault(word, []).append(i)

    def match(self, output: Sequence[int]) -> None:
        """Follows the output to its end: `matched` is of it as it is now."""
        matched, positions = self.matched, self.positions
        for token in output[self.seen :]:
            found = positions.get(token)
            matched = {} if found is None else {i + 1: matched.get(i, 0) + 1 for i in found}
        self.matched = matched

    def move(self, position: int, output: Sequence[int]) -> None:
        """Sets the position from which is drafted after an output."""
        self.cursor, self.seen = position, len(output)

    def following(self, position: int, most: int) -> list[int]:
        """At most so many words from a position on, up to one that cannot be drafted."""
        words = self.words[position : position + most]
        return words[: words.index(-1)] if -1 in words else words


def unique_position(text: AlignedText) -> int | None:
    """The position after the shortest suffix of 1 to 3 tokens that occurs once; None: there is none.

    The rule of Sun et al. 2021, section 3.2. `AlignedText.match` comes first.
    """
    for size in (1, 2, 3):
        found = [position for position, count in text.matched.items() if count >= size]
        if len(found) == 1:
            return found[0]
    return None


def aligned_position(text: AlignedText, spelt: Spelling, output: Sequence[int]) -> tuple[int, int]:
    """The position for which suffixes and alignment speak most, of equal ones the first; how much they do.

    If the longest suffix that recurs does so once, the position is after it. Otherwise the output's last
    token is taken for a substitute of the word that was expected there, or for an insertion before it if it
    is shorter and begins with another letter; the position is the one for which this guess and the suffixes
    together speak most. `AlignedText.match` comes first.

    Args:
        output: At least one token longer than when the text was moved last.
    """
    guess = _guess(text, spelt, output)
    best, worth = guess, _TOKEN_WORTH * text.matched.get(guess, 0)
    longest, sure = 0, -1
    for position, count in text.matched.items():
        value = _TOKEN_WORTH * count - abs(position - guess)
        if value > worth or (value == worth and position < best):
            best, worth = position, value
        if count >= longest:
            sure = position if count > longest else -1
            longest = count
    if sure >= 0:
        return sure, _TOKEN_WORTH * longest - abs(sure - guess)
    return best, worth


def _guess(text: AlignedText, spelt: Spelling, output: Sequence[int]) -> int:
    """Guesses where the text goes on, by the tokens copied and the spelling of the output's last one."""
    words, size = text.words, len(text.words)
    grown, token = len(output) - text.seen, output[-1]  # all but the last were copied
    expected = min(text.cursor + grown - 1, size)
    # The rest of a word whose beginning was not copied belongs to the source word that was skipped for it.
    is_next = grown > 1 or spelt.begins[token]
    guess = _next_word(words, spelt, expected + 1 if is_next else expected)
    replaced = words[expected] if expected < size else -1
    if spelt.begins[token] and spelt.first[token] != spelt.first[replaced]:
        end = _next_word(words, spelt, expected + 1)
        of_word = sum(spelt.letters[word] for word in words[expected:end]) if spelt.begins[replaced] else 0
        if spelt.letters[token] < of_word:
            return expected
    return guess


def _next_word(words: Sequence[int], spelt: Spelling, position: int) -> int:
    """The first position from this one on at which a word begins, or the text's end."""
    size = len(words)
    while position < size and not spelt.begins[words[position]]:
        position += 1
    return min(position, size)
