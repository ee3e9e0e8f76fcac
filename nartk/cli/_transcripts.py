"""Transcripts of recordings: one file each, or one recording's on stdout."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.errors import OutputError, UsageError
from nartk.files import STDIN, make_folder, writing
from nartk.serving.transcripts import OF_SEVERAL, SUFFIXES, transcript

if TYPE_CHECKING:
    from nartk.data.readers import Record
    from nartk.protocols.hypothesis import Hypothesis

JSONL = "jsonl"


def name_of(record: Record, *, reads_text: bool = False) -> str:
    """Name of a record's file: its id, or its own file's without suffix, or, of a line, its number."""
    if isinstance(record.id, str | int) and str(record.id).strip("."):
        name = str(record.id)
    elif reads_text:
        name = str(record.line)
    else:
        name = "stdin" if record.text == STDIN else Path(record.text).stem
    return name.replace("/", "_").replace("\0", "_")


def require_different(records: Iterator[Record], suffix: str, *, reads_text: bool = False) -> list[Record]:
    """The records; raises UsageError if files of two would have one name, and the first be lost."""
    found, sources = [*records], dict[str, str]()
    for record in found:
        if record.error is not None:
            continue
        name = name_of(record, reads_text=reads_text)
        if name in sources:
            raise UsageError(
                f"{sources[name]} and {record.where} would both become {name}.{suffix}",
                fix="decode them into two folders",
            )
        sources[name] = record.where
    return found


class Transcripts:
    """Writes outputs of recordings in a format, each to a file of its own where there is a folder.

    Args:
        args: Flags of `nartk-decode`: ``output_format``, ``form_flag``, ``output_dir``.
        reads_text: True if the model reads text.

    Raises:
        UsageError: It does.
        OutputError: The folder is a file, or cannot be written to.
    """

    def __init__(self, args: argparse.Namespace, *, reads_text: bool) -> None:
        self.form, self.flag = args.output_format, args.form_flag
        self.folder = None if args.output_dir is None else Path(args.output_dir)
        self.task = getattr(args, "task", None) or "transcribe"
        if reads_text:
            flag = self.flag if self.folder is None else f"--output-dir {self.folder}"
            raise UsageError(f"{flag}, but the model reads text", fix="name a model of speech")
        if self.folder is not None:
            if self.folder.exists() and not self.folder.is_dir():
                raise OutputError("is a file", fix="name a folder", where=str(self.folder))
            make_folder(self.folder)

    @property
    def suffix(self) -> str:
        return SUFFIXES.get(self.form, JSONL)

    def checked(self, records: Iterator[Record]) -> Iterator[Record]:
        """The records; raises UsageError if two would become one file."""
        if self.folder is not None:
            return iter(require_different(records, self.suffix))
        if self.form in OF_SEVERAL:
            return records
        found = [*islice(records, 2)]
        if len(found) > 1:
            raise UsageError(
                f"{self.flag} of more than one recording",
                fix="give --output-dir FOLDER, which gets a file of each, or use --output-format jsonl",
            )
        return iter(found)

    def text(self, record: Record, best: Hypothesis) -> str:
        """The transcript of a recording, without the line break at its end."""
        return transcript(best, self.form, name=name_of(record), task=self.task)

    def write(self, record: Record, text: str) -> None:
        """Writes a recording's file, whole or not at all."""
        with writing(self._path_of(record)) as file:
            file.write(f"{text}\n" if text else "")

    def restore(self, record: Record, text: str) -> None:
        """Writes a recording's file where there is none."""
        if not self._path_of(record).exists():
            self.write(record, text)

    def _path_of(self, record: Record) -> Path:
        assert self.folder is not None
        return self.folder / f"{name_of(record)}.{self.suffix}"
