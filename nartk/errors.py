"""Every error a user can meet: a code, a message with the value and its bound, and the remedy.

A command prints one line, ``nartk: error[E203 InputTooLong] in.txt:17: ... Fix: ...``, and ends with
the exit code of the error's family.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

WITHOUT_TORCH = "pip install 'nartk[torch]'"
FAIRSEQ = "pip install --no-deps fairseq==0.12.2"  # behind its requirements, which no longer install

EXIT_OK = 0
EXIT_FAILED = 1  # a comparison or verification failed
EXIT_USAGE = 2  # usage, or an impossible combination of options
EXIT_SOME_FAILED = 3  # finished, some lines failed
EXIT_MISFIT = 4  # model and data do not fit
EXIT_CHECKPOINT = 5  # unsafe or corrupt checkpoint
EXIT_OUTPUT = 6  # output cannot be written
EXIT_MEMORY = 7  # out of memory even at batch 1
EXIT_CLUSTER = 8  # a cluster cannot be used
EXIT_INTERNAL = 70  # a fault of nartk's own, as sysexits.h has it
EXIT_SIGINT = 130
EXIT_SIGTERM = 143

_AS_FLAGS = ContextVar("_AS_FLAGS", default=False)


@contextmanager
def naming_flags() -> Iterator[None]:
    """Makes messages name options as flags, as a command's user writes them."""
    token = _AS_FLAGS.set(True)
    try:
        yield
    finally:
        _AS_FLAGS.reset(token)


def named(option: str, *value: object, python: str | None = None) -> str:
    """An option, perhaps with a value, as the user writes it, for messages.

    In Python ``batch_size``, ``dtype='int8'`` and ``truncate=True``; within `naming_flags` ``--batch-size``,
    ``--dtype int8`` and ``--truncate``.

    Args:
        python: Its setting in Python, if it is no keyword there.
    """
    if not _AS_FLAGS.get():
        if python is not None:
            return f"`{python}`"
        return "=".join([option, *map(repr, value)])
    flag = "--" + option.replace("_", "-")
    return " ".join([flag, *(str(each) for each in value if each is not True)])


