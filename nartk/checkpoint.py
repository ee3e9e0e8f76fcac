"""The native model folder: ``model.safetensors``, ``config.json``, dictionaries, tokenizer, ``card.md``.

Nothing in it can run code. What is read is checked against the configuration before memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import struct
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt

from nartk.architectures import architecture
from nartk.errors import CheckpointError, ModelNotFoundError, UsageError
from nartk.files import writing
from nartk.quantized import INT8, LAYOUT, stored_shapes, stored_types
from nartk.tokenizer import SentencePieceTokenizer, Tokenizer, WhitespaceTokenizer
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from torch import Tensor

    from nartk.architectures.transformer import TransformerConfig

FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "card.md"
DICTIONARY = "dict.txt"
TARGET_DICTIONARY = "dict.target.txt"  # present only where source and target words differ
TOKENIZER = "spm.model"
TARGET_TOKENIZER = "spm.target.model"

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

_Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


class StoredTensors(Mapping[str, _Array]):
    """The tensors of a safetensors file by name, each read when it is asked for; floating point as fp32.

    Names that stand for the same tensor give the same array, as long as somebody holds it.

    Attributes:
        shapes: Of each tensor.
        types: Of each tensor in the file, as safetensors names them, such as ``F16``.

    Raises:
        CheckpointError: The file is truncated, corrupt, or its header says more than the file holds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        self._starts: dict[str, int] = {}  # byte of the file at which each begins, ascending
        self._held: weakref.WeakValueDictionary[int, _Array] = weakref.WeakValueDictionary()
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
        self._locate(_parse(self._head[8:], path), size - len(self._head))

    def _locate(self, header: dict[str, Any], size: int) -> None:
        places: dict[str, list[int]] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if not isinstance(entry, dict) or str(entry.get("dtype")) not in _TYPES:
                raise self._error(f"tensor {name[:80]!r} has no known type")
            shape, place = entry.get("shape"), entry.get("data_offsets")
            if not _are_sizes(shape):
                raise self._error(f"tensor {name[:80]!r} has no shape")
            if not _are_sizes(place):
                raise self._error(f"corrupt: tensor {name[:80]!r} has no place")
            self.shapes[name], self.types[name], places[name] = tuple(shape), entry["dtype"], place
        total = sum(map(self._size, places))
        if total != size:
            raise self._error(f"holds {size} bytes of weights, its header says {total}")
        start = 0
        for name in sorted(places, key=lambda name: places[name]):
            end = start + self._size(name)
            if places[name] != [start, end]:  # so that no two share what the file holds once
                raise self._error(f"corrupt: tensor {name[:80]!r} does not begin where another one ends")
            self._starts[name] = len(self._head) + start
            start = end

    def alias(self, name: str, original: str) -> None:
        """Gives a tensor a second name."""
        self.shapes[name], self.types[name] = self.shapes[original], self.types[original]
        self._starts[name] = self._starts[original]

    def digest(self, head: bytes) -> str:
        """sha256 of `head` and the file, which is read once and found to hold finite numbers alone.

        Raises:
            CheckpointError: A tensor holds NaN or infinity.
        """
        digest = hashlib.sha256(head)
        digest.update(self._head)
        for name in self._starts:
            raw = self._read(name)
            if not _is_finite(raw, self.types[name]):
                raise self._error(f"tensor {name[:80]!r} holds NaN or infinity")
            digest.update(raw.data)
        return digest.hexdigest()

    def __getitem__(self, name: str) -> _Array:
        start = self._starts[name]
        array = self._held.get(start)
        if array is None or array.shape != self.shapes[name]:  # an empty tensor begins where the next does
            array = _as_fp32(self._read(name), self.types[name]).reshape(self.shapes[name])
            self._held[start] = array
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._starts  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def _read(self, name: str) -> _Array:
        """A tensor's numbers [n] as the file has them."""
        raw = np.empty(math.prod(self.shapes[name]), _TYPES[self.types[name]])
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

    def mapped(self, name: str) -> _Array:
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


