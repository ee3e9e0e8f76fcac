"""The edits that turn a text into its correction, for clients that show them one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nartk.protocols.paragraph import edits

_PIECES = re.compile(r"\s+|\w+(?:['’]\w+)*|[^\w\s]")


class Edit(NamedTuple):
    """A replacement in a text.

    Attributes:
        begin, end: Characters of the text that it replaces.
        text: Text that replaces them.
    """

    begin: int
    end: int
    text: str


def edits_between(source: str, output: str) -> list[Edit]:
    """The edits that, made together, turn the source into the output, one behind the other, of whole pieces.

    What is put in comes with the piece before it, or behind it, so that there is something to mark.
    """
    mine, theirs = _PIECES.findall(source), _PIECES.findall(output)
    begins = [0]
    for piece in mine:
        begins.append(begins[-1] + len(piece))
    blocks: list[tuple[int, int, int, int]] = []
    for i, stop, j, last in edits(mine, theirs):
        if mine[i:stop] == theirs[j:last]:
            continue
        if i == stop and i > 0:
            i, j = i - 1, j - 1
        elif i == stop and mine:
            stop, last = stop + 1, last + 1
        if blocks and blocks[-1][1] >= i:  # beside or over the one before: both are one
            i, _, j, _ = blocks.pop()
        blocks.append((i, stop, j, last))
    return [Edit(begins[i], begins[stop], "".join(theirs[j:last])) for i, stop, j, last in blocks]


def in_utf16(text: str, edits: list[Edit]) -> Iterator[tuple[int, int]]:
    """Offset and length of edits in units of UTF-16, as JavaScript and Java count characters."""
    for edit in edits:
        yield _units(text[: edit.begin]), _units(text[edit.begin : edit.end])


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
