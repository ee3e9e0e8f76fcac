"""Tensors of safetensors files: reads each when it is asked for, as fp32, and writes them."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from nartk.errors import CheckpointError
from nartk.files import JsonObject, parse_json

_MAX_HEADER = 10_000_000  # bytes of a safetensors header; real ones are thousands of times smaller
# How NumPy reads the types of safetensors.
_TYPES = {
    name: np.dtype(type)
    for name, type in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",  # NumPy has none: the upper half of an fp32
        "I64": "<i8",
        "I32": "<i4",
        "I8": "|i1",
        "U8": "|u1",
        "BOOL": "|b1",
    }.items()
}
# The bits of the exponent, in words of the type's size. Where all are set is NaN or infinity.
_EXPONENTS = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
FLOATS = ("F64", *_EXPONENTS)  # types of floating point

Array: TypeAlias = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


def mapped(path: Path) -> memoryview:
    """The bytes of a file, mapped into memory; raises CheckpointError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise CheckpointError(f"cannot read: {error}", where=str(path)) from error


class Tensors(Mapping[str, Array]):
    """Tensors by name, each read when it is asked for; floating point as fp32.

    Attributes:
        shapes: Shape of each tensor.
        types: Type of each tensor in its file, as safetensors names it, such as ``F16``.
    """

    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of the files that hold them."""
        raise NotImplementedError

    def digest(self) -> str | None:
        """SHA-256 of the file; None where it is only mapped. Checks all numbers.

        Raises:
            CheckpointError: A tensor holds NaN or infinity.
        """
        raise NotImplementedError

    def row_scales(self, name: str) -> Array | None:
        """Scales [rows] fp32 of a matrix that is whole numbers of int8 times them; None: it is none."""
        return None

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class StoredTensors(Tensors):
    """The tensors of a safetensors file.

    Names that stand for the same tensor give the same array, as long as somebody holds it.

    Raises:
        CheckpointError: The file is truncated, corrupt, or its header says more than the file holds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shapes, self.types = {}, {}
        self._starts: dict[str, int] = {}  # byte of the file at which each begins, ascending
        self._rows: dict[str, int] = {}  # how many are read of tensors of which not all are
        self._held: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
        try:
            # It stays open, so that what is read later is of the file that was checked.
            self._file = path.open("rb")
            weakref.finalize(self, self._file.close)
            size = path.stat().st_size
            head = self._file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise CheckpointError("truncated, or not a safetensors file", where=str(path))
            self._head = head + self._file.read(length)
        except OSError as error:
            raise CheckpointError(f"cannot read: {error.strerror}", where=str(path)) from error
        self._locate(parse_json(self._head[8:], path), size - len(self._head))

    def _locate(self, header: JsonObject, size: int) -> None:
        offsets: dict[str, list[int]] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if not isinstance(entry, dict) or str(entry.get("dtype")) not in _TYPES:
                raise self._error(f"tensor {name[:80]!r} has no known type")
            shape, span = entry.get("shape"), entry.get("data_offsets")
            if not are_sizes(shape):
                raise self._error(f"tensor {name[:80]!r} has no shape")
            if not are_sizes(span):
                raise self._error(f"corrupt: tensor {name[:80]!r} has no offsets")
            self.shapes[name], self.types[name], offsets[name] = tuple(shape), entry["dtype"], span
        total = sum(map(self._size, offsets))
        if total != size:
            raise self._error(f"holds {size} bytes of weights, its header says {total}")
        start = 0
        for name in sorted(offsets, key=lambda name: offsets[name]):
            end = start + self._size(name)
            if offsets[name] != [start, end]:  # so that no two share what the file holds once
                raise self._error(f"corrupt: tensor {name[:80]!r} does not begin where another one ends")
            self._starts[name] = len(self._head) + start
            start = end

    def read_first(self, name: str, rows: int) -> None:
        """Has only the first so many rows of a tensor read from now on; `shapes` remain the file's."""
        self._rows[name] = rows

    def alias(self, name: str, original: str) -> None:
        """Gives a tensor a second name."""
        self.shapes[name], self.types[name] = self.shapes[original], self.types[original]
        self._starts[name] = self._starts[original]

    @property
    def nbytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def digest(self) -> str | None:
        digest = hashlib.sha256(self._head)
        for name in self._starts:
            raw = self._read(name, self.shapes[name])
            self._require_finite(name, raw)
            digest.update(raw.data)
        return digest.hexdigest()

    def _require_finite(self, name: str, raw: Array) -> None:
        if not _is_finite(raw, self.types[name]):
            raise self._error(f"tensor {name[:80]!r} holds NaN or infinity")

    def __getitem__(self, name: str) -> Array:
        start, shape = self._starts[name], self.shapes[name]
        if name in self._rows:
            shape = (self._rows[name], *shape[1:])
        array = self._held.get(start)
        if array is None or array.shape != shape:  # an empty tensor begins where the next does
            array = as_fp32(self._read(name, shape), self.types[name]).reshape(shape)
            self._held[start] = array
        return array

    def _read(self, name: str, shape: tuple[int, ...]) -> Array:
        """The first numbers [n] of a tensor as the file has them, as many as the shape says."""
        raw = np.empty(math.prod(shape), _TYPES[self.types[name]])
        try:
            self._file.seek(self._starts[name])
            count = self._file.readinto(raw.view(np.uint8).data)
        except OSError as error:
            raise self._error(f"cannot read: {error.strerror}") from error
        if count != raw.nbytes:
            raise self._error(f"tensor {name[:80]!r} is cut off")
        return raw

    def _size(self, name: str) -> int:
        return math.prod(self.shapes[name]) * _TYPES[self.types[name]].itemsize

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=str(self._path))


