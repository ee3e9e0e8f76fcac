"""The file model.bin of CTranslate2: tensors by name, other names of theirs, and the name of its network.

Its layout is that of CTranslate2's ``src/models/model.cc`` and ``python/ctranslate2/specs/model_spec.py``,
of versions 3 to 6, which converters have written since 2020.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nartk.checkpoints.tensors import Array, Tensors, as_fp32, mapped
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import sha256

_VERSIONS = range(3, 7)
_MOST = 100_000  # tensors; real files have some hundreds
# Types by their number, and, before version 4, by the bytes of an element; bf16 is the upper half of an fp32.
_TYPES = {0: "<f4", 1: "|i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}
_BY_SIZE = {4: 0, 2: 2, 1: 1}
_NAMES = {0: "F32", 1: "I8", 2: "I16", 3: "I32", 4: "F16", 5: "BF16"}
_WEIGHT, _SCALE = "weight", "_scale"  # the latter stands behind the name of a quantised weight


class _Span(NamedTuple):
    """Place of a tensor in the file."""

    type: int
    begin: int
    shape: tuple[int, ...]


class BinaryTensors(Tensors):
    """The tensors of a model.bin; quantised ones are those that their numbers and scales stand for.

    Attributes:
        network: Name of the network, such as ``TransformerSpec``.
        revision: Its number, which rises where the network's tensors change.
        aliases: Other names, with those of the tensors that they stand for.

    Raises:
        CheckpointError: The file cannot be read, is cut off or corrupt, or a size in it is false.
        UnsupportedCheckpointError: It is of another version, or its weights are of a type that nartk lacks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shapes, self.types = {}, {}
        self._spans: dict[str, _Span] = {}
        self._bytes = mapped(path)
        self._at = 0
        version = self._number("I")
        if version not in _VERSIONS:
            known = f"{_VERSIONS[0]} to {_VERSIONS[-1]}"
            raise UnsupportedCheckpointError(
                f"a model.bin of version {version}",
                fix=f"convert the model again with a newer CTranslate2; nartk reads {known}",
                where=str(path),
            )
        self.network, self.revision = self._text(), self._number("I")
        for _ in range(self._count()):
            self._locate(version)
        self.aliases = {self._text(): self._text() for _ in range(self._count())}
        if self._at != len(self._bytes):
            raise self._error(f"corrupt: {len(self._bytes) - self._at} bytes are left over")
        for alias, name in self.aliases.items():
            if name not in self._spans or alias in self._spans:
                raise self._error(f"corrupt: {alias[:80]!r} stands for {name[:80]!r}")
        self._pair_scales()

    def _take(self, size: int) -> memoryview:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._bytes):
            raise self._error("cut off")
        return self._bytes[begin : self._at]

    def _number(self, type: str) -> int:
        found: int = struct.unpack(f"<{type}", self._take(struct.calcsize(f"<{type}")))[0]
        return found

    def _count(self) -> int:
        count = self._number("I")
        if count > _MOST:
            raise self._error(f"corrupt: {count} tensors")
        return count

    def _text(self) -> str:
        raw = bytes(self._take(self._number("H")))
        if not raw.endswith(b"\0"):
            raise self._error("corrupt: a name without an end")
        return raw[:-1].decode("utf-8", "replace")

    def _locate(self, version: int) -> None:
        """Finds one tensor."""
        name, rank = self._text(), self._number("B")
        shape = struct.unpack(f"<{rank}I", self._take(4 * rank))
        type, count = self._number("B"), self._number("I")
        if version < 4:
            size, type = type, _BY_SIZE.get(type, -1)
            count *= size
        if type not in _TYPES or name in self._spans:
            raise self._error(f"corrupt: tensor {name[:80]!r} has type {type}, or is there twice")
        if count != math.prod(shape) * np.dtype(_TYPES[type]).itemsize:
            raise self._error(f"tensor {name[:80]!r} has {count} bytes, its shape {[*shape]} says otherwise")
        self._spans[name] = _Span(type, self._at, shape)
        self.shapes[name], self.types[name] = shape, _NAMES[type]
        self._take(count)

    def _pair_scales(self) -> None:
        """Takes the scales out of the names, and gives what they scale the type that is read, fp32."""
        for name in [each for each in self.shapes if each.endswith(_WEIGHT + _SCALE)]:
            scaled = name.removesuffix(_SCALE)
            shape, scales = self.shapes.get(scaled), self.shapes[name]
            if self.types.get(scaled) not in ("I8", "I16") or self.types[name] != "F32":
                raise UnsupportedCheckpointError(
                    f"the tensor {name[:80]!r}, which scales no tensor of int8 or int16",
                    fix="convert the model without quantisation, or to int8",
                    where=str(self._path),
                )
            if math.prod(scales) not in (1, shape[0] if shape else 1):
                raise self._error(f"tensor {name[:80]!r} has shape {[*scales]} for {[*(shape or ())]}")
            del self.shapes[name], self.types[name]
            self.types[scaled] = "F32"

    def __getitem__(self, name: str) -> Array:
        raw, scales = self._raw(name), f"{name}{_SCALE}"
        if scales in self._spans:
            rows = self._raw(scales).reshape(-1, *[1] * (raw.ndim - 1))
            with np.errstate(divide="ignore", invalid="ignore"):  # `digest` finds what a scale of 0 gives
                return raw.astype(np.float32) / rows
        return as_fp32(raw.copy(), self.types[name])  # the mapped file cannot be written

    def _raw(self, name: str) -> Array:
        """A tensor as the file has it."""
        type, begin, shape = self._spans[name]
        return np.frombuffer(self._bytes, _TYPES[type], math.prod(shape), begin).reshape(shape)

    @property
    def names(self) -> list[str]:
        """All names, the other ones too."""
        return [*self.shapes, *self.aliases]

    def original(self, name: str) -> str:
        """The name under which the file has a tensor of any name; names that it lacks are their own."""
        return self.aliases.get(name, name)

    def attribute(self, name: str, default: float | None = None) -> float | None:
        """The number of a tensor without dimensions; a default where there is none."""
        name = self.original(name)
        if name not in self.shapes:
            return default
        found = self[name]
        if found.size != 1:
            raise self._error(f"tensor {name!r} has shape {[*found.shape]}, not one number")
        return float(found.reshape(()))

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def digest(self) -> str:
        for name in self.shapes:
            if not np.isfinite(self[name]).all():
                raise self._error(f"tensor {name[:80]!r} holds NaN or infinity")
        return sha256(self._path)

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=str(self._path))
