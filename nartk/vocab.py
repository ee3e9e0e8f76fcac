"""Vocabularies: words and their ids, with a fingerprint that tells two of them apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path

from nartk.errors import CheckpointError, VocabMismatchError
from nartk.files import BOM, read_file, writing

MOST_BYTES = 100_000_000  # of a dictionary
MOST_WORDS = 10_000_000
UNKNOWN = "⁇"  # what stands in the output for a word that the vocabulary cannot spell
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, in fairseq's order
# To non-autoregressive models an unfilled position, and the blank of frames: a word that no target has.
MASK = SPECIALS.index("<s>")


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special symbols, by default fairseq's. bos may be one of the others.

    Raises:
        CheckpointError: An id is below 0, or that of two others.
    """

    bos: int = 0
    pad: int = 1
    eos: int = 2
    unk: int = 3

    def __post_init__(self) -> None:
        ids = (self.bos, self.pad, self.eos, self.unk)
        if min(ids) < 0 or len(set(ids[1:])) < 3:
            raise CheckpointError(
                f"special ids {ids} of bos, pad, eos and unk: one is below 0, or that of two symbols"
            )

    def names(self) -> dict[int, str]:
        """The symbols by their ids, ascending."""
        ids = (self.bos, self.pad, self.eos, self.unk)
        return dict(sorted(dict(zip(ids, SPECIALS, strict=True)).items()))


FAIRSEQ = SpecialIds()


def padding_word(id: int) -> str:
    """The name of a row that stands for no word."""
    return f"<unused_{id}>"


@dataclass(frozen=True)
class Vocab:
    """Words by id, special symbols among them.

    Attributes:
        also_eos: Further words that end an output.
    """

    words: tuple[str, ...]
    bos: int = 0
    pad: int = 1
    eos: int = 2
    unk: int = 3
    also_eos: tuple[int, ...] = ()
    _ids: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        # Of a word listed twice the first id stands, as in fairseq.
        for i in range(len(self.words) - 1, -1, -1):
            self._ids[self.words[i]] = i

    def __len__(self) -> int:
        return len(self.words)

    @property
    def specials(self) -> SpecialIds:
        return SpecialIds(self.bos, self.pad, self.eos, self.unk)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The words that end an output."""
        return frozenset((self.eos, *self.also_eos))

    @cached_property
    def fingerprint(self) -> str:
        """12 hexadecimal digits that change when any word or id does."""
        return hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def ids(self, words: Iterable[str]) -> list[int]:
        """The ids of words; unknown ones become unk."""
        return [self._ids.get(word, self.unk) for word in words]

    def to_words(self, ids: Iterable[int]) -> list[str]:
        """The words of ids; out of range is unk."""
        return [self.words[i] if 0 <= i < len(self.words) else self.words[self.unk] for i in ids]

    @classmethod
    def from_words(cls, words: Sequence[str], specials: SpecialIds = FAIRSEQ) -> Vocab:
        """A vocabulary of `words` around the special symbols; raises CheckpointError if they lie beyond."""
        found = list(words)
        for i, name in specials.names().items():
            if i > len(found):
                raise CheckpointError(f"{name} has id {i}, but there are {len(found)} words before it")
            found.insert(i, name)
        return cls(tuple(found), *astuple(specials))

    @classmethod
    def read(cls, path: Path, specials: SpecialIds = FAIRSEQ) -> Vocab:
        """Reads fairseq's ``dict.txt``: a word and its count a line, the special symbols left out.

        Raises:
            CheckpointError: The file is missing, not UTF-8, or a line has no count.
        """
        words: list[str] = []
        try:
            text = read_file(path, most=MOST_BYTES).removeprefix(BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"cannot read the dictionary: {error}", where=str(path)) from error
        for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
            if not line:
                continue
            line = line.removesuffix(" #fairseq:overwrite")
            word, _, count = line.rpartition(" ")
            if not count.isdigit():
                raise CheckpointError(
                    f"expected 'WORD COUNT', found {line[:40]!r}", where=f"{path.name}:{number}"
                )
            if word in SPECIALS:
                continue  # written by hand or with overwrite: they have their ids already
            words.append(word)
        return cls.from_words(words, specials)

    def write(self, path: Path) -> None:
        """Writes ``dict.txt``; counts, which only training uses, are set to 1."""
        names = self.specials.names()
        words = (word for i, word in enumerate(self.words) if i not in names)
        with writing(path) as file:
            file.writelines(f"{word} 1\n" for word in words)

    def map_to(self, other: Vocab) -> list[int]:
        """For each id of this vocabulary the id of the same word in `other`, or -1."""
        known = {word: i for i, word in enumerate(other.words)}
        mapped = [known.get(word, -1) for word in self.words]
        mapped[self.unk] = -1  # an unknown word is not the same word elsewhere
        return mapped

    def require_equal(self, other: Vocab, mine: str, theirs: str, *, padded: bool = False) -> None:
        """Raises VocabMismatchError, naming the first differing id, unless both are the same.

        Args:
            padded: True if one may have rows at its end that stand for no word.
        """
        pairs = enumerate(zip(self.words, other.words, strict=False))
        if self.specials != other.specials:
            found = f"{mine} has {self.specials}, {theirs} {other.specials}"
        elif (at := next((i for i, (a, b) in pairs if a != b), None)) is not None:
            found = f"{mine} and {theirs} differ at id {at}: {self.words[at]!r} and {other.words[at]!r}"
        elif len(self) != len(other) and not (padded and _are_padding(self, other)):
            found = f"{mine} has {len(self)} words and {theirs} has {len(other)}"
        else:
            return
        raise VocabMismatchError(found, fix="use models trained with the same dictionary")


def _are_padding(one: Vocab, other: Vocab) -> bool:
    """Tells whether all rows that only the longer of two vocabularies has stand for no word."""
    longer = max(one.words, other.words, key=len)
    return all(longer[i] == padding_word(i) for i in range(min(len(one), len(other)), len(longer)))