def write_tensors(path: Path, tensors: Mapping[str, _Array]) -> None:
    """Writes whole numbers of 8 bits and fp32 as a safetensors file.

    The first begins at a multiple of 64 bytes, and so does each behind one whose size is such a multiple.

    Raises:
        OutputError: It cannot be written.
    """
    names = {np.dtype(np.int8): "I8", np.dtype(np.float32): "F32"}
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % 64)
    with writing(path, binary=True) as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _as_fp32(raw: _Array, type: str) -> _Array:
    """Floating-point numbers [n] as fp32; others as they are."""
    if type == "BF16":
        return (raw.astype("<u4") << 16).view("<f4")
    if type not in ("F64", "F16"):
        return raw
    with np.errstate(over="ignore"):  # what fp32 cannot hold becomes infinity
        return raw.astype(np.float32)


def _is_finite(raw: _Array, type: str) -> bool:
    if type == "F64":
        raw, type = _as_fp32(raw, type), "F32"
    if type not in _EXPONENTS or raw.size == 0:
        return True
    words, exponent = _EXPONENTS[type]
    return bool((raw.view(words) & exponent).max() != exponent)


@dataclass(frozen=True)
class Checkpoint:
    """A model folder that has been read and checked.

    Attributes:
        kind: Name of the architecture, such as ``transformer``.
        settings: The architecture's configuration.
        tensors: Weights by name, fp32.
        source_vocab, target_vocab: The same object where the model has one joint dictionary.
        fingerprint: 12 hexadecimal digits of weights and configuration.
        quantized: The type of its matrices, ``int8``; None: all are stored as floating point.
    """

    folder: Path
    kind: str
    settings: dict[str, Any]
    tensors: StoredTensors
    source_vocab: Vocab
    target_vocab: Vocab
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    fingerprint: str
    quantized: str | None = None


