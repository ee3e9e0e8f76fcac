"""Sentences of treebanks of Universal Dependencies, and what they are with their marked typos put right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Sentence:
    """A sentence.

    Attributes:
        text: Text as it was written.
        rows: Ten columns of CoNLL-U of each word, range of words and empty node.
        begins: True if a paragraph begins with it.
    """

    text: str
    rows: list[list[str]]
    begins: bool = False

    @property
    def has_typo(self) -> bool:
        """True if a word is marked as wrong."""
        return any("Typo=Yes" in row[5] or "CorrectForm" in row[9] for row in self.rows)

    @property
    def corrected(self) -> str:
        """Text with `CorrectForm` and `CorrectSpaceAfter` carried out."""
        text = ""
        last = 0  # the last word of a group that is written as one, such as "don't"
        is_address = "@" in self.text  # the parts of "Ken Rice@ENRON" are marked like those of a word
        is_whole = False  # whether the word before has its right form already, with what goes with it
        for number, row in enumerate(self.rows):
            first, _, stop = row[0].partition("-")
            if "." in first or int(first) <= last:
                continue
            last = int(stop or 0)
            notes = _notes(row)
            form = notes.get("CorrectForm", row[1])
            if stop and "CorrectForm" not in notes:
                parts = self.rows[number + 1 : number + 2 + last - int(first)]
                if any("CorrectForm" in _notes(part) for part in parts):
                    form = "".join(map(_correct, parts))
            elif not stop:
                form = _correct(row)
            if row[7] == "goeswith" and not is_address:
                text, form = text.rstrip(), "" if is_whole else form
            else:
                is_whole = "CorrectForm" in notes
            spaced = notes.get("CorrectSpaceAfter", notes.get("SpaceAfter", "Yes"))
            text = (text + form if form else text.rstrip()) + (" " if spaced == "Yes" else "")
        return text.strip()


def sentences(lines: Iterable[str]) -> Iterator[Sentence]:
    """Reads lines of CoNLL-U."""
    text, rows, begins = "", [], False
    for line in [*lines, ""]:
        if line.startswith("# text = "):
            text = line.removeprefix("# text = ")
        elif line.startswith(("# newpar", "# newdoc")):
            begins = True
        elif line and not line.startswith("#"):
            rows.append(line.split("\t"))
        elif not line and rows:
            yield Sentence(text, rows, begins)
            rows, begins = [], False


def _notes(row: list[str]) -> dict[str, str]:
    return dict(note.split("=", 1) for note in row[9].split("|") if "=" in note)


def _correct(row: list[str]) -> str:
    """A word as it should be written; nothing where it should not be there."""
    form = _notes(row).get("CorrectForm", row[1])
    return "" if form == "_" and row[1] != "_" else form
