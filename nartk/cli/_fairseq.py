"""How nartk's commands start fairseq's: the cure first, then nartk's architectures, logs on stderr."""

from __future__ import annotations

import argparse
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nartk import _fairseq_hook
from nartk.cli import _common
from nartk.errors import InputFileError, UsageError, requiring_fairseq

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
            return work([each for each in args if each != "--debug"])  # which fairseq does not know
        except FileNotFoundError as error:
            named = {} if error.filename is None else {"where": str(error.filename)}
            message = "no such file or folder" if named else _first_line(error)
            raise InputFileError(message, fix="--debug shows who asks for it", **named) from error
        except AssertionError as error:
            if not str(error):
                raise
            raise UsageError(_first_line(error), fix="see --help; --debug shows where") from error

    return guarded


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
    # Not by fairseq's own --user-dir: it registers nothing once the package nartk has been imported.
    import nartk.tasks

    nartk.tasks.register()


def _load_safely() -> None:
    """Has fairseq refuse by name the checkpoints that `nartk.adapters.fairseq` refuses."""
    from fairseq import checkpoint_utils

    from nartk.adapters.fairseq import loading_safely

    load = checkpoint_utils.load_checkpoint_to_cpu
    if hasattr(load, "_nartk"):
        return

    @functools.wraps(load)
    def checked(path: str, *args: Any, **options: Any) -> Any:
        with loading_safely(Path(path)):
            return load(path, *args, **options)

    checked._nartk = True  # type: ignore[attr-defined]
    checkpoint_utils.load_checkpoint_to_cpu = checked
