"""Writes the outputs of commands that decode: data lines to stdout or a file, progress to stderr."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nartk.cli._common import discard, stdout_error
from nartk.errors import EXIT_OUTPUT
from nartk.files import STDIN, claimed, write_json, writing

_INTERVAL = 0.1  # seconds between two drawings of a progress line, at least
_CLEAR = "\x1b[K"  # a terminal's command: clears the rest of the line


def add_output(
    parser: argparse.ArgumentParser,
    metavar: str = "FILE",
    text: str = "where to, in place of stdout; written whole or not at all",
    **settings: Any,
) -> None:
    """Adds where the command's result goes."""
    parser.add_argument("-o", "--output", metavar=metavar, help=text, **settings)


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Adds whether the signature, which reports carry, is shown too."""
    parser.add_argument("--verbose", action="store_true", help="show the signature on stderr too")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds where the command's figures go."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDIN,
        metavar="FILE",
        help="write all figures as JSON; without FILE, or to -, on stdout in place of the text",
    )


@contextlib.contextmanager
def json_writer(path: str | None) -> Iterator[Callable[..., None]]:
    """Gives a function that writes JSON where `add_json`'s flag says, and nothing without the flag.

    Raises:
        OutputError: It cannot be written.
    """
    if path is None:
        yield lambda values, **settings: None
    elif path == STDIN:
        yield functools.partial(write_json, sys.stdout)
    else:
        with writing(Path(path)) as file:
            yield functools.partial(write_json, file)


@contextlib.contextmanager
def printing(path: str | None) -> Iterator[None]:
    """Has what is printed written to a file, if one other than - is named; raises OutputError."""
    if path is None or path == STDIN:
        yield
    else:
        with writing(Path(path)) as file, contextlib.redirect_stdout(file):
            yield


@contextlib.contextmanager
def line_writer(path: str | None) -> Iterator[Callable[[str], None]]:
    """Gives a function that writes a line to a file, or at once to stdout, which - names too.

    Half a surrogate pair, which UTF-8 cannot hold, is written as the JSON escape that it came from.

    Raises:
        OutputError: The line cannot be written.
        UsageError: Another output goes there.
        SystemExit: Nobody reads stdout any more.
    """
    if path is None or path == STDIN:
        with claimed(Path(STDIN), "stdout"):
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
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(EXIT_OUTPUT) from None  # as with `| head`: no news to the user
        raise stdout_error(error) from error


def _encode(line: str) -> bytes:
    return (line + "\n").encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def progress(title: str, total: int | None, *, drawn: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many steps of `total` are done, for a line with the time left.

    The line is drawn on stderr, which should be a terminal, and taken away at the end.
    """
    if not drawn:
        yield lambda done: None
        return
    start = time.monotonic()
    shown = start - _INTERVAL

    def show(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < _INTERVAL:
            return
        shown = now
        of = f" of {total}" if total is not None else ""
        left = f", {(now - start) * (total - done) / done:.0f} s left" if total is not None and done else ""
        print(f"\r{title}: {done}{of}{left}{_CLEAR}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(f"\r{_CLEAR}", end="", file=sys.stderr, flush=True)
