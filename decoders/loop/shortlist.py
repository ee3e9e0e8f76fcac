"""Lexical shortlists: the words that an output may have, by the words of its source.

Two kinds of files are read, as Marian does (browsermt/marian-dev, ``src/data/shortlist.h`` and ``.cpp``):
- binary ones, ``lex.50.50.*.s2t.bin`` of Bergamot and Firefox (`BinaryShortlistGenerator`): a header of six
  64-bit numbers, where the list of each source word begins, and the lists;
- lexical tables (`LexicalShortlistGenerator`), a line ``target source probability`` for each pair of words.

The list of a source is that of Marian for a batch of this source alone: the first words of the vocabulary,
which are the most frequent ones, those of each of its words, eos among them, its own words if both sides have
one vocabulary, and the next words until eight divides their number.

Differences:
- A list belongs to a row. Marian joins the lists of a batch, so that its outputs depend on the batch.
- The words that end an output, and those that it is forced to begin with, are always listed.
- The checksum and the numbers of a file are always checked; a file for other vocabularies is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from nartk.errors import InputFileError, InputFormatError, UsageError, VocabMismatchError, named
from nartk.files import raw_lines, reading
from nartk.protocols.passes import IntArray
from nartk.vocab import Vocab, padding_word

_Ints = npt.NDArray[np.int64]
MAGIC = 0xF11A48D5013417F5
HEADER = struct.Struct("<6Q")  # magic, checksum, first, best, numbers of offsets and of listed words
FIRST, BEST = 100, 100  # Marian's, of tables
_MOST_BINARY = 32_000_000  # bytes; published ones have five million
_MOST_PAIRS = 20_000_000  # of a table
_MULTIPLE = 8
_GOLDEN, _BITS = 0x9E3779B9, (1 << 64) - 1  # of the checksum
_NONE = "NULL"  # in a table, no word
_FIX = "give a lexical shortlist of Marian's, lex.s2t.bin or lex.s2t"


@dataclass(frozen=True)
class ShortlistFile:
    """A file of shortlists.

    Attributes:
        path: Its name.
        first: Number of the words of the vocabulary that all lists begin with, of a table.
        best: Most words of a source word, of a table.
    """

    path: str
    first: int = FIRST
    best: int = BEST


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Lists of words by the words of sources.

    Attributes:
        first: Number of the words of the vocabulary that all lists begin with.
        offsets: [source words + 1], where the list of each source word begins.
        listed: [n], the lists, one after the other.
        words: Number of target words; rows of padding are none.
        is_shared: True if source and target have one vocabulary: a source's own words are listed.
    """

    first: int
    offsets: _Ints
    listed: IntArray
    words: int
    is_shared: bool

    def of(self, source: Sequence[int], also: Sequence[int] = ()) -> IntArray:
        """The list [L] of a source, ascending.

        Args:
            also: Words that are listed besides.
        """
        return _list_of(self, tuple(source), tuple(also))


@lru_cache(maxsize=1024)
def _list_of(lists: Shortlist, source: tuple[int, ...], also: tuple[int, ...]) -> IntArray:
    size = max(lists.words, *(word + 1 for word in also), 0)
    chosen = np.zeros(size, bool)
    chosen[: min(lists.first, lists.words)] = True
    for word in set(source):
        if word + 1 < len(lists.offsets):
            chosen[lists.listed[lists.offsets[word] : lists.offsets[word + 1]]] = True
            if lists.is_shared:
                chosen[word] = True
    others = np.flatnonzero(~chosen[lists.first : lists.words])[: -int(chosen.sum()) % _MULTIPLE]
    chosen[lists.first + others] = True
    chosen[list(also)] = True
    return np.flatnonzero(chosen).astype(np.int32)


def open_shortlist(file: ShortlistFile, source: Vocab, target: Vocab) -> Shortlist:
    """Reads a file for a model's vocabularies; the last ones are kept.

    Raises:
        InputFileError: It cannot be read, is damaged or has another format.
        InputFormatError: A line of a table is none.
        VocabMismatchError: It is of other vocabularies.
        UsageError: It is binary, and says itself how many words it has, but options do, too.
    """
    try:
        found = os.stat(file.path)
    except (OSError, ValueError) as error:  # the latter of NUL in a name
        raise _unreadable(file.path, error) from error
    return _open(file, found.st_mtime_ns, found.st_size, source, target)


@lru_cache(maxsize=4)
def _open(file: ShortlistFile, changed: int, size: int, source: Vocab, target: Vocab) -> Shortlist:
    try:
        with Path(file.path).open("rb") as opened:
            head = opened.read(HEADER.size)
            if head[:8] == struct.pack("<Q", MAGIC):
                return _read_binary(file, head, opened, size, source, target)
    except OSError as error:
        raise _unreadable(file.path, error) from error
    if b"\0" in head:
        raise InputFileError("is no shortlist", fix=_FIX, where=file.path)
    return _read_table(file, source, target)


def _unreadable(path: str, error: OSError | ValueError) -> InputFileError:
    why = getattr(error, "strerror", error)
    return InputFileError(f"cannot read the shortlist: {why}", fix="give a readable file", where=path)


