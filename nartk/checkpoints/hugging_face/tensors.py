"""The weights of a folder of Hugging Face, of one file or of several, under nartk's names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nartk.checkpoints.names import WEIGHTS
from nartk.checkpoints.tensors import FLOATS, Array, StoredTensors, Tensors
from nartk.errors import CheckpointError, requiring_torch
from nartk.files import Folder, sha256

if TYPE_CHECKING:
    from torch import Tensor

PICKLED = "pytorch_model.bin"
_MOST_INDEX = 10_000_000  # bytes of an index of shards
_TORCH_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class PickledTensors(Tensors):
    """The tensors of a file of torch's, which is read without running anything in it.

    Args:
        tensors: Tensors that were read of the file; None: it holds nothing else, and all are read.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
        if tensors is None:
            with requiring_torch(f"reading {path.name!r}"):
                from nartk.checkpoints.pickles import load_tensors
            tensors = load_tensors(path)
        self._path, self._tensors = path, tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        types = {f"torch.{name}": type for name, type in _TORCH_TYPES.items()}
        self.types = {name: types.get(str(tensor.dtype), "") for name, tensor in self._tensors.items()}

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name].float().numpy()

    @property
    def nbytes(self) -> int:
        return self._path.stat().st_size

    def digest(self) -> str:
        for name, tensor in self._tensors.items():
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(f"tensor {name[:80]!r} holds NaN or infinity", where=str(self._path))
        return sha256(self._path)


class Files:
    """The tensors of the files of a folder, by their names without ``model.``, which not all files have."""

    def __init__(self, where: str, files: Sequence[Tensors]) -> None:
        self.where, self.files = where, files
        self._at = {name.removeprefix("model."): (file, name) for file in files for name in file.shapes}
        self.shapes = {name: file.shapes[full] for name, (file, full) in self._at.items()}
        self.types = {name: file.types[full] for name, (file, full) in self._at.items()}

    def __getitem__(self, name: str) -> Array:
        file, full = self._at[name]
        return file[full]

    def are_equal(self, one: str, other: str) -> bool:
        """Tells whether two tensors hold the same numbers."""
        return one == other or (
            self.shapes[one] == self.shapes[other] and np.array_equal(self[one], self[other])
        )

    def require(self, names: Collection[str], shape: tuple[int, ...]) -> None:
        """Raises CheckpointError unless there are tensors of these names, of floating point and the shape."""
        for name in names:
            if name not in self.shapes:
                raise self._error(f"tensor {name!r} is missing")
            full = self._at[name][1]
            if self.shapes[name] != shape:
                raise self._error(
                    f"tensor {full!r} has shape {[*self.shapes[name]]}, the configuration says {[*shape]}"
                )
            if self.types[name] not in FLOATS:
                raise self._error(f"tensor {full!r} has type {self.types[name]}, which is no floating point")

    def refuse_others(self, names: Collection[str]) -> None:
        """Raises CheckpointError where there is a tensor of another name."""
        extra = self.shapes.keys() - names
        if extra:
            raise self._error(f"tensor {self._at[min(extra)][1]!r} is not in the configuration")

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=self.where)


class MappedTensors(Tensors):
    """The weights of a model under nartk's names, each made of a file's when it is asked for.

    Args:
        parts: Tensors of the file that make up each weight, their rows below each other.
        skipped: Number of rows left out at the top of the file's tensors, for some weights.
        tables: Weights that the file does not have.
    """

    def __init__(
        self,
        files: Files,
        shapes: Mapping[str, tuple[int, ...]],
        parts: Mapping[str, Sequence[str]],
        skipped: Mapping[str, int],
        tables: Mapping[str, Array],
    ) -> None:
        self._files, self._parts, self._skipped, self._tables = files, parts, skipped, tables
        self.shapes = dict(shapes)
        self.types = {name: files.types[each[0]] for name, each in parts.items()}
        self.types |= dict.fromkeys(tables, "F32")

    def __getitem__(self, name: str) -> Array:
        if name in self._tables:
            return self._tables[name]
        found = [self._files[each] for each in self._parts[name]]
        array = found[0] if len(found) == 1 else np.concatenate(found)
        return array[self._skipped.get(name, 0) :].reshape(self.shapes[name])

    def digest(self) -> str:
        return " ".join(str(file.digest()) for file in self._files.files)

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self._files.files)


def open_tensors(folder: Folder, *, allow_pickle: bool) -> Files:
    """The tensors of a folder, of safetensors before pickles, of one file before several."""
    readers: dict[str, Callable[[Path], Tensors]] = {WEIGHTS: StoredTensors, PICKLED: PickledTensors}
    for name, read in readers.items():
        index = f"{name}.index.json"
        if folder.has(name):
            names = {name}
        elif folder.has(index):
            names = _shards(folder, index)
        else:
            continue
        if name == PICKLED and not allow_pickle:
            raise CheckpointError(
                f"its weights are pickled ({min(names)})",
                fix="nartk-convert --allow-pickle reads them without running what they hold",
                where=str(folder),
            )
        return Files(str(folder), [read(folder / each) for each in sorted(names)])
    raise CheckpointError(
        f"holds neither {WEIGHTS} nor {PICKLED}", fix="download the whole folder again", where=str(folder)
    )


def _shards(folder: Folder, index: str) -> set[str]:
    """The files that an index names, all of which are there."""
    where, names = str(folder / index), folder.json(index, most=_MOST_INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise CheckpointError("'weight_map' does not name the files of tensors", where=where)
    for name in sorted(set(names.values())):
        if set(name) & set("/\\:\0") or not folder.has(name):
            raise CheckpointError(
                f"the file {name!r} is missing", fix="download the whole folder again", where=where
            )
    return set(names.values())


def names_of(name: str, names: Mapping[str, str], *, gated: bool) -> list[str]:
    """The file's names of a weight of ours, such as ``encoder_layers.0.ffn.up.bias``."""
    layer, _, suffix = name.rpartition(".")
    side, _, part = layer.partition("_")
    index = ""
    if part.startswith("layers."):
        _, index, part = part.split(".", 2)
    ffn, up = (1 if side == "encoder" else 2), ("wi_1" if gated else "wi")
    path, _, last = f"{side}.{names[part].format(i=index, ffn=ffn, up=up)}".rpartition(".")
    return [f"{path}.{each}.{suffix}" for each in last.split("|")]
