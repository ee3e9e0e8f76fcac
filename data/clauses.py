"""Pieces of English sentences, for models that fail on the whole (`nartk.processors.guard`).

A sentence is cut behind marks that another word is glued to (``name?My``), which it always should be, and,
where that is asked for, at the clause nearest to its middle. What is all in capitals is read as it would be
written without. Each piece is read as a sentence of its own, and what was changed for that is taken back in
the output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nartk.data.gec.speller import Offer

# Two words with the end of a sentence between. Addresses, abbreviations and names hold other characters too.
_IS_GLUED = re.compile(r"([^\W\d_]{2,})([.?!]+)([^\W\d_]+)").fullmatch
_FINAL = frozenset(".?!")
_BREAKS = frozenset([*_FINAL, ";", ":", "--", "...", "–", "—"])
_FEWEST = 3  # tokens of a piece
# Share of the sentence that a better place may lie further from the middle than one of the next kind.
_OFF_MIDDLE = (0.0, 0.05, 0.12, 0.15)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JOINING = _words("and but or so nor yet because then plus also")
_SUBORDINATE = _words(
    """
    which who whom whose that when while where if although though since after before until unless as whereas
    however therefore
    """
)
# Words that follow a full stop without a space: other words behind it may be a name's, as in System.Out.
_BEGINNING = _words(
    """
    i he she it we they you the a an this that these those there my your his her our their its in on at for
    and but so then if when while because after before also however what who why how where no yes
    """
)


@dataclass(frozen=True)
class Clause:
    """A piece of a sentence.

    Attributes:
        read: Its tokens as they stand in the sentence.
        spelled: The same as the model would write them.
        words: The usual way to write each word in small letters.
        is_capitals: True if it is all in capitals, and is read in small letters.
        begins, ends: True if it begins, and ends, as a sentence does.
        corrected: Texts that the model reads in place of each token; empty: the tokens themselves.
        offers: Texts for each token that has several, by its number, the one in `corrected` first.
    """

    read: tuple[str, ...]
    spelled: tuple[str, ...]
    words: Mapping[str, str]
    is_capitals: bool = False
    begins: bool = True
    ends: bool = True
    corrected: tuple[str, ...] = ()
    offers: Mapping[int, Sequence[Offer]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Text that the model reads."""
        return " ".join(self.given)

    @property
    def given(self) -> list[str]:
        """Texts that the model reads for each token; of a piece that has no end, one may be its end."""
        tokens = [*(self.corrected or self.read)]
        if self.is_capitals:
            tokens = [self.words.get(token.lower(), token.lower()) for token in tokens]
        if self.is_capitals or not self.begins:
            tokens[0] = tokens[0][:1].upper() + tokens[0][1:]
        if not self.ends and tokens[-1] not in _FINAL:
            tokens[len(tokens) - (tokens[-1] == "," or tokens[-1] in _BREAKS) :] = ["."]
        return tokens

    def reading(self, texts: Mapping[int, str]) -> Clause:
        """The same piece with other texts to read for some tokens, by their numbers, and no offers."""
        corrected = [*(self.corrected or self.read)]
        for i, text in texts.items():
            corrected[i] = text
        return replace(self, corrected=(*corrected,), offers={})

    def restore(self, written: Sequence[str]) -> list[str]:
        """The output in the place of the piece."""
        found = [*written]
        if not self.ends and self.read[-1] not in _FINAL:
            if found and found[-1] in _FINAL:
                del found[-1]
            if self.read[-1] == "," or self.read[-1] in _BREAKS:
                found.append(self.spelled[-1])
        if found and not self.begins and self.read[0][:1].islower():
            first = found[0]
            if self.words.get(first.lower(), first.lower())[:1].islower():
                found[0] = first[:1].lower() + first[1:]
        return [token.upper() for token in found] if self.is_capitals else found

    def halves(self) -> tuple[Clause, ...]:
        """The two pieces at the clause nearest to the middle; none where there is no such place."""
        size = len(self.read)
        breaks = [
            (abs(i / size - 0.5) + off, i)
            for i in range(_FEWEST, size - _FEWEST + 1)
            if (off := _off_middle(self.read[i - 1].lower(), self.read[i].lower())) is not None
        ]
        if not breaks:
            return ()
        _, middle = min(breaks)
        is_end = self.read[middle - 1] in _FINAL
        first, second = (
            replace(
                self,
                read=self.read[part],
                spelled=self.spelled[part],
                corrected=self.corrected[part],
                offers={},  # the first of each stays
            )
            for part in (slice(middle), slice(middle, None))
        )
        return replace(first, ends=is_end), replace(second, begins=is_end)


def clauses(
    read: Sequence[str], spelled: Sequence[str], words: Mapping[str, str], *, whole: bool = False
) -> list[Clause]:
    """The pieces of a sentence that are always decoded each on its own.

    Args:
        read: Its tokens, at least one.
        spelled: The same as the model would write them.
        words: The usual way to write each word in small letters.
        whole: Keep the sentence as one piece, unchanged.
    """
    if whole:
        return [Clause(tuple(read), tuple(spelled), words)]
    found: list[Clause] = []
    rest: tuple[list[str], list[str]] = ([], [])
    for token, shown in zip(read, spelled, strict=True):
        parts = _parted(token, words) if token == shown else ()
        if parts:
            found.append(_clause([*rest[0], *parts[:2]], [*rest[1], *parts[:2]], words))
            rest = [parts[2]], [parts[2]]
        else:
            rest[0].append(token)
            rest[1].append(shown)
    return [*found, _clause(*rest, words)] if rest[0] else found


def _clause(read: Sequence[str], spelled: Sequence[str], words: Mapping[str, str]) -> Clause:
    text = "".join(read)
    is_capitals = text.isupper() and sum(map(str.isalpha, text)) > 1
    return Clause(tuple(read), tuple(spelled), words, is_capitals)


def _parted(token: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """The two words, and the mark between, of a token that holds the end of a sentence; else nothing."""
    found = _IS_GLUED(token)
    if found is None:
        return ()
    before, mark, after = found.groups()
    if words.get(before.lower(), "").islower() and after.lower() in words:
        if "." not in mark or mark.strip("."):
            is_end = after[0].isupper() or not before.isupper()
        else:
            is_end = before.islower() and after[0].isupper() and after.lower() in _BEGINNING
        if is_end:
            return before, mark, after
    return ()


def _off_middle(before: str, after: str) -> float | None:
    """Penalty of a clause's beginning, as a distance from the middle; None: no clause begins here."""
    holding = (
        before in _BREAKS,
        before == "," and after in _JOINING,
        after in _JOINING,
        before == "," or after in _SUBORDINATE,
    )
    return next((off for off, holds in zip(_OFF_MIDDLE, holding, strict=False) if holds), None)
