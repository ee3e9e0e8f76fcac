"""The files of Marian's models: ``.npz``, and the binary ``.bin`` of Bergamot and Firefox.

The layout of ``.bin`` is that of Marian's ``src/common/binary.cpp``: a version, the sizes of all tensors,
their names, their shapes, and behind these at a multiple of 256 bytes their numbers. int8 and int16 of
intgemm (``src/tensors/cpu/expression_graph_packable.h``) lie as whole numbers in the order of a transposed
matrix, that of words excepted, with one number behind them that each was multiplied by.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nartk.checkpoints.tensors import Array, Tensors, mapped
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import sha256

VERSION = struct.pack("<Q", 1)  # with which a .bin begins
OPTIONS = "special:model.yml"
_MOST, _LONGEST, _MOST_DIMENSIONS = 100_000, 1000, 8  # tensors, letters of a name, dimensions of a tensor
# Marian's numbers of types, with NumPy's and the names of safetensors.
_TYPES = {0x404: ("<f4", "F32"), 0x402: ("<f2", "F16"), 0x408: ("<f8", "F64"), 0x101: ("|i1", "I8")}
_INTGEMM = {0x4101: "|i1", 0x4102: "<i2"}
_NPY = {"<f4": "F32", "<f2": "F16", "<f8": "F64", "|i1": "I8", "|u1": "U8", "|S1": "U8"}
_MOST_HEADER = 20_000  # bytes of the description of a tensor in an archive
_WORDS = "Wemb"  # a part of the names of matrices of words
# What zipfile and NumPy raise of damaged files.
_DAMAGED = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, SyntaxError)
_STORED = "store it again with numpy.savez"


class _Span(NamedTuple):
    """Place of a tensor in the file.

    Attributes:
        type: Name that NumPy has for it.
        multiplier: Factor that turned weights into whole numbers; None: the file has the weights.
    """

    type: str
    begin: int
    shape: tuple[int, ...]
    multiplier: float | None = None


class MarianTensors(Tensors):
    """The tensors of a file of Marian's; whole numbers of intgemm are those that they stand for.

    Attributes:
        options: Contents of ``special:model.yml``, the model's settings.

    Raises:
        CheckpointError: The file cannot be read, is cut off or corrupt, or a size in it is false.
        UnsupportedCheckpointError: Its weights are of a type that nartk lacks, or packed for a processor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shapes, self.types = {}, {}
        self._spans: dict[str, _Span] = {}
        self._bytes = mapped(path)
        if self._bytes[: len(VERSION)] == VERSION:
            self._locate_binary()
        else:
            self._locate_archive()
        self.options = ""
        if OPTIONS in self._spans:
            self.options = bytes(self._raw(OPTIONS)).rstrip(b"\0").decode("utf-8", "replace")
            del self._spans[OPTIONS]
        for name, span in self._spans.items():
            self.shapes[name] = span.shape
            names = dict(_TYPES.values())
            self.types[name] = "F32" if span.multiplier is not None else names.get(span.type, "U8")

    def _locate_binary(self) -> None:
        at = len(VERSION)

        def take(format: str) -> tuple[int, ...]:
            nonlocal at
            begin, at = at, at + struct.calcsize(f"<{format}")
            if at > len(self._bytes):
                raise self._error("cut off")
            return struct.unpack(f"<{format}", self._bytes[begin:at])

        (count,) = take("Q")
        if count > _MOST:
            raise self._error(f"corrupt: {count} tensors")
        headers = [take("4Q") for _ in range(count)]
        names = []
        for length, *_ in headers:
            if not 0 < length <= _LONGEST:
                raise self._error(f"corrupt: a name of {length} letters")
            (raw,) = take(f"{length}s")
            names.append(bytes(raw).removesuffix(b"\0").decode("utf-8", "replace"))
        shapes = []
        for _, _, dimensions, _ in headers:
            if dimensions > _MOST_DIMENSIONS:
                raise self._error(f"corrupt: a tensor of {dimensions} dimensions")
            shapes.append(take(f"{dimensions}i"))
        (padding,) = take("Q")
        if padding > len(self._bytes) - at:
            raise self._error("cut off")
        at += padding
        for name, shape, (_, type, _, size) in zip(names, shapes, headers, strict=True):
            if size > len(self._bytes) - at:
                raise self._error("cut off")
            self._add(name, self._span(name, shape, type, size, at))
            at += size
        if at != len(self._bytes):
            raise self._error(f"corrupt: {len(self._bytes) - at} bytes are left over")

    def _span(self, name: str, shape: tuple[int, ...], type: int, size: int, begin: int) -> _Span:
        if type not in _TYPES and type not in _INTGEMM:
            raise UnsupportedCheckpointError(
                f"tensor {name[:80]!r} has Marian's type {type:#x}: packed for a processor, or unknown",
                fix="name the .npz that it was made of, or what marian-conv makes of it with the gemm type "
                "float32 or intgemm8",
                where=str(self._path),
            )
        numbers = _INTGEMM.get(type) or _TYPES[type][0]
        if any(each < 0 for each in shape):
            raise self._error(f"corrupt: tensor {name[:80]!r} has shape {[*shape]}")
        bytes_wanted = math.prod(shape) * np.dtype(numbers).itemsize
        behind = 4 if type in _INTGEMM else 0
        if size < bytes_wanted + behind:
            raise self._error(f"tensor {name[:80]!r} has {size} bytes, its shape {[*shape]} says otherwise")
        if type not in _INTGEMM:
            return _Span(numbers, begin, shape)
        (multiplier,) = struct.unpack_from("<f", self._bytes, begin + bytes_wanted)
        if not (math.isfinite(multiplier) and multiplier > 0.0):
            raise self._error(f"tensor {name[:80]!r} was multiplied by {multiplier}")
        return _Span(numbers, begin, shape, multiplier)

    def _locate_archive(self) -> None:
        try:
            with self._path.open("rb") as file, zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if len(members) > _MOST:
                    raise self._error(f"corrupt: {len(members)} tensors")
                for member in members:
                    self._add(member.filename.removesuffix(".npy"), self._member(member))
        except CheckpointError:
            raise
        except _DAMAGED as error:
            raise self._error(f"neither NumPy's archive nor a binary file of Marian's: {error}") from error

    def _member(self, member: zipfile.ZipInfo) -> _Span:
        """The place of the numbers of a file in the archive, which is not compressed."""
        name, begin = member.filename, member.header_offset
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise UnsupportedCheckpointError(
                f"the file {name[:80]!r} in it is compressed, which Marian's are not", fix=_STORED,
                where=str(self._path),
            )  # fmt: skip
        head = self._bytes[begin : begin + 30]
        if len(head) < 30:
            raise self._error("cut off")
        begin += 30 + sum(struct.unpack("<2H", head[26:30]))
        stream = io.BytesIO(self._bytes[begin : begin + min(member.file_size, _MOST_HEADER)])
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, columns_first, dtype = np.lib.format.read_array_header_2_0(stream)
        begin += stream.tell()
        if dtype.str not in _NPY or (columns_first and len(shape) > 1):
            raise self._error(f"tensor {name[:80]!r} has type {dtype.str}, or the order of Fortran")
        size = math.prod(shape) * dtype.itemsize
        if len(shape) > _MOST_DIMENSIONS or size > len(self._bytes) - begin:
            raise self._error(f"tensor {name[:80]!r} is cut off: its shape is {[*shape]}")
        return _Span(dtype.str, begin, shape if len(shape) != 1 else (1, *shape))

    def _add(self, name: str, span: _Span) -> None:
        if name in self._spans:
            raise self._error(f"corrupt: tensor {name[:80]!r} is there twice")
        self._spans[name] = span

    def _raw(self, name: str) -> Array:
        """A tensor as the file has it; one of intgemm as [inputs,outputs], as Marian's shape says."""
        type, begin, shape, multiplier = self._spans[name]
        flat = np.frombuffer(self._bytes, type, math.prod(shape), begin)
        if multiplier is not None and _WORDS not in name and len(shape) == 2:
            return flat.reshape(shape[::-1]).T
        return flat.reshape(shape)

    def __getitem__(self, name: str) -> Array:
        found, multiplier = self._raw(name).astype(np.float32), self._spans[name].multiplier
        return found if multiplier is None else found * (np.float32(1.0) / np.float32(multiplier))

    def multiplier(self, name: str) -> float | None:
        """Factor that turned a tensor into whole numbers of int8; None: it is no such tensor."""
        span = self._spans[name]
        return span.multiplier if span.type == "|i1" else None

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def digest(self) -> str:
        for name, type in self.types.items():
            if type.startswith("F") and not np.isfinite(self[name]).all():
                raise self._error(f"tensor {name[:80]!r} holds NaN or infinity")
        return sha256(self._path)

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=str(self._path))
