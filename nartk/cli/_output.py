"""What commands that decode write: data lines on stdout or in a file, progress on stderr."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from nartk.errors import EXIT_OUTPUT, OutputError
from nartk.files import writing


@contextlib.contextmanager
def line_writer(path: str | None) -> Iterator[Callable[[str], None]]:
    """Gives a function that writes a line to a file, or at once to stdout.

    Half a surrogate pair, which UTF-8 cannot hold, is written as the JSON escape that it came from.

    Raises:
        OutputError: The line cannot be written.
        SystemExit: Nobody reads stdout any more.
    """
    if path is None:
        yield _write_to_stdout
        return
    with writing(Path(path), binary=True) as file:

        def write(line: str) -> None:
            file.write(_encode(line))

        yield write


def tell(args: argparse.Namespace, lines: str) -> None:
    """Tells the user on stderr of what is no error, unless `--quiet` forbids it."""
    if not args.quiet:
        print("\n".join(f"nartk: {line}" for line in lines.split("\n")), file=sys.stderr, flush=True)


def _write_to_stdout(line: str) -> None:
    try:
        sys.stdout.buffer.write(_encode(line))
        sys.stdout.buffer.flush()
    except OSError as error:
        # What could not be written would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(EXIT_OUTPUT) from None  # as with `| head`: no news to the user
        raise OutputError(f"cannot write: {error.strerror}", fix="make space", where="stdout") from error


def _encode(line: str) -> bytes:
    return (line + "\n").encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def progress(title: str, total: int | None, *, drawn: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many steps of `total` are done, for a bar with the time left.

    The bar is drawn on stderr, which should be a terminal, and taken away at the end.
    """
    if not drawn:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=total)
        yield lambda done: bars.update(bar, completed=done)