def save_checkpoint(
    folder: Path,
    *,
    kind: str,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    source_vocab: Vocab,
    target_vocab: Vocab,
    tokenizer: Path | None = None,
    target_tokenizer: Path | None = None,
    card: str,
) -> None:
    """Writes a model folder. Tensors that share memory are stored once, under their first name.

    Raises:
        OutputError: The folder cannot be written.
    """
    import torch
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key in seen and tensor.numel() > 0:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            stored[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    with writing(folder / WEIGHTS, binary=True) as file:
        file.write(save(stored, metadata={"format": "pt"}))
    save_files(
        folder,
        config={"format": FORMAT, "kind": kind, "model": dict(settings), "aliases": aliases},
        source_vocab=source_vocab,
        target_vocab=target_vocab,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        card=card,
    )


def save_files(
    folder: Path,
    *,
    config: Mapping[str, Any],
    source_vocab: Vocab,
    target_vocab: Vocab,
    tokenizer: Path | None,
    target_tokenizer: Path | None,
    card: str,
) -> None:
    """Writes all of a model folder but its weights; raises OutputError."""
    import shutil

    source_vocab.write(folder / DICTIONARY)
    if target_vocab != source_vocab:
        target_vocab.write(folder / TARGET_DICTIONARY)
    for source, name in ((tokenizer, TOKENIZER), (target_tokenizer, TARGET_TOKENIZER)):
        if source is not None and source.resolve() != (folder / name).resolve():
            shutil.copyfile(source, folder / name)
    with writing(folder / CARD) as file:
        file.write(card)
    with writing(folder / CONFIG) as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def load_checkpoint(folder: Path) -> Checkpoint:
    """Reads a model folder.

    Raises:
        ModelNotFoundError: `folder` is no folder, or holds no model.
        CheckpointError: A file is missing, corrupt or inconsistent.
    """
    if not folder.is_dir() or not (folder / CONFIG).is_file():
        raise ModelNotFoundError(
            f"no model at {str(folder)!r}",
            fix=f"name a shipped model or a folder with {CONFIG}, as nartk-convert writes it",
        )
    raw = _read(folder / CONFIG, most=1_000_000)
    config = _parse(raw, folder / CONFIG)
    if config.get("format") != FORMAT:
        raise CheckpointError(
            f"format {config.get('format')!r}, this version reads {FORMAT}", where=str(folder / CONFIG)
        )
    kind, settings, aliases = (config.get(key) for key in ("kind", "model", "aliases"))
    if not isinstance(kind, str) or not isinstance(settings, dict) or not isinstance(aliases, dict):
        raise CheckpointError("'kind', 'model' or 'aliases' is missing", where=str(folder / CONFIG))
    quantized = config.get("quantized")
    if quantized not in (None, INT8):
        raise CheckpointError(f"'quantized' is {quantized!r}, not {INT8!r}", where=str(folder / CONFIG))
    if quantized is not None and config.get("layout") != LAYOUT:
        raise CheckpointError(
            f"layout {config.get('layout')!r} of {INT8} weights, this version reads {LAYOUT}",
            fix="convert the model that it was made of again",
            where=str(folder / CONFIG),
        )
    tensors = (StoredTensors if quantized is None else QuantizedTensors)(folder / WEIGHTS)
    digest = tensors.digest(raw)
    for name, original in aliases.items():
        if not isinstance(original, str) or original not in tensors:
            raise CheckpointError(f"{name!r} stands for {original!r}, which is missing", where=str(folder))
        tensors.alias(name, original)
    source_vocab = Vocab.read(folder / DICTIONARY)
    target_vocab = source_vocab
    if (folder / TARGET_DICTIONARY).is_file():
        target_vocab = Vocab.read(folder / TARGET_DICTIONARY)
    source_tokenizer = _tokenizer(folder / TOKENIZER, source_vocab)
    if (folder / TARGET_TOKENIZER).is_file():
        target_tokenizer = _tokenizer(folder / TARGET_TOKENIZER, target_vocab)
    elif target_vocab is source_vocab:
        target_tokenizer = source_tokenizer
    else:
        target_tokenizer = _tokenizer(folder / TOKENIZER, target_vocab)
    return Checkpoint(
        folder=folder,
        kind=kind,
        settings=settings,
        tensors=tensors,
        source_vocab=source_vocab,
        target_vocab=target_vocab,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        fingerprint=digest[:12],
        quantized=quantized,
    )


def read_config(checkpoint: Checkpoint) -> TransformerConfig:
    """The configuration of a checkpoint, which its weights and dictionaries fit.

    Raises:
        UnsupportedCheckpointError: This version has no such architecture.
        CheckpointError: The weights do not fit the configuration, or it the dictionaries.
    """
    where, stored = str(checkpoint.folder), checkpoint.tensors
    try:
        config = architecture(checkpoint.kind).config.from_dict(checkpoint.settings)
    except UsageError as error:
        raise CheckpointError(error.message, where=where) from error
    for size, vocab in (
        (config.src_vocab, checkpoint.source_vocab),
        (config.tgt_vocab, checkpoint.target_vocab),
    ):
        if size != len(vocab):
            raise CheckpointError(f"the model has {size} words, its dictionary {len(vocab)}", where=where)
        if config.pad != vocab.pad:
            raise CheckpointError(
                f"the model pads with {config.pad}, its dictionary with {vocab.pad}", where=where
            )
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        found = {name.split(".")[1] for name in stored if name.startswith(f"{side}_layers.")}
        if len(found) != layers:
            raise CheckpointError(
                f"the {side} has {len(found)} layers, the configuration says {layers}", where=where
            )
    if checkpoint.quantized is not None:
        require_shapes(stored_shapes(config), stored.shapes, where)
        for name, wanted in stored_types(config).items():
            if stored.types[name] != wanted:
                raise CheckpointError(
                    f"tensor {name!r} has type {stored.types[name]}, not {wanted}", where=where
                )
        return config
    require_shapes(config.weight_shapes(), stored.shapes, where)
    for name, type in stored.types.items():
        if type not in ("F64", *_EXPONENTS):
            raise CheckpointError(f"tensor {name!r} has type {type}, which is no floating point", where=where)
    return config


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


def _read(path: Path, *, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=str(path)) from error
    if len(data) > most:
        raise CheckpointError(f"larger than {most} bytes", where=str(path))
    return data


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        config = json.loads(raw.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return config


def _tokenizer(path: Path, vocab: Vocab) -> Tokenizer:
    return SentencePieceTokenizer(path, vocab) if path.is_file() else WhitespaceTokenizer(vocab)
