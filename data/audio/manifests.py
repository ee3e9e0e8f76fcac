"""Lists of sound files: fairseq's TSV, Kaldi's wav.scp, or a path a line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from nartk.data.readers import Fields, Record, read_records
from nartk.errors import InputFileError, InputFormatError, NartkError


def read_manifest(file: IO[bytes], name: str, root: str | None = None) -> Iterator[Record]:
    """Yields a record for every sound file of a list; its text is the path.

    The list's suffix says what it is. ``.tsv`` is fairseq's: its first line is the folder of the paths, which
    are the first column; the others, such as the number of samples, are not read. ``.scp`` is Kaldi's: a
    name, which becomes the record's id, and a path; a command there is not run. Of any other a line is a
    path.

    Args:
        file: Opened in binary mode.
        name: What errors call it.
        root: A folder that paths are in, in place of the list's own; those that lead out of it are errors.

    Raises:
        InputFileError: A TSV's first line is no folder.
    """
    lines, suffix = read_records(file, name, "txt", Fields()), Path(name).suffix.lower()
    folder = ""
    if suffix == ".tsv" and (first := next(lines, None)) is not None:
        folder = first.text
        if first.error is not None or not folder.strip() or "\t" in folder:
            raise InputFileError(
                f"{folder[:80]!r} is no folder",
                fix="begin it with the folder of its paths",
                where=first.where,
            )
    folder = folder if root is None else root
    for line in lines:
        if line.error is not None or not line.text.strip():
            yield line
            continue
        id, path = None, line.text
        try:
            if suffix == ".tsv":
                path = path.partition("\t")[0]
            elif suffix == ".scp":
                id, path = _of_kaldi(path)
            path = os.path.join(folder, path)
            if root is not None:
                _require_below(path, root)
            yield replace(line, text=path, id=id)
        except NartkError as error:
            error.where = line.where
            yield replace(line, text="", id=id, error=error)


def _of_kaldi(line: str) -> tuple[str, str]:
    """The name and the path of a line of wav.scp."""
    parts = line.split(maxsplit=1)
    if len(parts) < 2:
        raise InputFormatError(f"{line[:80]!r} names no file", fix="write a name, a space and a path")
    if parts[1].rstrip().endswith("|"):
        raise InputFormatError("a command, which is not run", fix="write its output to a file, and name that")
    return parts[0], parts[1].strip()


def _require_below(path: str, root: str) -> None:
    """Refuses a path that leads out of a folder, by its name or by links."""
    found, folder = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([found, folder]) != folder:
        raise InputFileError(f"{path!r} is not in the folder {root!r}", fix="copy the file there")
