"""Files of commands that decode: their formats, and the records of their sentences."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from glob import glob
from itertools import zip_longest
from typing import IO, TYPE_CHECKING

from nartk.cli._output import tell
from nartk.data.readers import FEATURES, MANIFEST, SOUND, Fields, Record, format_of, read_records
from nartk.errors import InputFileError, LengthMismatchError, UsageError, named, number_of
from nartk.files import STDIN, first_bytes, reading, shown
from nartk.registry import reads_drafts, require_drafts_reader

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding

_PATTERN = re.compile(r"[*?[]")  # what a file's name has that stands for several


def fields_of(args: argparse.Namespace, files: Sequence[str]) -> Fields:
    """Finds the fields of lines that hold the sentence, by `add_input`'s flags.

    Raises:
        UsageError: A column is below 1, or no file is of the format that a flag is for.
    """
    for flag, column in (("--column", args.column), ("--prefix-column", args.prefix_column)):
        if column is not None and column < 1:
            raise UsageError(f"{flag} is {column}", fix="count columns from 1")
    _require_format(args, files, "tsv", ("column", "prefix_column", "draft_columns"))
    _require_format(args, files, "jsonl", ("key",))
    column = 1 if args.column is None else args.column
    return Fields(column, args.prefix_column, args.key, root=getattr(args, "root", None))


def _require_format(args: argparse.Namespace, files: Sequence[str], form: str, names: Sequence[str]) -> None:
    """Refuses flags that are for files of one format where none is of it; raises UsageError."""
    for name in names:
        value = getattr(args, name, None)
        if value in (None, ()) or form in {form_of(file, args.format) for file in files or [STDIN]}:
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else value
        raise UsageError(f"{named(name, text)}, but no file is {form.upper()}", fix=f"give --format {form}")


def _require_parallel(flag: str, name: str, files: Sequence[str], form: str | None) -> None:
    """Refuses a file of lines beside the sentences that cannot be read, or that shows beforehand not to fit.

    Raises:
        LengthMismatchError: It has another number of lines than the files have sentences.
    """
    if name != STDIN:
        require_readable(name)
    elif not files or STDIN in files:
        raise UsageError(f"{flag} and the sentences are both stdin", fix="give one of them as a file")
    sentences, lines = count_sentences(files, form), count_sentences([name], "txt")
    if sentences is not None and lines is not None and sentences != lines:
        raise _too_few_or_many(name, number_of(lines, "line"), number_of(sentences, "sentence"))


def _beside(records: Iterator[Record], name: str) -> Iterator[tuple[Record, Record]]:
    """The records, each with the line of a file that belongs to it.

    Raises:
        LengthMismatchError: One of the two ends before the other.
    """
    lines = read_files([name], "txt", Fields())
    for number, (record, line) in enumerate(zip_longest(records, lines), start=1):
        if record is None or line is None:
            counts = [number_of(number - 1, what) for what in ("line", "sentence")]
            counts[line is None] = f"more than {counts[line is None]}"
            raise _too_few_or_many(name, *counts)
        yield record, line


def _with_drafts(records: Iterator[Record], args: argparse.Namespace) -> Iterator[Record]:
    """The records, with the drafts in their lines of --drafts behind those that they have.

    An unreadable line holds no draft, and the user is told.
    """
    for record, line in _beside(records, args.drafts):
        if line.error is not None:
            tell(args, f"{line.where}: {line.error.message}; its sentence is decoded without")
        yield replace(record, drafts=(*record.drafts, *line.text.split("\t")))


def _with_outputs(records: Iterator[Record], args: argparse.Namespace) -> Iterator[Record]:
    """The records, with the outputs in their lines of --score; an unreadable line is the record's error."""
    for record, line in _beside(records, args.score):
        record = replace(record, drafts=tuple(line.text.split("\t")))
        if record.error is None and line.error is not None:
            record = replace(record, error=line.error, where=line.where)
        yield record


def read_sentences(args: argparse.Namespace, files: Sequence[str], *, drafts: bool) -> Iterator[Record]:
    """The record of each sentence, read as it is asked for; what can be checked beforehand is.

    Args:
        drafts: True if records hold the drafts that `add_drafts`'s flags and its JSONL key give.

    Raises:
        UsageError: A flag is out of its bounds, or sentences and drafts both come from stdin.
        LengthMismatchError: There are drafts for more or fewer sentences.
        InputFileError: A file cannot be read.
    """
    fields = fields_of(args, files)
    if drafts:
        fields = replace(fields, draft_columns=args.draft_columns, draft_key="drafts")
    records = read_files(files, args.format, fields)
    if not drafts or args.drafts is None:
        return records
    _require_parallel("--drafts", args.drafts, files, args.format)
    return _with_drafts(records, args)


def read_scored(args: argparse.Namespace, files: Sequence[str]) -> Iterator[Record]:
    """The record of each sentence, its drafts the outputs in its line of --score.

    Raises as `read_sentences`.
    """
    records = read_files(files, args.format, fields_of(args, files))
    _require_parallel("--score", args.score, files, args.format)
    return _with_outputs(records, args)


