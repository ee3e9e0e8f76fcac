"""What commands that decode read: the model and files they are given, and the flags of both."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.cli._common import Parser
from nartk.data.readers import FORMATS, Fields, Record, format_of, read_records
from nartk.errors import InputFileError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from nartk.pipeline import Model

STDIN = "-"


def add_input(parser: Parser) -> None:
    """Adds MODEL and FILE, and how the files are to be read."""
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="MODEL FILE",
        help="a shipped model or a folder (default: gec-en), then files, - for stdin (default: stdin)",
    )
    parser.add_argument("--format", choices=FORMATS, help="of the files (default: by suffix, else txt)")
    parser.add_argument(
        "--column", type=int, default=1, metavar="N", help="TSV column of the sentence (default: 1)"
    )
    parser.add_argument(
        "--prefix-column",
        type=int,
        metavar="N",
        help='TSV column of what the output must begin with; in JSONL the key "prefix"',
    )
    parser.add_argument(
        "--key", metavar="NAME", help="JSONL key of the sentence (default: source, else text)"
    )
    parser.add_argument("--truncate", action="store_true", help="cut sentences too long for the model")


def add_model(parser: Parser) -> None:
    """Adds the flags of how a model computes, but for its type."""
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="most source tokens at a time, padding included"
    )


def split_inputs(inputs: Sequence[str], prog: str) -> tuple[str, list[str]]:
    """The model and the files, which must be readable.

    Raises:
        ModelNotFoundError: The first argument is neither a shipped model nor a folder.
        InputFileError: A file cannot be read.
    """
    from nartk.pipeline import SHIPPED

    if not inputs:
        return SHIPPED[0], []
    model, *files = inputs
    if model not in SHIPPED and not Path(model).is_dir():
        raise ModelNotFoundError(
            f"{model!r} is neither a shipped model ({', '.join(SHIPPED)}) nor a folder",
            fix=f"name the model before the files, as in {prog} {SHIPPED[0]} FILE",
        )
    for file in files:
        if file != STDIN:
            _require_readable(file)
    return model, files


def load_model(name: str, args: argparse.Namespace, dtype: str) -> Model:
    """Loads a model as `add_model`'s flags say; raises as `nartk.load` does."""
    import torch

    from nartk.pipeline import load

    if args.threads is not None:
        if args.threads < 1:
            raise UsageError(f"--threads is {args.threads}", fix="give at least 1")
        torch.set_num_threads(args.threads)
    return load(name, device=args.device, dtype=dtype)


def fields_of(args: argparse.Namespace) -> Fields:
    """Where `add_input`'s flags say that lines hold the sentence; a column below 1 is a UsageError."""
    for flag, column in (("--column", args.column), ("--prefix-column", args.prefix_column)):
        if column is not None and column < 1:
            raise UsageError(f"{flag} is {column}", fix="count columns from 1")
    return Fields(args.column, args.prefix_column, args.key)


def read_files(files: Sequence[str], form: str | None, fields: Fields) -> Iterator[Record]:
    """The record of each sentence of the files, or of stdin where there is none.

    Args:
        form: The format; None: as each file's suffix says.

    Raises:
        InputFileError: A file cannot be read.
    """
    for name in files or [STDIN]:
        shown = "stdin" if name == STDIN else name
        try:
            with nullcontext(sys.stdin.buffer) if name == STDIN else open(name, "rb") as file:
                yield from read_records(file, shown, format_of(name) if form is None else form, fields)
        except OSError as error:
            raise InputFileError(
                f"cannot read: {error.strerror}", fix="give a readable file", where=shown
            ) from error


def count_sentences(files: Sequence[str], form: str | None) -> int | None:
    """How many records `read_files` will give; None where that shows only by reading."""
    if not files or not all(Path(name).is_file() for name in files):
        return None
    count = 0
    for name in files:
        m2 = (format_of(name) if form is None else form) == "m2"
        with open(name, "rb") as file:
            count += sum(not m2 or line.startswith(b"S") for line in file)
    return count


def _require_readable(name: str) -> None:
    path = Path(name)
    if not path.exists():
        raise InputFileError("no such file", fix="check the name", where=name)
    if path.is_dir():
        raise InputFileError("a folder, not a file", fix="give a file", where=name)
    if not os.access(path, os.R_OK):
        raise InputFileError("cannot read: permission denied", fix="give a readable file", where=name)
