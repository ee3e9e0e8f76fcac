"""Base of all commands: the error line, exit codes and the form of `--help`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from nartk import engine
from nartk.checkpoints.hub import hub_folder, is_hub_name
from nartk.errors import (
    EXIT_OUTPUT,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    EXIT_USAGE,
    InputFileError,
    InternalError,
    MissingDependencyError,
    NartkError,
    OutOfMemoryError,
    OutputError,
    UsageError,
    naming_flags,
    requiring,
    requiring_torch,
)
from nartk.version import __version__

COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "fish", "tcsh")
_AGAIN = 0.2  # seconds until a signal that has not ended the command is raised again


class _Version(argparse.Action):
    """Prints the version, and what the engine is here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"nartk {__version__} ({engine.describe()})")
        parser.exit()


_parsers: list[argparse.ArgumentParser] | None = None  # what `parser_of` waits for


def parser_of(main: Callable[[Sequence[str]], int]) -> argparse.ArgumentParser | None:
    """The parser of a command with all its options; None where it has none, as without its packages."""
    global _parsers
    _parsers = []
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            main([COMPLETION, SHELLS[0]])
        return _parsers[0] if _parsers else None
    finally:
        _parsers = None


class _Completion(argparse.Action):
    """Prints the script with which a shell completes the command's options, and files behind them."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, values: object, *__: object) -> NoReturn:
        if _parsers is not None:
            _parsers.append(parser)
            parser.exit()
        with requiring(f"{COMPLETION} needs the package {{name}}, which is not installed", "completion"):
            import shtab
        commands = [parser]
        for each in commands:
            for action in each._actions:
                if isinstance(action, argparse._SubParsersAction):
                    commands += action.choices.values()
                elif action.nargs != 0 and action.choices is None and action.type in (None, Path):
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of every command, fairseq's too."""
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show the version and the engine, and exit",
    )
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    parser.add_argument(
        COMPLETION,
        action=_Completion,
        choices=SHELLS,
        default=argparse.SUPPRESS,
        help="print the script by which a shell completes this command, and exit",
    )


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are nartk's: one line, exit code 2, and the choices.

    Args:
        quiet: Default of `args.quiet`; None: that of the parser before this one.
    """

    def __init__(
        self, *, prog: str, description: str, examples: str = "", quiet: bool | None = False
    ) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_common(self)
        default = argparse.SUPPRESS if quiet is None else quiet
        self.add_argument("--quiet", action="store_true", default=default, help="errors alone on stderr")

    def parse_known_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        if completes(args):  # which needs the positional arguments, put away meanwhile
            return self.parse_known_args(args, namespace)
        return super().parse_known_intermixed_args(args, namespace)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message, fix=f"see {self.prog} --help")


def completes(argv: Sequence[str]) -> bool:
    """True if a command line asks for completion."""
    return any(argument.startswith(COMPLETION) for argument in argv)


def require_least(args: argparse.Namespace, least: int, *names: str) -> None:
    """Refuses an argument, if it is given, that is below `least`."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < least:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is {value}, below {least}", fix=f"give at least {least}")


def with_model(argv: Sequence[str]) -> list[str]:
    """Arguments whose first is a model: the folder of one of the hub takes its name's place."""
    found = [*argv]
    if found and is_hub_name(found[0]):
        found[0] = str(hub_folder(found[0]))
    return found


def command(work: Callable[[Sequence[str]], int]) -> Callable[..., int]:
    """Makes a function of arguments, by default the command line's, a command.

    What it raises becomes one line on stderr, which names options as flags, and an exit code.
    """

    @functools.wraps(work)
    def main(argv: Sequence[str] | None = None) -> int:
        args = list(sys.argv[1:] if argv is None else argv)
        _open_streams()
        if argv is None:
            _wrap_streams()
        try:
            try:
                with naming_flags(), _signals_unwind(), requiring_torch("this command"):
                    code = work(args)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else EXIT_USAGE
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            print("nartk: interrupted", file=sys.stderr)
            return EXIT_SIGINT
        except BrokenPipeError:
            discard(sys.stdout)
            return EXIT_OUTPUT
        except (NartkError, OSError, MemoryError) as error:
            if "--debug" in args:
                traceback.print_exc()
            named = error if isinstance(error, NartkError) else _named(error)
            print(f"nartk: {named}", file=sys.stderr)
            return named.exit_code
        except Exception as error:  # Python's own exit code, 1, would mean that a comparison failed
            traceback.print_exc()
            found = InternalError(
                f"{type(error).__name__}: {error}".partition("\n")[0].rstrip("."),
                fix="report it with the traceback above: it is a fault of nartk's",
            )
            print(f"nartk: {found}", file=sys.stderr)
            return found.exit_code

    return main