def read_for(strategy: Decoding, args: argparse.Namespace, files: Sequence[str]) -> Iterator[Record]:
    """`read_sentences` with drafts where the strategy reads them; where it does not, drafts are refused."""
    if args.drafts is not None or args.draft_columns:
        require_drafts_reader(strategy)
    return read_sentences(args, files, drafts=reads_drafts(strategy))


def _too_few_or_many(name: str, lines: str, sentences: str) -> LengthMismatchError:
    verb = "is" if sentences.endswith("sentence") else "are"
    return LengthMismatchError(
        f"{shown(name)} has {lines}, but there {verb} {sentences}",
        fix="give a line for each sentence, an empty one where it has none",
    )


def read_files(files: Sequence[str], form: str | None, fields: Fields) -> Iterator[Record]:
    """The record of each sentence of the files, or of stdin where there is none.

    Args:
        form: The format; None: as each file's suffix says.

    Raises:
        InputFileError: A file cannot be read.
    """
    for name in files or [STDIN]:
        found = form_of(name, form)
        if found == SOUND:
            yield Record(name, 1, shown(name))
        elif found == FEATURES:
            from nartk.data.audio.stored import names

            for number, each in enumerate(names(name), start=1):
                yield Record(f"{name}#{each}", number, f"{name}#{each}", each)
        else:
            with reading(name) as file:
                if found == MANIFEST:
                    from nartk.data.audio.manifests import read_manifest

                    yield from read_manifest(file, shown(name), fields.root)
                else:
                    if form is None:
                        _refuse_sound(file, name)
                    yield from read_records(file, shown(name), found, fields)


def _refuse_sound(file: IO[bytes], name: str) -> None:
    """Refuses sound that is read as text: of a pipe with a name, or of a file named as text.

    Raises:
        InputFileError: It is.
    """
    from nartk.data.audio.signatures import HEAD, sound_format

    if hasattr(file, "peek") and sound_format(file.peek(HEAD)[:HEAD]) is not None:
        raise InputFileError(
            "holds sound, but is read as text",
            fix="name a file by what it holds, and bring a pipe's sound by stdin, -",
            where=shown(name),
        )


def form_of(name: str, form: str | None) -> str:
    """The format of a file: the one that is given, or by its suffix, or, of another suffix, by its bytes."""
    found = format_of(name, "") if form is None else form
    if found:
        return found
    from nartk.data.audio.signatures import HEAD, sound_format

    return "txt" if sound_format(first_bytes(name, HEAD)) is None else SOUND


def count_sentences(files: Sequence[str], form: str | None) -> int | None:
    """Counts the records that `read_files` will give; None where that shows only by reading."""
    if not files or STDIN in files or not all(os.path.isfile(name) for name in files):
        return None
    count = 0
    for name in files:
        found = form_of(name, form)
        if found in (FEATURES, MANIFEST):
            return None
        if found == SOUND:
            count += 1
            continue
        m2 = found == "m2"
        with reading(name) as file:
            count += sum(not m2 or (line.strip() != b"" and not line.startswith(b"A ")) for line in file)
    return count


def expanded(names: Sequence[str]) -> list[str]:
    """The files, with those of folders and of patterns in their places, in the order of their names.

    A folder is all sound files below it by their suffixes, but for hidden ones; one that is itself named like
    a sound stays as it is. A pattern, such as ``calls/*.mp3`` or ``calls/**/*.mp3``, is all files that match
    it, where no file has its name.

    Raises:
        InputFileError: There is none.
    """
    found: list[str] = []
    for name in names:
        matches = [name]
        if _PATTERN.search(name) and not os.path.exists(name):
            matches = sorted(glob(name, recursive=True))
            if not matches:
                raise InputFileError("no file matches", fix="check the pattern", where=name)
        for each in matches:
            is_folder = os.path.isdir(each) and format_of(each) != SOUND  # else it fails as a recording
            found += _sounds_below(each) if is_folder else [each]
    return found


def _sounds_below(folder: str) -> list[str]:
    """The sound files of a folder and of those in it, in the order of their names."""
    found: list[str] = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        found += [
            os.path.join(path, each)
            for each in files
            if not each.startswith(".") and format_of(each) == SOUND
        ]
    if not found:
        raise InputFileError(
            "a folder without a sound file",
            fix="give a file, or a folder of recordings; a model is named before the files",
            where=folder,
        )
    return sorted(found)


def require_readable(name: str) -> None:
    if not os.path.exists(name):
        raise InputFileError("no such file", fix="check the name", where=name)
    if os.path.isdir(name):
        fix = "give a file; a model is named before the files"
        raise InputFileError("a folder, not a file", fix=fix, where=name)
    if not os.access(name, os.R_OK):
        raise InputFileError("cannot read: permission denied", fix="give a readable file", where=name)
