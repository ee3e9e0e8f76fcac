"""Transcripts whose lines begin with the utterance's id, as Kaldi's ``text`` does, are matched by it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nartk.errors import InputFileError, LengthMismatchError, named

AUTO, YES, NO = "auto", "yes", "no"
IDS = (AUTO, YES, NO)  # whether lines begin with an id
# What no word looks like: letters, or signs that join, with digits, without a space.
_ID = re.compile(r"(?=.*\d)(?=.*[^\W\d]|.*[-_.])[\w.:/-]{4,}", re.ASCII)


def begin_with_ids(lines: Sequence[str]) -> bool:
    """True if each of at least two lines begins with another word that looks like an id."""
    firsts = [line.split(maxsplit=1)[0] if line.strip() else "" for line in lines]
    return len(lines) > 1 and len({*firsts}) == len(lines) and all(map(_ID.fullmatch, firsts))


def are_matched(references: Sequence[str], outputs: Sequence[str], names: tuple[str, str]) -> bool:
    """True if lines begin with ids by which they are matched.

    A single line, of which nobody can tell by itself, does where the outputs' begins with the same word.

    Args:
        names: Names of the references and of the outputs for messages.

    Raises:
        LengthMismatchError: Only one of the two begins with ids.
    """
    firsts, others = ([line.split(maxsplit=1)[:1] for line in lines] for lines in (references, outputs))
    if len(references) == 1:
        return firsts == others and all(map(_ID.fullmatch, firsts[0])) and firsts != [[]]
    matched = begin_with_ids(references)
    if matched != (any(first in firsts for first in others) if matched else begin_with_ids(outputs)):
        has, lacks = names if matched else names[::-1]
        [example] = (firsts if matched else others)[0]
        raise LengthMismatchError(
            f"{has} begins its lines with utterance ids, such as {example!r}, and {lacks} does not",
            fix=f"give both with ids or both without, or {named('ids', NO)} if these are words",
        )
    return matched


def split_ids(lines: Sequence[str], name: str) -> dict[str, str]:
    """The text of each utterance by its id, in the order of the lines.

    Args:
        name: Name of the lines for messages.

    Raises:
        InputFileError: A line is blank, or its id is an earlier line's.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        key, _, text = line.strip().replace("\t", " ").partition(" ")
        if not key or key in found:
            what = f"the utterance id {key!r} is an earlier line's" if key else "the line has no utterance id"
            raise InputFileError(
                what, fix=f"mend it, or give {named('ids', NO)} if lines have none", where=f"{name}:{number}"
            )
        found[key] = text
    return found


def in_order(ids: Sequence[str], lines: Sequence[str], name: str, first: str) -> list[str]:
    """The texts of lines with the same ids, in the order of `ids`.

    Args:
        name: Name of the lines for messages.
        first: Name of the lines that `ids` begin.

    Raises:
        InputFileError: A line is blank, or its id is an earlier line's.
        LengthMismatchError: Utterances are missing, or are not among `ids`.
    """
    texts = split_ids(lines, name)
    for lacks, of, others in ((name, ids, texts), (first, texts, {*ids})):
        missing = [key for key in of if key not in others]
        if missing:
            raise LengthMismatchError(
                f"{lacks} lacks {len(missing)} of {len(of)} utterance ids, first {missing[0]!r}",
                fix=f"give the same utterances, or {named('ids', NO)} if lines begin with no id",
            )
    return [texts[key] for key in ids]
