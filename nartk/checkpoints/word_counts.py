"""Counts of the words that a model writes, which `nartk-distill` makes and a drafter's folder keeps.

A JSON object of words and counts, the most frequent first. A drafter that picks among the most frequent words
alone computes fewer rows of its output layer (`nartk.protocols.trimmed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nartk.checkpoints.names import WORD_COUNTS
from nartk.errors import CheckpointError, UsageError, named
from nartk.files import JsonObject, parse_json, read_file, write_json, writing
from nartk.protocols.passes import IntArray
from nartk.vocab import MOST_BYTES, Vocab

_FIX = "give the file that nartk-distill wrote with what this model's verifier says"


def write_counts(path: Path, counts: Mapping[str, int]) -> None:
    """Writes the file, the most frequent words first, of equally frequent ones those counted first."""
    with writing(path) as file:
        ordered: JsonObject = dict(sorted(counts.items(), key=lambda item: -item[1]))
        write_json(file, ordered, ensure_ascii=False)


def read_counts(path: Path, vocab: Vocab) -> dict[int, int]:
    """The counts of the words of a vocabulary, by id; words that it has not are left out.

    Raises:
        CheckpointError: The file cannot be read, is none of counts, or has no word of the vocabulary.
    """
    found = parse_json(read_file(path, most=MOST_BYTES), path)
    wrong = next((word for word, count in found.items() if type(count) is not int or count < 1), None)
    if wrong is not None:
        raise CheckpointError(
            f"the count of {wrong!r} is {found[wrong]!r}, not a whole number above 0",
            fix=_FIX,
            where=str(path),
        )
    known = {word: id for id, word in reversed([*enumerate(vocab.words)])}  # of a word listed twice the first
    counts = {known[word]: count for word, count in found.items() if word in known}
    if not counts:
        raise CheckpointError("none of the words is the model's", fix=_FIX, where=str(path))
    return counts


def counts_file(path: Path | None, vocab: Vocab) -> dict[str, Path]:
    """The file by its name in a drafter's folder, checked before anything is written; empty: there is none.

    Raises:
        CheckpointError: Same as of `read_counts`.
    """
    if path is None:
        return {}
    read_counts(path, vocab)
    return {WORD_COUNTS: path}


def most_frequent(counts: Mapping[int, int], most: int, vocab: Vocab) -> IntArray:
    """The ids of so many words, ascending: the most frequent, of equal ones the lowest ids.

    Words that end an output are always among them, words that were never counted only so.
    """
    ordered = sorted(counts.keys() - vocab.ends, key=lambda id: (-counts[id], id))
    kept = ordered[: max(most - len(vocab.ends), 0)]
    return np.array(sorted([*vocab.ends, *kept]), np.int32)


def drafted_words(files: Mapping[str, Path], most: int, vocab: Vocab, *, drafter: str) -> IntArray:
    """The words that a drafter picks among, by the counts that its folder keeps.

    Args:
        files: Paths of the folder's files, by name.
        drafter: Its name, for messages.

    Raises:
        UsageError: Its folder has none.
        CheckpointError: Same as of `read_counts`.
    """
    if WORD_COUNTS not in files:
        raise UsageError(
            f"{named('drafter_words', most)}, but the folder of {drafter} has no {WORD_COUNTS}",
            fix=f"convert it with {named('word_counts')} and the file that nartk-distill wrote",
        )
    return most_frequent(read_counts(files[WORD_COUNTS], vocab), most, vocab)
