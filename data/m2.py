"""Reads, applies and writes M2, the format of grammatical-error annotation.

A block is a line ``S token token ...``, any number of lines
``A start end|||type|||correction|||required|||comment|||annotator`` and an empty line. Spans count tokens of
the source, the end exclusive. The format and its ``noop`` come from the MaxMatch scorer (Dahlmeier and Ng
2012, https://aclanthology.org/N12-1067).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from nartk.errors import InputFormatError

NOOP = "noop"
_EMPTY = "-NONE-"
_SEPARATOR = "|||"
_ALTERNATIVES = "||"
_EDIT_LINE = "write it as 'A start end|||type|||correction|||required|||comment|||annotator'"


@dataclass(frozen=True)
class M2Edit:
    """One correction of one annotator.

    Attributes:
        start: First source token that the edit replaces; -1 in a ``noop``.
        end: Token after the last one replaced; equal to ``start`` in an insertion.
        type: The error type, such as ``R:SPELL`` or ``Nn``.
        correction: The replacement, tokens joined by spaces; empty for a deletion. ``||`` separates several
            acceptable ones.
        required: The fourth column, as written.
        annotator: Number of the annotator.
        comment: The fifth column, as written.
    """

    start: int
    end: int
    type: str
    correction: str
    required: str = "REQUIRED"
    annotator: int = 0
    comment: str = _EMPTY

    @property
    def is_noop(self) -> bool:
        """True if the annotator found nothing to correct."""
        return self.type == NOOP or self.start < 0

    @property
    def alternatives(self) -> list[list[str]]:
        """Tokens of each acceptable replacement, the preferred one first; an empty list is a deletion."""
        return [
            [] if choice.strip() in ("", _EMPTY) else choice.split()
            for choice in self.correction.split(_ALTERNATIVES)
        ]


def noop(annotator: int = 0) -> M2Edit:
    """The edit of an annotator who found nothing to correct."""
    return M2Edit(-1, -1, NOOP, "", annotator=annotator)


@dataclass(frozen=True)
class M2Sentence:
    """A tokenised source sentence and the edits of all its annotators."""

    source: list[str]
    edits: list[M2Edit] = field(default_factory=list)

    @property
    def annotators(self) -> list[int]:
        """Numbers of the annotators in rising order; ``[0]`` where the block has no edit line."""
        return sorted({edit.annotator for edit in self.edits}) or [0]

    def edits_of(self, annotator: int) -> list[M2Edit]:
        """Edits of one annotator in the order of the file, without ``noop``."""
        return [edit for edit in self.edits if edit.annotator == annotator and not edit.is_noop]


def _parse_edit(
    line: str, length: int, where: str, outside: Callable[[InputFormatError], None] | None
) -> M2Edit:
    """Reads one ``A`` line of a source of ``length`` tokens."""
    fields = line[2:].split(_SEPARATOR)
    if len(fields) != 6:
        raise InputFormatError(
            f"an edit line has 6 columns separated by '|||', but this one has {len(fields)}",
            fix=_EDIT_LINE,
            where=where,
        )
    span, error_type, correction, required, comment, annotator = fields
    try:
        start, end = (int(number) for number in span.split())
        who = int(annotator)
    except ValueError:
        raise InputFormatError(
            f"the span must be two integers and the annotator one, but they are {span!r} and {annotator!r}",
            fix=_EDIT_LINE,
            where=where,
        ) from None
    is_noop = error_type == NOOP or (start, end) == (-1, -1)
    if not is_noop and not 0 <= start <= end <= length:
        error = InputFormatError(
            f"the span {start} {end} does not lie in the source of {length} tokens",
            fix="count tokens separated by spaces from 0; the end is exclusive",
            where=where,
        )
        if outside is None:
            raise error
        outside(error)
        return noop(who)
    return M2Edit(start, end, error_type, "" if correction == _EMPTY else correction, required, who, comment)


def read_m2(
    lines: Iterable[str], *, name: str = "M2", outside: Callable[[InputFormatError], None] | None = None
) -> Iterator[M2Sentence]:
    """Yields the sentences of an M2 file, one at a time.

    Args:
        lines: Lines of the file, with or without their line ends.
        name: File name for error messages.
        outside: Called with the error of an edit whose span does not lie in the source; the edit then counts
            as a ``noop``, as in the MaxMatch scorer. Without it the error is raised.

    Raises:
        InputFormatError: A line that is neither source, edit nor empty, an edit without a source, wrong
            columns or a span outside the source; the error names file and line.
    """
    source: list[str] | None = None
    edits: list[M2Edit] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip("\r\n")
        where = f"{name}:{number}"
        if line == "S" or line.startswith("S "):
            if source is not None:
                yield M2Sentence(source, edits)
            # Only the space separates tokens: CWEB has tokens with other white space inside.
            source, edits = [token for token in line[2:].split(" ") if token], []
        elif line.startswith("A "):
            if source is None:
                raise InputFormatError(
                    "an edit line comes before any source line", fix="start each block with 'S'", where=where
                )
            edits.append(_parse_edit(line, len(source), where, outside))
        elif not line.strip():
            if source is not None:
                yield M2Sentence(source, edits)
            source, edits = None, []
        else:
            raise InputFormatError(
                f"a line starts with 'S ' or 'A ' or is empty, but this one is {line[:40]!r}",
                fix="give a file in M2 format",
                where=where,
            )
    if source is not None:
        yield M2Sentence(source, edits)


def apply_edits(sentence: M2Sentence, annotator: int = 0) -> list[str]:
    """Tokens of the sentence as one annotator corrected it, with the first of alternative corrections.

    An annotator without edits leaves the source as it is.

    Raises:
        InputFormatError: Two edits of this annotator overlap.
    """
    target: list[str] = []
    done = 0
    # The sort is stable: insertions at one place keep the order of the file.
    for edit in sorted(sentence.edits_of(annotator), key=lambda edit: (edit.start, edit.end)):
        if edit.start < done:
            raise InputFormatError(
                f"the edit {edit.start} {edit.end} of annotator {annotator} overlaps the one before it",
                fix="give each annotator edits that do not overlap",
                where=" ".join(sentence.source)[:60],
            )
        target += sentence.source[done : edit.start]
        target += edit.alternatives[0]
        done = edit.end
    return target + sentence.source[done:]


def write_m2(sentences: Iterable[M2Sentence]) -> Iterator[str]:
    """Yields the lines of an M2 file, each with its line end; `read_m2` reads back equal sentences."""
    for sentence in sentences:
        yield "S " + " ".join(sentence.source) + "\n"
        for edit in sentence.edits:
            # CWEB and ERRANT write a deletion as an empty column, a noop as -NONE-.
            correction = _EMPTY if edit.is_noop and not edit.correction else edit.correction
            columns = (f"A {edit.start} {edit.end}", edit.type, correction, edit.required, edit.comment)
            yield _SEPARATOR.join((*columns, str(edit.annotator))) + "\n"
        yield "\n"
