"""Lists of sound files: fairseq's TSV, Kaldi's wav.scp, or a path a line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from nartk.data.readers import SCP, Fields, Record, read_records
from nartk.errors import InputFileError
from nartk.unpacking import suffix_of


def read_manifest(file: IO[bytes], name: str, root: str | None = None) -> Iterator[Record]:
    """Yields a record for every sound file of a list; its text is the path.

    The list's suffix, without that of a packed file, says what it is. ``.tsv`` is fairseq's: its first line
    is the folder of the paths, which are the first column; the others, such as the number of samples, are not
    read. ``.scp`` is Kaldi's: a name, which becomes the record's id, whatever is wrong with the rest, and a
    path; a command there is not run. Of any other a line is a path.

    Args:
        file: Opened in binary mode.
        name: File name for error messages.
        root: A folder that paths are in, in place of the list's own; those that lead out of it are errors.

    Raises:
        InputFileError: A TSV's first line is no folder.
    """
    suffix = suffix_of(name.lower())
    lines = read_records(file, name, SCP if suffix == ".scp" else "txt", Fields())
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
        path = line.text.partition("\t")[0] if suffix == ".tsv" else line.text
        path = os.path.join(folder, path)
        try:
            if root is not None:
                _require_below(path, root)
            yield replace(line, text=path)
        except InputFileError as error:
            yield replace(line, text="", error=error)


def _require_below(path: str, root: str) -> None:
    """Refuses a path that leads out of a folder, by its name or by links."""
    found, folder = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([found, folder]) != folder:
        raise InputFileError(f"{path!r} is not in the folder {root!r}", fix="copy the file there")
