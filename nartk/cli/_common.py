"""What every command shares: the error line, exit codes and the shape of `--help`."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from nartk import __version__, engine
from nartk.errors import (
    EXIT_OUTPUT,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    EXIT_USAGE,
    NartkError,
    UsageError,
    requiring_torch,
)


class _Version(argparse.Action):
    """Prints the version, and what the engine is here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"nartk {__version__} ({engine.describe()})")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are nartk's: one line, exit code 2, and the choices."""

    def __init__(self, *, prog: str, description: str, examples: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(
            "--version", action=_Version, nargs=0, help="show the version and the engine, and exit"
        )
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message, fix=f"see {self.prog} --help")


def require_least(args: argparse.Namespace, least: int, *names: str) -> None:
    """Refuses an argument, if it is given, that is below `least`."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < least:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is {value}, below {least}", fix=f"give at least {least}")


def command(work: Callable[[Sequence[str]], int]) -> Callable[..., int]:
    """Makes a function of arguments, by default the command line's, a command.

    What it raises becomes one line on stderr and an exit code.
    """

    @functools.wraps(work)
    def main(argv: Sequence[str] | None = None) -> int:
        args = list(sys.argv[1:] if argv is None else argv)
        try:
            with _sigterm_unwinds(), requiring_torch("this command"):
                return work(args)
        except NartkError as error:
            if "--debug" in args:
                traceback.print_exc()
            print(f"nartk: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            print("nartk: interrupted", file=sys.stderr)
            return EXIT_SIGINT
        except BrokenPipeError:
            # The reader is gone; give the interpreter a stdout it can flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OUTPUT
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else EXIT_USAGE

    return main


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Lets SIGTERM end the command as an exception does, so that half-written files are removed."""

    def stop(number: int, frame: object) -> NoReturn:
        raise SystemExit(EXIT_SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
