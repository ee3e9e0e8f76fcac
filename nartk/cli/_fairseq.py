"""Starts fairseq's commands as nartk's: the cure first, then nartk's architectures, logs on stderr."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nartk import _fairseq_hook
from nartk.cli import _common
from nartk.errors import CheckpointError, InputFileError, UsageError, requiring_fairseq
from nartk.files import BOM, MOST_LINE, not_utf8, raw_lines, reading, writing
from nartk.unpacking import is_packed
from nartk.vocab import MOST_BYTES

# How fairseq's and torch's errors begin that say so of weights.
_MISFITS = ("Cannot load model parameters from checkpoint", "Error(s) in loading state_dict")

# When this module is imported, so that processes which torch spawns are cured as well.
_fairseq_hook.install()


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the examples as they are written, and tells the defaults of fairseq's many options."""


def parser_of(made: argparse.ArgumentParser, prog: str, examples: str) -> argparse.ArgumentParser:
    """A parser of fairseq's as nartk's command, with the flags that all commands have."""
    made.prog, made.epilog, made.formatter_class = prog, examples, HelpFormatter
    _common.add_common(made)
    return made


def command(work: Callable[[Sequence[str]], int]) -> Callable[..., int]:
    """Makes a function a command of fairseq's, for which what fairseq asserts is an error in one line."""

    @_common.command
    def guarded(args: Sequence[str]) -> int:
        start()
        try:
            with _one_line_usage():
                return work([each for each in args if each != "--debug"])  # which fairseq does not know
        except FileNotFoundError as error:
            path = str(error.filename or error)  # of --user-dir fairseq gives the path alone
            named = {"where": path} if error.filename or os.path.isabs(path) else {}
            message = "no such file or folder" if named else _first_line(error)
            raise InputFileError(message, fix="--debug shows who asks for it", **named) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise InputFileError(_first_line(error), fix="--debug shows who asks for it") from error
        except Exception as error:
            if str(error).startswith(_MISFITS):
                raise CheckpointError(
                    "the checkpoint is of another architecture, or of other dictionaries",
                    fix="--debug shows what does not fit",
                ) from error
            if not isinstance(error, AssertionError) or not str(error):
                raise
            raise UsageError(_first_line(error), fix="see --help; --debug shows where") from error

    return guarded


@contextlib.contextmanager
def _one_line_usage() -> Iterator[None]:
    """Makes an error of argparse nartk's, as in `_common.Parser`, in the parsers that fairseq makes too."""

    def error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        few = re.sub(r" \(choose from .{300,}\)", "", message)  # there are a hundred architectures
        raise UsageError(few, fix=f"see {parser.prog} --help")

    before = argparse.ArgumentParser.error
    argparse.ArgumentParser.error = error  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        argparse.ArgumentParser.error = before  # type: ignore[method-assign]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".!")


def start() -> None:
    """Makes fairseq importable and registers nartk's tasks, models and criterions with it.

    Raises:
        MissingDependencyError: fairseq is not installed.
    """
    # fairseq logs to stdout unless logging is configured already.
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=logging.INFO,
        stream=sys.stderr,
    )
    with requiring_fairseq("training runs on fairseq 0.12.2, and the module {name} is not installed"):
        import fairseq  # noqa: F401
    _load_safely()
    _read_safely()
    # Not by fairseq's own --user-dir: it registers nothing once the package nartk has been imported.
    import nartk.tasks

    nartk.tasks.register()


def _load_safely() -> None:
    """Has fairseq refuse by name the checkpoints that `nartk.checkpoints.pickles` refuses."""
    from fairseq import checkpoint_utils

    from nartk.checkpoints.pickles import loading_safely, require_dense

    load = checkpoint_utils.load_checkpoint_to_cpu
    if hasattr(load, "_nartk"):
        return

    @functools.wraps(load)
    def checked(path: str, *args: Any, **options: Any) -> Any:
        with loading_safely(Path(path)):
            state = load(path, *args, **options)
        for name, tensor in _tensors(state):
            require_dense({name: tensor}, path)
        return state

    checked._nartk = True  # type: ignore[attr-defined]
    checkpoint_utils.load_checkpoint_to_cpu = checked


def _tensors(state: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of a checkpoint, each with the last key to it. Its lists may contain themselves."""
    import torch

    seen: set[int] = set()
    found = [("", state)]
    while found:
        name, value = found.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else ((name, each) for each in value)
            found += ((key if isinstance(key, str) else name, each) for key, each in items)


def _read_safely() -> None:
    """Has fairseq refuse by name a dictionary that is malformed, not UTF-8 or endless."""
    from fairseq.data import Dictionary

    add = Dictionary.add_from_file
    if hasattr(add, "_nartk"):
        return

    @functools.wraps(add)
    def checked(self: Any, file: Any) -> None:
        if not isinstance(file, str):
            add(self, file)
            return
        with reading(file) as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputFileError(f"larger than {MOST_BYTES} bytes", fix="give fairseq's dict.txt", where=file)
        for number, line in enumerate(_checked(io.BytesIO(data.removeprefix(BOM)), file), 1):
            try:
                add(self, io.StringIO(line.decode(), newline=None))
            except (ValueError, RuntimeError) as error:
                found = repr(line.decode().rstrip()[:40])
                if isinstance(error, ValueError):
                    message, fix = f"expected 'WORD COUNT', found {found}", "give fairseq's dict.txt"
                else:
                    message, fix = f"{found} has the word of a line before", "take the line out"
                raise InputFileError(message, fix=fix, where=f"{file}:{number}") from error

    checked._nartk = True  # type: ignore[attr-defined]
    Dictionary.add_from_file = checked


def measure_text(name: str) -> tuple[int, bool]:
    """Counts the lines of a file of text, and says whether fairseq reads the same ones.

    It ends lines at lone carriage returns too, keeps a byte order mark, and unpacks nothing.

    Raises:
        InputFileError: It is missing, endless, or not UTF-8.
    """
    if os.path.exists(name) and not os.path.isfile(name):
        raise InputFileError("no regular file", fix="give a file of text", where=name)
    count, same = 0, True
    with reading(name) as file:
        if os.path.isfile(name):
            with open(name, "rb") as raw:
                same = not is_packed(raw)
        for count, line in enumerate(_checked(file, name), 1):
            same &= b"\r" not in line.removesuffix(b"\r\n") and not (count == 1 and line.startswith(BOM))
    return count, same


def copy_text(name: str, copy: Path) -> None:
    """Writes the lines of a text as all commands read them, in a form of which fairseq reads the same."""
    with reading(name) as file, writing(copy, binary=True) as out:
        for line, whole in raw_lines(file):
            if not whole:
                raise InputFileError(f"a line of more than {MOST_LINE} bytes", fix="split it", where=name)
            out.write(line.replace(b"\r", b" ") + b"\n")  # where words end too


def _checked(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Lines of a file; raises InputFileError at a byte that is not UTF-8."""
    for number, line in enumerate(lines, 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(name, number, line[error.start]) from error
        yield line