def discard(stream: TextIO) -> None:
    """Loses what a stream cannot write, which would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _named(error: OSError | MemoryError) -> NartkError:
    """The error of a command that the system has refused something."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError("memory ran out", fix="give less at a time, or use a smaller model")
    where = "" if error.filename is None else str(error.filename)
    if error.strerror is None:  # of a library, such as one that downloads what it needs
        what = f"{getattr(error, 'reason', error)}".partition("\n")[0]
        return MissingDependencyError(
            f"something that is needed cannot be fetched: {what}",
            fix="see that the network is there, or do without; --debug shows what is fetched",
        )
    return InputFileError(
        f"cannot be used: {error.strerror}", fix="check the name; --debug shows what for", where=where
    )


def _open_streams() -> None:
    """Opens the standard streams that are closed, so that no file takes their numbers.

    What is written to stderr is lost. Reading stdin and writing to stdout fail, as they should.
    """
    for name, mode, flags in (
        ("stdin", "rb", os.O_WRONLY),
        ("stdout", "wb", os.O_RDONLY),
        ("stderr", "wb", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, flags), mode)
            setattr(sys, name, io.TextIOWrapper(stream, encoding="utf-8"))


class _Stdout(io.TextIOWrapper):
    """stdout: what it refuses is an OutputError, or a BrokenPipeError."""

    def write(self, text: str) -> int:
        with self._named_errors():
            return super().write(text)

    def flush(self) -> None:
        with self._named_errors():
            super().flush()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(self)
            raise stdout_error(error) from error


def stdout_error(error: OSError) -> OutputError:
    """The error of what stdout refuses."""
    fix = "leave stdout open" if error.errno == errno.EBADF else "make space"
    return OutputError(f"cannot write: {error.strerror}", fix=fix, where="stdout")


class _Stderr(io.TextIOWrapper):
    """stderr: what it refuses is lost, since a full disk under a log ends no run."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            discard(self)
            return len(text)


def _wrap_streams() -> None:
    streams: tuple[tuple[str, type[io.TextIOWrapper], bool], ...] = (
        ("stdout", _Stdout, bool(sys.stdout.line_buffering)),
        ("stderr", _Stderr, True),
    )
    for name, made, by_line in streams:
        encoding, errors = (getattr(getattr(sys, name), key) for key in ("encoding", "errors"))
        # Detached: what is replaced would close the file when nothing names it any more.
        setattr(sys, name, made(getattr(sys, name).detach(), encoding, errors, line_buffering=by_line))


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Lets SIGTERM end the command as SIGINT does, by an exception, so that half-written files are removed.

    Python drops an exception that a signal raises within a callback of the interpreter, such as importlib's
    for a lock that is not needed any more, and makes another one of it where a class is made. A read that
    begins in the instant after a signal waits on. So the exception is raised again until the command unwinds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[BaseException] = []

    def stop(number: int, frame: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            asked.append(SystemExit(EXIT_SIGTERM) if number == signal.SIGTERM else KeyboardInterrupt())
            if hasattr(signal, "setitimer"):
                before.setdefault(signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
                signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
        elif _handles(asked[-1]):
            return
        raise asked[-1]

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as behind nohup
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except Exception:  # what the interpreter, or a library, has made of the signal's
        if asked:
            raise asked[-1] from None
        raise
    finally:
        if asked and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _handles(error: BaseException) -> bool:
    """True if the thread is in a handler of an exception, such as `finally` while it unwinds."""
    handled = sys.exc_info()[1]
    while handled is not None and handled is not error:
        handled = handled.__context__
    return handled is error
