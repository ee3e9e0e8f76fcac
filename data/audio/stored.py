"""Features that were computed before, in files of NumPy, of which a line names one: ``FILE.npz#NAME``.

A file holds an array [T,F] for each name; or, as corpora of many short utterances do, ``offsets`` [N+1],
``ids`` [N] and one matrix of all frames, of which name ``ids[i]`` has rows ``offsets[i]`` to
``offsets[i + 1]``.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from nartk.data.audio.sounds import open_file
from nartk.errors import InputFileError
from nartk.files import writing
from nartk.protocols.passes import FloatArray

_BROKEN = (OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error)


def read_features(line: str) -> FloatArray:
    """The features [T,F] fp32 that ``FILE.npz#NAME`` names.

    Raises:
        InputFileError: There is no such file, it is not as this module's docstring says, or has no such name.
    """
    path, mark, name = line.rpartition("#")
    if not mark:
        raise InputFileError(f"{line!r} names no features", fix="write FILE.npz#NAME")
    with _reading(path):
        found = _file(path)[name]
        if found.ndim != 2 or not np.issubdtype(found.dtype, np.floating):
            raise ValueError(f"{name!r} is {found.dtype} {list(found.shape)}, not numbers [T, F]")
        return np.asarray(found, np.float32)


def names(path: str) -> list[str]:
    """The names of the features in a file, in its order; raises as `read_features`."""
    with _reading(path):
        return list(_file(path))


def write_features(path: Path, features: Mapping[str, FloatArray]) -> None:
    """Writes features [T,F] of each name, as one matrix with offsets; raises OutputError."""
    offsets = np.cumsum([0, *map(len, features.values())])
    with writing(path, binary=True) as file:
        np.savez_compressed(
            file, frames=np.concatenate([*features.values()]), offsets=offsets, ids=np.array([*features])
        )


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (*_BROKEN, *_BROKEN_ZIP) as error:
        reason = f"has no features {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise InputFileError(f"{path!r} {reason}", fix="give a file of features, FILE.npz#NAME") from error


def _file(path: str) -> Mapping[str, np.ndarray]:
    with open_file(path) as file:
        state = os.fstat(file.fileno())
    return _load(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _load(path: str, changed: int, size: int) -> Mapping[str, np.ndarray]:
    """The arrays of a file, each read when it is looked up, or views of its one matrix."""
    if not zipfile.is_zipfile(path):
        raise ValueError("not an .npz file")
    file = np.load(path)
    if not {"ids", "offsets"} <= set(file):
        named: Mapping[str, np.ndarray] = file
        return named
    with file:
        ids, offsets = file["ids"], file["offsets"]
        arrays = [file[name] for name in file if name not in ("ids", "offsets")]
    matrices = [each for each in arrays if each.ndim == 2 and np.issubdtype(each.dtype, np.floating)]
    if len(matrices) != 1 or ids.ndim != 1 or ids.dtype.kind != "U":
        raise ValueError("offsets without ids and one matrix of numbers")
    whole = np.issubdtype(offsets.dtype, np.integer) and offsets.shape == (len(ids) + 1,)
    if not whole or offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(matrices[0]):
        raise ValueError("offsets do not match ids")
    ends = offsets.tolist()
    return {
        name: matrices[0][begin:end]
        for name, begin, end in zip(ids.tolist(), ends[:-1], ends[1:], strict=True)
    }
