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
    """Whether each of at least two lines begins with another word that looks like an id."""
    firsts = [line.split(maxsplit=1)[0] if line.strip() else "" for line in lines]
    return len(lines) > 1 and len({*firsts}) == len(lines) and all(map(_ID.fullmatch, firsts))


def require_alike(ids: Sequence[str] | None, outputs: Sequence[str]) -> None:
    """Refuses outputs that begin with ids where references do not, or the reverse.

    Args:
        ids: Those of the references, if their lines begin with ids.

    Raises:
        LengthMismatchError: Only one of the two does.
    """
    if ids is None:
        has, lacks = "hypothesis", "reference 1"
        alike = not begin_with_ids(outputs)
    else:
        has, lacks = "reference 1", "hypothesis"
        alike = not {word for line in outputs for word in line.split(maxsplit=1)[:1]}.isdisjoint(ids)
    if not alike:
        example = outputs[0].split()[0] if ids is None else ids[0]
        raise LengthMismatchError(
            f"{has} begins its lines with utterance ids, such as {example!r}, and {lacks} does not",
            fix=f"give both with ids or both without, or {named('ids', NO)} if these are words",
        )


def split_ids(lines: Sequence[str], name: str) -> dict[str, str]:
    """The text of each utterance by its id, in the order of the lines.

    Args:
        name: Of the lines, for messages.

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


def in_order(ids: Sequence[str], lines: Sequence[str], name: str) -> list[str]:
    """The texts of lines with the same ids, in the order of `ids`.

    Raises:
        InputFileError: As `split_ids`.
        LengthMismatchError: Utterances are missing, or are not among `ids`.
    """
    texts = split_ids(lines, name)
    for lacks, of, others in ((name, ids, texts), ("reference 1", texts, {*ids})):
        missing = [key for key in of if key not in others]
        if missing:
            raise LengthMismatchError(
                f"{lacks} lacks {len(missing)} of {len(of)} utterance ids, first {missing[0]!r}",
                fix=f"give the same utterances, or {named('ids', NO)} if lines begin with no id",
            )
    return [texts[key] for key in ids]
