"""A map from a state dict's names to nartk's, and the weights under these.

The file is JSON, an object with

- ``names``: patterns of the state dict's names, each with a pattern of nartk's name, or a list of several
  where a tensor is several weights (shared embeddings). ``{i}`` is the number of a layer, ``{w}`` is
  ``weight`` or ``bias``. ``q|k|v`` in nartk's name are rows below each other, as
  ``encoder_layers.{i}.self_attention.q|k|v.{w}`` is of `torch.nn.MultiheadAttention`'s ``in_proj``; with one
  letter alone the state dict has a tensor of its own for each.
- ``ignored``: patterns of names, in which ``*`` is anything, that the model has no use for.
- ``transposed``: patterns of the matrices that are stored [inputs, outputs].
- ``zeros``: patterns of nartk's names that the state dict has not, and that are 0.

nartk's names are those of `nartk.architectures.settings.Config.weight_shapes`, the rows of ``qkv`` and ``kv``
by their letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nartk.checkpoints.tensors import FLOATS, Array, Tensors
from nartk.errors import CheckpointError
from nartk.files import JsonObject

Shape = tuple[int, ...]

_KEYS = ("names", "ignored", "transposed", "zeros")
_GROUPS = {r"\{i\}": r"(?P<i>\d+)", r"\{w\}": r"(?P<w>weight|bias)", r"\*": ".*"}
_JOINED = ("qkv", "kv")  # the last names of layers that give several things, a letter each
_POSITIONS = ".positions.weight"
_MOST_NAMED = 12  # names of a kind in a message


class Piece(NamedTuple):
    """Rows of a tensor of the state dict: `start` to `stop` of `name`."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class NameMap:
    """A map of names, as it was read.

    Raises:
        CheckpointError: It is damaged, or a pattern of it is.
    """

    names: Mapping[str, Sequence[str]]
    ignored: Sequence[str] = ()
    transposed: Sequence[str] = ()
    zeros: Sequence[str] = ()
    where: str = ""
    _compiled: dict[str, re.Pattern[str]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for pattern in (*self.names, *self.ignored, *self.transposed, *self.zeros):
            text = re.escape(pattern)
            for placeholder, group in _GROUPS.items():
                text = text.replace(re.escape(placeholder.replace("\\", "")), group)
            if "{" in text.replace("\\{", "") or any(pattern.count(each) > 1 for each in ("{i}", "{w}", "*")):
                raise CheckpointError(f"{pattern!r} has a placeholder twice", where=self.where)
            self._compiled[pattern] = re.compile(text)

    @classmethod
    def of(cls, values: JsonObject, where: str) -> NameMap:
        """The map in a JSON object."""
        unknown = values.keys() - _KEYS
        if unknown:
            raise CheckpointError(
                f"unknown key {min(unknown)!r}", fix=f"known are {', '.join(_KEYS)}", where=where
            )
        names = values.get("names")
        if not isinstance(names, dict):
            raise CheckpointError("'names' is no object of names", where=where)
        lists = {key: _strings(values.get(key, []), key, where) for key in _KEYS[1:]}
        found = {
            theirs: _strings([ours] if isinstance(ours, str) else ours, theirs, where)
            for theirs, ours in names.items()
        }
        return cls(found, where=where, **lists)

    def targets(self, name: str) -> list[list[str]] | None:
        """nartk's names of a tensor: of each weight that it is, those of its rows; None: it is not there."""
        for pattern, ours in self.names.items():
            if (match := self._compiled[pattern].fullmatch(name)) is not None:
                return [_split(each, match.groupdict()) for each in ours]
        return None

    def is_of(self, name: str, patterns: Sequence[str]) -> bool:
        """Tells whether a name matches one of the map's patterns."""
        return any(self._compiled[each].fullmatch(name) for each in patterns)


def _strings(values: object, key: str, where: str) -> Sequence[str]:
    if not isinstance(values, list) or not values == [each for each in values if isinstance(each, str)]:
        raise CheckpointError(f"{key!r} is {str(values)[:80]}, not names", where=where)
    return values


def _split(pattern: str, groups: Mapping[str, str]) -> list[str]:
    """The names in a pattern of nartk's: one for each of ``q|k|v``."""
    for placeholder, value in groups.items():
        pattern = pattern.replace(f"{{{placeholder}}}", value)
    parts = pattern.split(".")
    at = next((i for i, part in enumerate(parts) if "|" in part or part in _JOINED), None)
    if at is None:
        return [pattern]
    each = parts[at].split("|") if "|" in parts[at] else [*parts[at]]
    return [".".join([*parts[:at], one, *parts[at + 1 :]]) for one in each]


def pieces_of(shapes: Mapping[str, Shape]) -> dict[str, tuple[str, Shape]]:
    """The weights of a model by the names of their rows: the weight that they belong to, and their shape."""
    found = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        letters = parts[-2] if len(parts) > 1 and parts[-2] in _JOINED else ""
        for letter in letters:
            own = ".".join([*parts[:-2], letter, parts[-1]])
            found[own] = name, (shape[0] // len(letters), *shape[1:])
        if not letters:
            found[name] = name, shape
    return found


class MappedWeights(Tensors):
    """The weights of a model under nartk's names, each made of a state dict's when it is asked for.

    Args:
        shapes: Shapes of the weights that are wanted.
        tables: Weights that the state dict need not have.

    Raises:
        CheckpointError: Tensors are missing, left over, claimed twice, or of another shape; all are named.
    """

    def __init__(
        self,
        stored: Tensors,
        map: NameMap,
        shapes: Mapping[str, Shape],
        tables: Mapping[str, Array],
        where: str,
    ) -> None:
        self._stored, self._map, self._where = stored, map, where
        self.tables = tables
        self._wanted = pieces_of({name: shape for name, shape in shapes.items() if name not in tables})
        self.sources: dict[str, Piece] = {}
        problems = [*self._assign(), *self._missing()]
        if problems:
            raise CheckpointError(
                "; ".join(problems), fix=f"mend the map, {map.where}, or the configuration", where=where
            )
        self._pieces: dict[str, list[str]] = {}
        for own, (name, _) in self._wanted.items():
            self._pieces.setdefault(name, []).append(own)
        self.shapes = dict(shapes)
        self.types = dict.fromkeys(shapes, "F32")

    def _assign(self) -> Iterator[str]:
        """Finds the rows of each tensor; yields what is wrong."""
        left, twice, unknown, shaped = [], [], [], []
        for name, shape in self._stored.shapes.items():
            if self._map.is_of(name, self._map.ignored):
                continue
            targets = self._map.targets(name)
            if targets is None:
                left.append(f"{name} {[*shape]}")
                continue
            for owns in targets:
                strangers = [own for own in owns if own not in self._wanted and own not in self.tables]
                unknown += [f"{own} (of {name})" for own in strangers]
                owns = [own for own in owns if own in self._wanted]
                if strangers or not owns:
                    continue
                if self._stored.types[name] not in FLOATS:
                    shaped.append(f"{name} is of type {self._stored.types[name] or 'no floating point'}")
                elif (wanted := self._fault(name, owns)) is not None:
                    shaped.append(f"{name} is {[*shape]}, expected {[*wanted]} of {', '.join(owns)}")
                else:
                    twice += [own for own in owns if own in self.sources]
                    start = 0
                    for own in owns:
                        stop = start + self._wanted[own][1][0]
                        self.sources[own] = Piece(name, start, stop)
                        start = stop
        yield from _listed("tensors that the map does not name", left)
        yield from _listed("weights that the configuration has not", unknown)
        yield from _listed("tensors of another shape", shaped)
        yield from _listed("weights that two tensors are", twice)

    def _missing(self) -> Iterator[str]:
        zero = self._map.zeros
        missing = [
            f"{own} {[*shape]}"
            for own, (_, shape) in self._wanted.items()
            if own not in self.sources and not self._map.is_of(own, zero)
        ]
        yield from _listed("weights that no tensor is", missing)

    def _shape(self, name: str) -> Shape:
        """A tensor's shape as its weight is stored here."""
        shape = self._stored.shapes[name]
        return shape[::-1] if self._map.is_of(name, self._map.transposed) else shape

    def _fault(self, name: str, owns: Sequence[str]) -> Shape | None:
        """The shape that a tensor should have of so many rows; None: it has it."""
        shapes = [self._wanted[own][1] for own in owns]
        wanted = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        found = self._shape(name)
        squeezed = tuple(size for size in found if size != 1)
        if wanted in (found, squeezed) or tuple(size for size in wanted if size != 1) == squeezed:
            return None
        longer = len(squeezed) == len(wanted) and squeezed[1:] == wanted[1:] and squeezed[0] > wanted[0]
        return None if longer and owns[0].endswith(_POSITIONS) else wanted

    def __getitem__(self, name: str) -> Array:
        if name in self.tables:
            return self.tables[name]
        rows = [self._rows(own) for own in self._pieces[name]]
        array = rows[0] if len(rows) == 1 else np.concatenate(rows)
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{self.sources[self._pieces[name][0]].name!r} holds NaN or infinity", where=self._where
            )
        return array.reshape(self.shapes[name])

    def _rows(self, own: str) -> Array:
        shape = self._wanted[own][1]
        if own not in self.sources:
            return np.zeros(shape, np.float32)
        name, start, stop = self.sources[own]
        array = self._stored[name]
        if self._map.is_of(name, self._map.transposed):
            array = array.T
        trailing = shape[1:]
        return array.reshape(-1, *trailing)[start:stop]

    def digest(self) -> str | None:
        return self._stored.digest()

    @property
    def nbytes(self) -> int:
        return self._stored.nbytes


def _listed(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = len(names) - _MOST_NAMED
        yield f"{what}: {', '.join(names[:_MOST_NAMED])}" + (f" and {more} more" if more > 0 else "")