class NartkError(Exception):
    """Base of all errors that speak to the user.

    Args:
        message: The fault, with the value received and the bound it breaks.
        fix: The remedy, in the imperative, without a final full stop.
        where: The place in the input, such as ``in.txt:17``.
    """

    code = "E000"
    exit_code = EXIT_USAGE

    def __init__(self, message: str, *, fix: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.where = where

    @property
    def name(self) -> str:
        """The error's name without the suffix, as it is printed: ``InputTooLong``."""
        return type(self).__name__.removesuffix("Error")

    def __str__(self) -> str:
        where = f" {self.where}:" if self.where else ""
        fix = f". Fix: {self.fix}." if self.fix else ""
        return f"error[{self.code} {self.name}]{where} {self.message}{fix}"


class UsageError(NartkError):
    """An option is missing, unknown, or holds a value out of its bounds."""

    code, exit_code = "E101", EXIT_USAGE


class UnknownStrategyError(NartkError):
    """No strategy, metric or architecture has this name."""

    code, exit_code = "E102", EXIT_USAGE


class StrategyMismatchError(NartkError):
    """The strategy asks a protocol of the model that the model does not speak."""

    code, exit_code = "E103", EXIT_USAGE


class PassError(NartkError):
    """A pass over a model breaks one of its rules: a fault of the decoder that asked for it."""

    code, exit_code = "E105", EXIT_USAGE


class MissingDependencyError(NartkError):
    """An optional package or resource is not installed."""

    code, exit_code = "E104", EXIT_USAGE


def number_of(count: int, noun: str) -> str:
    """A count with its noun: ``1 sentence``, ``2 passes``."""
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{plural}"


@contextmanager
def requiring(message: str, extra: str) -> Iterator[None]:
    """Turns a failed import, within, into a MissingDependencyError; `{name}` in the message is the module's.

    Args:
        extra: Extra of nartk that installs the missing module.
    """
    try:
        yield
    except ImportError as error:
        fix = f"pip install 'nartk[{extra}]'"
        raise MissingDependencyError(message.format(name=repr(error.name)), fix=fix) from error


@contextmanager
def requiring_fairseq(message: str) -> Iterator[None]:
    """The same of fairseq, whose own requirements no longer install."""
    try:
        with requiring(message, "train"):
            yield
    except MissingDependencyError as error:
        error.fix += f" && {FAIRSEQ}"
        raise


@contextmanager
def requiring_torch(what: str, *, fix: str = WITHOUT_TORCH) -> Iterator[None]:
    """Turns a failed import of torch, within, into a MissingDependencyError that names `what` needs it."""
    try:
        yield
    except ImportError as error:
        if not is_torch(error):
            raise
        raise MissingDependencyError(f"{what} needs torch, which is not installed", fix=fix) from error


def is_torch(error: ImportError) -> bool:
    """Tells whether it is torch that cannot be imported."""
    return error.name is not None and error.name.partition(".")[0] in ("torch", "safetensors")


class InputFileError(NartkError):
    """An input file cannot be opened or is not what its format says."""

    code, exit_code = "E201", EXIT_USAGE


class InputEncodingError(NartkError):
    """A line is not UTF-8, or holds a NUL byte."""

    code, exit_code = "E202", EXIT_SOME_FAILED


def require_text(text: str, what: str = "the line") -> None:
    """Raises InputEncodingError where text holds what UTF-8 or a file of lines cannot."""
    if "\0" in text:
        raise InputEncodingError(f"{what} holds a NUL character", fix="take it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputEncodingError(f"{what} holds half of a surrogate pair", fix="write both halves") from None


class InputTooLongError(NartkError):
    """A line has more tokens than the model reads."""

    code, exit_code = "E203", EXIT_SOME_FAILED


class InputFormatError(NartkError):
    """A line does not follow its format (columns of a TSV, keys of a JSONL)."""

    code, exit_code = "E204", EXIT_SOME_FAILED


class LengthMismatchError(NartkError):
    """Two parallel files have different numbers of lines."""

    code, exit_code = "E301", EXIT_MISFIT


class VocabMismatchError(NartkError):
    """Two models, or a model and a data set, disagree about the vocabulary."""

    code, exit_code = "E302", EXIT_MISFIT


class SourceMismatchError(NartkError):
    """A model that reads text is given features, or the reverse, or features of another shape."""

    code, exit_code = "E305", EXIT_MISFIT


class ResumeMismatchError(NartkError):
    """A run that was broken off is resumed with another input, model or option."""

    code, exit_code = "E303", EXIT_MISFIT


class ModelNotFoundError(NartkError):
    """The model is neither a shipped name nor a folder in the native format."""

    code, exit_code = "E401", EXIT_USAGE


class CheckpointError(NartkError):
    """A checkpoint is corrupt, incomplete, of a wrong shape, or unsafe to load."""

    code, exit_code = "E402", EXIT_CHECKPOINT


class UnsupportedCheckpointError(NartkError):
    """A checkpoint holds a model that nartk cannot express."""

    code, exit_code = "E403", EXIT_CHECKPOINT


class OutputError(NartkError):
    """Output cannot be written: disk full, no permission, closed pipe."""

    code, exit_code = "E501", EXIT_OUTPUT


class OutOfMemoryError(NartkError):
    """Memory ran out even with a single sentence in the batch."""

    code, exit_code = "E601", EXIT_MEMORY


class ClusterError(NartkError):
    """A cluster cannot be reached or used: its workers die, or have other files than this machine."""

    code, exit_code = "E701", EXIT_CLUSTER


class InternalError(NartkError):
    """An unforeseen fault of nartk's, or of a library's."""

    code, exit_code = "E901", EXIT_INTERNAL


def require_count(name: str, value: object, most: int | None = None) -> None:
    """Raises UsageError where an option's value is no whole number from 1 to `most`; None: any."""
    if type(value) is not int or value < 1 or (most is not None and value > most):
        raise UsageError(
            f"{named(name)} is {value!r}", fix="give at least 1" if most is None else f"give 1 to {most}"
        )
