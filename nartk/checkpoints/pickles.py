"""Files that torch has pickled, read without running anything in them.

They are loaded with ``weights_only=True`` and a short allow-list, so that a file cannot run code; there is no
other way in.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from nartk._fairseq_compat import safe_globals
from nartk.errors import CheckpointError, InputFileError, MissingDependencyError, NartkError

_SAFE_TORCH = (2, 6)
_ZIP = b"PK\x03\x04"  # what torch takes for a zip file begins so


def load_pickle(path: Path) -> object:
    """Loads a file of torch's.

    Raises:
        InputFileError: There is no such file.
        CheckpointError: It is truncated, corrupt, or asks for code to be run.
        MissingDependencyError: torch is so old that it may run code of the file (CVE-2025-32434).
    """
    with loading_safely(path):
        return torch.load(path, map_location="cpu", weights_only=True)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch has written of them alone; raises as `load_pickle`."""
    return require_tensors(load_pickle(path), "holds something else than tensors by name", str(path))


def load_nested_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of its only part that holds tensors, such as a state dict beside others."""
    found = load_pickle(path)
    if isinstance(found, dict):
        parts = [each for each in found.values() if isinstance(each, dict) and each and _are_tensors(each)]
        if len(parts) == 1 and not _are_tensors(found):
            found = parts[0]
    return require_tensors(found, "holds no state dict, or several", str(path))


@contextmanager
def loading_safely(path: Path) -> Iterator[None]:
    """Checks a file before torch loads it within, and names what torch refuses; raises as `load_pickle`."""
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _SAFE_TORCH:
        raise MissingDependencyError(
            f"torch {torch.__version__} may run code that a checkpoint holds", fix="pip install 'torch>=2.10'"
        )
    where = str(path)
    if not os.path.isfile(path):
        raise InputFileError("no such file", fix="check the name", where=where)
    try:
        _refuse_bombs(path)
        with torch.serialization.safe_globals(safe_globals()):
            yield
    except (NartkError, MemoryError):
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=where) from error
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)|class (\S+) was not an allowed", str(error))
        if refused is None:
            raise CheckpointError("corrupt, or not a checkpoint", where=where) from error
        raise _asks_for(next(filter(None, refused.groups())), where) from error
    except Exception as error:  # a corrupt pickle may raise anything
        raise CheckpointError("truncated, corrupt, or not a checkpoint", where=where) from error


def _asks_for(name: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"asks for {name!r}, which a checkpoint has no need of",
        fix="do not load it elsewhere either, unless you trust its origin",
        where=where,
    )


def _refuse_bombs(path: Path) -> None:
    """Refuses what takes more memory than the file has bytes, before memory is taken.

    torch.save does not compress, so nothing compressed is read: no part is larger than what the file holds of
    it, and all together are no larger than the file. Nor does a checkpoint have a ``bytearray``, which a
    pickle makes of a number.
    """
    with path.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            with zipfile.ZipFile(file) as parts:
                for part in parts.infolist():
                    if part.compress_type != zipfile.ZIP_STORED or part.compress_size != part.file_size:
                        raise CheckpointError(
                            f"{part.filename[:80]!r} is compressed, from {part.file_size} bytes",
                            fix="write it as torch.save does, without compression",
                            where=str(path),
                        )
                total = sum(part.file_size for part in parts.infolist())
            size = os.fstat(file.fileno()).st_size
            if total > size:
                raise CheckpointError(f"its parts have {total} bytes, it has {size}", where=str(path))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if re.search(rb"c(builtins|__builtin__)\nbytearray\n", data):
                raise _asks_for("builtins.bytearray", str(path))


def require_tensors(values: object, otherwise: str, where: str) -> dict[str, Tensor]:
    """Dense tensors by name, if a file held these; raises CheckpointError with a text otherwise."""
    if not isinstance(values, dict) or not _are_tensors(values):
        raise CheckpointError(otherwise, where=where)
    require_dense(values, where)
    return dict(values)


def _are_tensors(values: Mapping[object, object]) -> bool:
    return all(isinstance(name, str) and isinstance(value, Tensor) for name, value in values.items())


def require_dense(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raises CheckpointError if one of a file's tensors would take more memory than the file stores of it."""
    for name, tensor in tensors.items():
        # Else 1 number with strides of 0 would be a tensor of any size.
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(f"tensor {name[:80]!r} is not dense", where=where)
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"tensor {name[:80]!r} is larger than what is stored of it", where=where)