def _read_binary(
    file: ShortlistFile, head: bytes, opened: IO[bytes], size: int, source: Vocab, target: Vocab
) -> Shortlist:
    """The rest of a binary file of so many bytes, behind its first ones."""
    if (file.first, file.best) != (FIRST, BEST):
        name = "shortlist_first" if file.first != FIRST else "shortlist_best"
        raise UsageError(
            f"{named(name)} is given, but {file.path!r} says itself how many words it has",
            fix="leave it out",
        )
    if size > _MOST_BINARY:
        raise _damaged(file, f"has {size} bytes, above {_MOST_BINARY}")
    if len(head) < HEADER.size:
        raise _damaged(file, f"has {len(head)} bytes, less than its header")
    _, checksum, first, _, offsets, listed = HEADER.unpack(head)
    expected = HEADER.size + 8 * offsets + 4 * listed
    if expected != size:
        raise _damaged(file, f"has {size} bytes, but its header tells of {expected}")
    least, most = _sizes(source)
    if not least <= offsets - 1 <= most:
        raise VocabMismatchError(
            f"the shortlist has {offsets - 1} source words, the model {least}",
            fix="give the shortlist of this model",
            where=file.path,
        )
    body = opened.read(size - HEADER.size)
    if len(body) != size - HEADER.size:
        raise _damaged(file, "ends too early")
    begins = np.frombuffer(body, "<u8", offsets)
    words = np.frombuffer(body, "<u4", listed, offset=8 * offsets)
    if checksum != checksum_of(head[16:] + body):
        raise _damaged(file, "does not have its checksum")
    if begins[0] != 0 or begins[-1] != listed or (begins[1:] < begins[:-1]).any():
        raise _damaged(file, "has lists that are not one after the other")
    _check_words(file, words, target)
    return Shortlist(
        min(first, len(target)),
        begins.astype(np.int64),
        words.astype(np.int32),
        _sizes(target)[0],
        source == target,
    )


def checksum_of(raw: bytes) -> int:
    """Marian's hash of the 64-bit numbers that bytes hold; what is left over at the end counts in none."""
    seed = 0
    for value in np.frombuffer(raw, "<u8", len(raw) // 8).tolist():
        seed ^= (value + _GOLDEN + (seed << 6) + (seed >> 2)) & _BITS
    return seed


def _sizes(vocab: Vocab) -> tuple[int, int]:
    """Number of a vocabulary's words without, and with, the rows at its end that no text has."""
    least = len(vocab)
    while least and (vocab.words[least - 1] == padding_word(least - 1) or least - 1 == vocab.pad):
        least -= 1
    return least, len(vocab)


def _check_words(file: ShortlistFile, words: npt.NDArray[np.uint32], target: Vocab) -> None:
    if len(words) and (most := int(words.max())) >= (count := _sizes(target)[0]):
        raise VocabMismatchError(
            f"the shortlist names target word {most}, the model has {count}",
            fix="give the shortlist of this model",
            where=file.path,
        )


def _damaged(file: ShortlistFile, why: str) -> InputFileError:
    return InputFileError(f"the shortlist {why}", fix="it is damaged: get it again", where=file.path)


def _read_table(file: ShortlistFile, source: Vocab, target: Vocab) -> Shortlist:
    """A lexical table. Of a pair that it has twice the last counts, of equal ones the highest id is first."""
    pairs = [*_pairs(file, source, target)]
    if not pairs:
        raise InputFileError("the shortlist has no pair of words", fix=_FIX, where=file.path)
    from_, to, probs = (np.array(each) for each in zip(*pairs, strict=True))
    if (to == target.unk).all() or (from_ == source.unk).all():
        raise VocabMismatchError(
            "the shortlist has none of the model's words",
            fix="give a table of its pieces, such as ▁the",
            where=file.path,
        )
    keys = from_ * len(target) + to
    _, last = np.unique(keys[::-1], return_index=True)
    kept = len(keys) - 1 - last
    from_, to, probs = from_[kept], to[kept], probs[kept].astype(np.float32)
    order = np.lexsort((-to, -probs, from_))
    from_, to, probs = from_[order], to[order], probs[order]
    begins = np.searchsorted(from_, np.arange(len(source) + 1))
    best = (np.arange(len(from_)) - begins[from_] < file.best) & (probs > 0)
    offsets = np.concatenate([[0], best.cumsum()])[begins]
    return Shortlist(file.first, offsets, to[best].astype(np.int32), _sizes(target)[0], source == target)


def _pairs(file: ShortlistFile, source: Vocab, target: Vocab) -> Iterator[tuple[int, int, float]]:
    """The source word, target word and probability of each line of a table."""
    with reading(file.path) as opened:
        for number, (raw, is_whole) in enumerate(raw_lines(opened), 1):
            if number > _MOST_PAIRS:
                raise InputFileError(
                    f"the shortlist has more than {_MOST_PAIRS} lines",
                    fix="prune the table",
                    where=file.path,
                )
            fields = raw.split() if is_whole else []
            if not raw.strip():
                continue
            try:
                to, from_, prob = fields[0].decode(), fields[1].decode(), float(fields[2])
                if len(fields) != 3 or not 0 <= prob < float("inf"):
                    raise ValueError
            except (ValueError, IndexError) as error:
                raise InputFormatError(
                    f"expected 'TARGET SOURCE PROBABILITY', found {raw[:60].decode('utf-8', 'replace')!r}",
                    fix=_FIX,
                    where=f"{file.path}:{number}",
                ) from error
            if _NONE not in (to, from_):
                yield source.ids([from_])[0], target.ids([to])[0], prob
