"""Sources as users give them: a line of text, a file's path or bytes, samples in memory, or features."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np

from nartk.errors import InputFileError, UsageError
from nartk.protocols.passes import FeatureSource, FloatArray

_MOST_CHANNELS = 64
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recording:
    """Sound in memory.

    Attributes:
        data: Samples [N, channels] fp32, 1 the largest that a file of whole numbers can hold; or the bytes of
            a file.
        rate: Samples a second; of a file's bytes 0, they tell.
    """

    data: FloatArray | bytes
    rate: int = 0

    def __str__(self) -> str:
        if isinstance(self.data, bytes):
            return f"a file of {len(self.data)} bytes"
        return f"{len(self.data)} samples"


Drafts: TypeAlias = Iterable[str | Iterable[str]]  # of each line one or several
Given: TypeAlias = str | Recording | FeatureSource  # a line, or a file's path, among them
# What `as_given` takes: of sound also (samples, rate), and what `datasets` gives.
SourceLike: TypeAlias = (
    "str | os.PathLike[str] | bytes | IO[bytes] | FeatureSource | tuple[Any, float] | Mapping[str, Any]"
)


def is_one(item: object) -> bool:
    """Tells whether an object is one source, not several."""
    if isinstance(item, tuple):
        return len(item) == 2 and hasattr(item[0], "shape") and isinstance(item[1], int | float)
    if isinstance(item, str | os.PathLike | bytes | bytearray | FeatureSource | Recording | Mapping):
        return True
    return _is_binary_file(item) or _is_decoder(item)


def _is_binary_file(item: object) -> bool:
    """True if it is an open file; one of text, which has lines, says its encoding."""
    return callable(getattr(item, "read", None)) and not hasattr(item, "encoding")


def _is_decoder(item: object) -> bool:
    """True if it is an AudioDecoder of torchcodec, as `datasets` gives them."""
    return callable(getattr(item, "get_all_samples", None))


def as_given(name: str, item: object) -> Given:
    """A source of what a user gave.

    Args:
        name: Name of the source in errors.
        item: A line or a path; the bytes of a file of sound, or a binary file that is open, which is read to
            its end; samples and their rate; a dictionary with ``array`` and ``sampling_rate``, or ``bytes``
            or ``path``, or a decoder of torchcodec, as `datasets` has them; or features.

    Raises:
        UsageError: It is none of these.
        InputFileError: The file cannot be read.
    """
    if isinstance(item, str | Recording | FeatureSource):
        return item
    if isinstance(item, os.PathLike):
        path: str = os.fspath(item)
        return path
    if isinstance(item, bytes | bytearray):
        return Recording(bytes(item))
    if _is_decoder(item):
        found = item.get_all_samples()  # type: ignore[attr-defined]
        return _samples(name, found.data, found.sample_rate)
    if _is_binary_file(item):
        return Recording(_read(name, item))  # type: ignore[arg-type]
    if isinstance(item, Mapping):
        if item.get("array") is not None:
            return _samples(name, item["array"], item.get("sampling_rate"))
        if isinstance(item.get("bytes"), bytes):
            return Recording(item["bytes"])
        if isinstance(item.get("path"), str):
            return str(item["path"])
    elif is_one(item):
        return _samples(name, *item)  # type: ignore[misc]
    fix = "pass a line, a path, a file or its bytes, (samples, rate), what datasets gives, or features"
    if hasattr(item, "shape"):
        fix = "pass samples with their rate: (samples, 16000)"
    raise UsageError(f"{name} is {reprlib.repr(item)}, not a string or a sound", fix=fix)


def _read(name: str, file: IO[bytes]) -> bytes:
    """The bytes of an open file from where it is on."""
    try:
        found = file.read()
    except (OSError, ValueError) as error:
        raise InputFileError(f"{name} cannot be read: {error}", fix="open it again") from error
    if not isinstance(found, bytes):
        raise UsageError(f"{name} is a file of text", fix='open it with "rb"')
    return found


def _samples(name: str, samples: Any, rate: object) -> Recording:
    """Samples in any type, [N], [channels, N] or [N, channels]: channels are fewer than samples."""
    if not isinstance(rate, int | float) or rate != int(rate) or rate < 1:
        raise UsageError(f"{name} has the rate {rate!r}", fix="give samples a second, a whole number")
    found = np.asarray(samples.detach().cpu() if hasattr(samples, "detach") else samples)
    if found.ndim == 1:
        found = found[:, None]
    elif found.ndim == 2 and found.shape[0] < found.shape[1]:
        found = found.T
    if found.ndim != 2 or found.shape[1] > _MOST_CHANNELS or found.dtype.kind not in "fi":
        raise UsageError(
            f"{name} has samples of shape {found.shape} and type {found.dtype}",
            fix="give numbers [N] or [channels, N]",
        )
    if found.dtype.kind == "i":  # as in files, whose largest number is 1
        found = found / float(1 << (8 * found.dtype.itemsize - 1))
    return Recording(np.ascontiguousarray(found, np.float32), int(rate))


def several(name: str, items: Iterable[T]) -> Iterator[T]:
    """Iterates over items; one string, whose letters these would be, is a UsageError."""
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise UsageError(f"{name} is {reprlib.repr(items)}, not a list of strings", fix="pass a list")
    return iter(items)


def lists(name: str, items: Drafts) -> list[list[str]]:
    """The strings of each line, of which one may stand by itself."""
    return [
        strings(f"{name}[{index}]", [each] if isinstance(each, str) else each)
        for index, each in enumerate(several(name, items))
    ]


def strings(name: str, items: Iterable[str], first: int = 0) -> list[str]:
    """The items, `first` the index of the first of them, without the ends of lines that files have.

    Raises:
        UsageError: They are one string, or one of them is none.
    """
    found = []
    for index, item in enumerate(several(name, items), start=first):
        if not isinstance(item, str):
            raise UsageError(
                f"{name}[{index}] is {reprlib.repr(item)}, not a string", fix="pass strings alone"
            )
        found.append(item.rstrip("\r\n"))
    return found