class QuantizedTensors(StoredTensors):
    """The tensors of an int8 folder, whose matrices lie in the file as the engine reads them."""

    def digest(self) -> str | None:
        for name, type in self.types.items():
            if type in FLOATS:
                self._require_finite(name, self._read(name, self.shapes[name]))
        return None

    def mapped(self, name: str) -> Array:
        """A tensor where the file has it: read-only, and in memory as far as it is read."""
        raw = self._bytes[self._starts[name] :][: self._size(name)]
        if len(raw) != self._size(name):
            raise self._error(f"tensor {name[:80]!r} is cut off")
        return raw.view(_TYPES[self.types[name]]).reshape(self.shapes[name])

    @cached_property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        try:
            return np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise self._error(f"cannot map: {error}") from error


def pack_tensors(tensors: Mapping[str, Array]) -> list[bytes | memoryview]:
    """The parts of a safetensors file of whole numbers of 8 bits and fp32.

    The first tensor begins at a multiple of 64 bytes, and so does each behind one of such a size.
    """
    names = {np.dtype(np.int8): "I8", np.dtype(np.float32): "F32"}
    header = _header({name: (names[array.dtype], array.shape) for name, array in tensors.items()})
    return [header, *map(_bytes, tensors.values())]


def pack_floats(tensors: Tensors, names: Collection[str], dtype: str) -> Iterator[bytes | memoryview]:
    """The parts of a safetensors file of some tensors, one in memory at a time.

    Args:
        dtype: fp32, bf16 or fp16, to which numbers are rounded.

    Raises:
        CheckpointError: A number is too large for it.
    """
    type = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[dtype]
    yield _header({name: (type, tensors.shapes[name]) for name in names})
    for name in names:
        raw = _rounded(tensors[name], type)
        if not _is_finite(raw, type):
            raise CheckpointError(f"tensor {name!r} holds numbers too large for {dtype}")
        yield _bytes(raw)


def _header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The header of a safetensors file of tensors of types and shapes, in their order."""
    header: JsonObject = {"__metadata__": {"format": "np"}}
    end = 0
    for name, (type, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * _TYPES[type].itemsize
        header[name] = {"dtype": type, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % 64)
    return struct.pack("<Q", len(head)) + head


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _rounded(array: Array, type: str) -> Array:
    """fp32 numbers as a type of safetensors, halves to even."""
    if type == "BF16":
        bits = np.ascontiguousarray(array).view("<u4")
        rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        return rounded
    with np.errstate(over="ignore"):  # infinity is found where it is written
        return array.astype(_TYPES[type], copy=False)


def are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def as_fp32(raw: Array, type: str) -> Array:
    """Floating-point numbers [n] as fp32; others as they are."""
    if type == "BF16":
        return (raw.astype("<u4") << 16).view("<f4")
    if type not in ("F64", "F16"):
        return raw
    with np.errstate(over="ignore"):  # what fp32 cannot hold becomes infinity
        return raw.astype(np.float32)


def _is_finite(raw: Array, type: str) -> bool:
    if type == "F64":
        raw, type = as_fp32(raw, type), "F32"
    if type not in _EXPONENTS or raw.size == 0:
        return True
    words, exponent = _EXPONENTS[type]
    return bool((raw.view(words) & exponent).max() != exponent)


def require_shapes(wanted: Shapes, found: Shapes, where: str) -> None:
    """Raises CheckpointError, naming the first difference, unless names and shapes are the same."""
    for name, shape in wanted.items():
        if name not in found:
            raise CheckpointError(f"tensor {name!r} is missing", where=where)
        if found[name] != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(found[name])}, the configuration says {list(shape)}",
                where=where,
            )
    extra = found.keys() - wanted.keys()
    if extra:
        raise CheckpointError(f"tensor {min(extra)!r} is not in the configuration", where=where)
