"""The native model folder: ``model.safetensors``, ``config.json``, dictionaries, tokenizer, ``card.md``.

Nothing in it can run code. What is read is checked against the configuration before memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from nartk.errors import CheckpointError, ModelNotFoundError
from nartk.files import writing
from nartk.tokenizer import SentencePieceTokenizer, Tokenizer, WhitespaceTokenizer
from nartk.vocab import Vocab

FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "card.md"
DICTIONARY = "dict.txt"
TARGET_DICTIONARY = "dict.target.txt"  # present only where source and target words differ
TOKENIZER = "spm.model"
TARGET_TOKENIZER = "spm.target.model"

_MAX_HEADER = 10_000_000  # bytes of a safetensors header; real ones are thousands of times smaller
_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Checkpoint:
    """A model folder that has been read and checked.

    Attributes:
        kind: Name of the architecture, such as ``transformer``.
        settings: The architecture's configuration.
        tensors: Weights by name.
        source_vocab, target_vocab: The same object where the model has one joint dictionary.
        fingerprint: 12 hexadecimal digits of weights and configuration.
    """

    folder: Path
    kind: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    source_vocab: Vocab
    target_vocab: Vocab
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    fingerprint: str


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
    source_vocab.write(folder / DICTIONARY)
    if target_vocab != source_vocab:
        target_vocab.write(folder / TARGET_DICTIONARY)
    for source, name in ((tokenizer, TOKENIZER), (target_tokenizer, TARGET_TOKENIZER)):
        if source is not None and source.resolve() != (folder / name).resolve():
            shutil.copyfile(source, folder / name)
    with writing(folder / CARD) as file:
        file.write(card)
    config = {"format": FORMAT, "kind": kind, "model": dict(settings), "aliases": aliases}
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
    tensors = _load_tensors(folder / WEIGHTS)
    for name, original in aliases.items():
        if not isinstance(original, str) or original not in tensors:
            raise CheckpointError(f"{name!r} stands for {original!r}, which is missing", where=str(folder))
        tensors[name] = tensors[original]
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
    digest = hashlib.sha256(raw)
    digest.update((folder / WEIGHTS).read_bytes())
    return Checkpoint(
        folder=folder,
        kind=kind,
        settings=settings,
        tensors=tensors,
        source_vocab=source_vocab,
        target_vocab=target_vocab,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        fingerprint=digest.hexdigest()[:12],
    )


def require_shapes(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], where: str) -> None:
    """Raises CheckpointError, naming the first difference, unless names and shapes are the same."""
    for name, tensor in wanted.items():
        if name not in found:
            raise CheckpointError(f"tensor {name!r} is missing", where=where)
        if found[name].shape != tensor.shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(found[name].shape)}, "
                f"the configuration says {list(tensor.shape)}",
                where=where,
            )
        if not found[name].is_floating_point():
            raise CheckpointError(f"tensor {name!r} has type {found[name].dtype}", where=where)
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


def _load_tensors(path: Path) -> dict[str, Tensor]:
    """Loads a safetensors file whose header says no more than the file holds."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise CheckpointError("truncated, or not a safetensors file", where=str(path))
            header = _parse(file.read(length), path)
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=str(path)) from error
    total = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or str(entry.get("dtype")) not in _DTYPES:
            raise CheckpointError(f"tensor {name[:80]!r} has no known type", where=str(path))
        shape = entry.get("shape")
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise CheckpointError(f"tensor {name[:80]!r} has no shape", where=str(path))
        total += math.prod(shape) * _DTYPES[entry["dtype"]]
    if total != size - 8 - length:
        raise CheckpointError(
            f"holds {size - 8 - length} bytes of weights, its header says {total}", where=str(path)
        )
    try:
        tensors = load_file(path)
    except Exception as error:  # safetensors raises its own type, whose name is not public
        raise CheckpointError(f"corrupt: {error}", where=str(path)) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
            raise CheckpointError(f"tensor {name!r} holds NaN or infinity", where=str(path))
    return tensors


def _tokenizer(path: Path, vocab: Vocab) -> Tokenizer:
    return SentencePieceTokenizer(path, vocab) if path.is_file() else WhitespaceTokenizer(vocab)
