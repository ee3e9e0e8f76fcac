"""The native model folder: ``model.safetensors``, ``config.json``, the processors' files, ``card.md``.

Nothing in it can run code. What is read is checked against the configuration before memory is taken.

``config.json`` of format 3 has ``files`` (the SHA-256 of every other file, by name), ``architecture`` (its
name), ``model`` (its settings), ``aliases`` (names of weights that are another's), ``special_ids`` (bos, pad,
eos and unk), ``start_token`` (what outputs begin after), ``input`` and ``output`` (a processor's ``name`` and
settings, see `nartk.processors`), in int8 folders ``quantized`` and ``layout``, and where the model was
trained on tokens that ordinary text is to be split into, ``tokenization`` (``penn``: English sentences in
the tokens of the Penn Treebank), where it came with such, ``generation`` (values of strategies' options,
see `checkpoints.generation`), and where outputs should resemble their input, ``guard`` (see `serving.guard`).

Loading compares the hash of each file that it reads as a whole. The card, and the weights of int8 folders,
which are mapped, are compared where that is asked for, as ``nartk-verify`` and ``--check`` do.

A model may have rows for more words than its dictionary, as a matrix that was filled up to a multiple of 8
has. They stand for no word, and are left out as weights are read: a model's distribution is over the words
of its dictionary, in torch and on the engine alike.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt

from nartk.architectures import architecture
from nartk.architectures.transformer import SOURCE_WORDS, TARGET_WORDS
from nartk.checkpoints.generation import KEY as GENERATION
from nartk.checkpoints.generation import check_generation
from nartk.checkpoints.quantized import INT8, LAYOUT, stored_shapes, stored_types
from nartk.errors import CheckpointError, ModelNotFoundError, SourceMismatchError, UsageError, named
from nartk.files import read_file, sha256, writing, writing_folder
from nartk.processors import SIDES, InputProcessor, OutputProcessor, load_processor
from nartk.processors.foreign import refuse_foreign, refuse_hub_name
from nartk.processors.text import AsGiven, SentencePieceTokenizer, TextInput, Tokenizer, load_tokenization
from nartk.serving.guard import KEY as GUARD
from nartk.serving.guard import Guard, read_guard
from nartk.vocab import FAIRSEQ, SpecialIds, Vocab

if TYPE_CHECKING:
    from torch import Tensor

    from nartk.architectures.transformer import TransformerConfig

FORMAT = 3
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "card.md"
ADAPTER = "adapter_config.json"  # of Hugging Face's folders that hold no model
DICTIONARY = "dict.txt"
TARGET_DICTIONARY = "dict.target.txt"  # present only where source and target words differ
TOKENIZER = "spm.model"
TARGET_TOKENIZER = "spm.target.model"
INPUT = "input.json"  # of a folder of training data: the settings of an input processor that reads no text
CALIBRATION = "calibration.json"  # which nartk-calibrate adds
COSTS = "costs.json"  # which nartk-bench --tune adds
_ADDED = (CALIBRATION, COSTS)  # no part of the model
_NAMES = (WEIGHTS, CONFIG, CARD, DICTIONARY, TARGET_DICTIONARY, TOKENIZER, TARGET_TOKENIZER, *_ADDED)

MOST_CARD = 10_000_000  # bytes of card.md
_MOST_CONFIG = 1_000_000  # bytes of config.json
_MOST_COPIED = 1_000_000_000  # bytes of a processor's file
# What config.json says beside the weights.
_BESIDE = ("special_ids", "start_token", "input", "output", "tokenization", GENERATION, GUARD)
_RESTORE = "convert the model again, or copy the whole folder again"
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

_Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


class Tensors(Mapping[str, _Array]):
    """Tensors by name, each read when it is asked for; floating point as fp32.

    Attributes:
        shapes: Of each tensor.
        types: Of each tensor in its file, as safetensors names them, such as ``F16``.
    """

    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]

    @property
    def nbytes(self) -> int:
        """Of the files that hold them."""
        raise NotImplementedError

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
        offsets: dict[str, list[int]] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if not isinstance(entry, dict) or str(entry.get("dtype")) not in _TYPES:
                raise self._error(f"tensor {name[:80]!r} has no known type")
            shape, span = entry.get("shape"), entry.get("data_offsets")
            if not _are_sizes(shape):
                raise self._error(f"tensor {name[:80]!r} has no shape")
            if not _are_sizes(span):
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
        """Of the file."""
        return os.fstat(self._file.fileno()).st_size

    def digest(self) -> str | None:
        """SHA-256 of the file, which is read once; None where it is only mapped.

        Raises:
            CheckpointError: A tensor holds NaN or infinity.
        """
        digest = hashlib.sha256(self._head)
        for name in self._starts:
            raw = self._read(name, self.shapes[name])
            self._require_finite(name, raw)
            digest.update(raw.data)
        return digest.hexdigest()

    def _require_finite(self, name: str, raw: _Array) -> None:
        if not _is_finite(raw, self.types[name]):
            raise self._error(f"tensor {name[:80]!r} holds NaN or infinity")

    def __getitem__(self, name: str) -> _Array:
        start, shape = self._starts[name], self.shapes[name]
        if name in self._rows:
            shape = (self._rows[name], *shape[1:])
        array = self._held.get(start)
        if array is None or array.shape != shape:  # an empty tensor begins where the next does
            array = _as_fp32(self._read(name, shape), self.types[name]).reshape(shape)
            self._held[start] = array
        return array

    def _read(self, name: str, shape: tuple[int, ...]) -> _Array:
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


def pack_tensors(tensors: Mapping[str, _Array]) -> list[bytes | memoryview]:
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
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    end = 0
    for name, (type, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * _TYPES[type].itemsize
        header[name] = {"dtype": type, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % 64)
    return struct.pack("<Q", len(head)) + head


def _bytes(array: _Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _rounded(array: _Array, type: str) -> _Array:
    """fp32 numbers as a type of safetensors, halves to even."""
    if type == "BF16":
        bits = np.ascontiguousarray(array).view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    with np.errstate(over="ignore"):  # infinity is found where it is written
        return array.astype(_TYPES[type], copy=False)


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
        architecture: Its name, such as ``transformer``.
        settings: The architecture's configuration.
        tensors: Weights by name, fp32; of words only those that the dictionaries have.
        input, output: What reads sentences as sources, and writes outputs as sentences.
        tokenization: What makes sentences of lines.
        beside: What config.json says beside the weights, such as `input` and `output`.
        files: Of the processors, by name.
        start_token: What outputs begin after.
        fingerprint: 12 hexadecimal digits of all files, dictionaries and tokenizers included.
        quantized: The type of its matrices, ``int8``; None: all are stored as floating point.
        checked: Whether every hash has been compared.
        generation: Values that take the place of defaults of strategies' options, by name.
        notices: What a user of the folder must know, in lines.
        guard: Judges outputs, which should resemble their input; None: they need not.
    """

    folder: Path
    architecture: str
    settings: dict[str, Any]
    tensors: Tensors
    input: InputProcessor
    output: OutputProcessor
    start_token: int
    fingerprint: str
    beside: Mapping[str, Any]
    files: Mapping[str, Path]
    quantized: str | None = None
    checked: bool = False
    tokenization: AsGiven = field(default_factory=AsGiven)
    generation: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    guard: Guard | None = None

    @property
    def target_vocab(self) -> Vocab:
        return self.output.vocab

    @property
    def source_vocab(self) -> Vocab:
        """Equal to the target's where the model has one joint dictionary; raises as `text`."""
        return self.text.vocab

    @property
    def text(self) -> TextInput:
        """What reads lines of text; raises SourceMismatchError if the model reads something else."""
        if not isinstance(self.input, TextInput):
            raise SourceMismatchError(
                f"the model {str(self.folder)!r} does not read text", fix="name a model that does"
            )
        return self.input


def save_checkpoint(
    folder: Path,
    *,
    architecture: str,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    source_vocab: Vocab | None,
    target_vocab: Vocab,
    tokenizer: Path | None = None,
    target_tokenizer: Path | None = None,
    card: str,
    tokenization: str | None = None,
    start_token: int | None = None,
    input: Mapping[str, Any] | None = None,
    others: Mapping[str, Path] | None = None,
    generation: Mapping[str, Any] = MappingProxyType({}),
    split: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Writes a model folder, whole or not at all, in place of an older one.

    Tensors that share memory are stored once, under their first name.

    Args:
        source_vocab: None where the model reads no text.
        tokenizer, target_tokenizer: Models of sentencepiece; the second None: as the first.
        tokenization: Of sentences, ``penn``; None: lines are sentences as the model reads them.
        start_token: What outputs begin after; None: eos.
        input: Name and settings of an input processor other than ``text``.
        others: The files of such a processor, by the names that they are to have.
        generation: Values of strategies' options, see `nartk.checkpoints.generation`.
        split: By side, settings that take the place of those of ``text``, as the name of another processor.

    Raises:
        CheckpointError: A tokenizer is no model of sentencepiece.
        OutputError: The folder cannot be written, or what is there is no model's.
    """
    import torch
    from safetensors.torch import save

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
    output: dict[str, Any] = {"name": "text", "words": len(target_vocab), "dictionary": DICTIONARY}
    dictionaries = {}
    copied = {} if others is None else dict(others)
    if source_vocab is not None:
        dictionaries[DICTIONARY] = source_vocab
        input = {**output, "words": len(source_vocab)}
        if target_vocab != source_vocab:
            output["dictionary"] = TARGET_DICTIONARY
    dictionaries[output["dictionary"]] = target_vocab
    if tokenizer is not None:
        output["sentencepiece"] = TOKENIZER
        copied[TOKENIZER] = tokenizer
        if source_vocab is not None and input is not None:
            input = {**input, "sentencepiece": TOKENIZER}
    if target_tokenizer is not None:
        output["sentencepiece"] = TARGET_TOKENIZER
        copied[TARGET_TOKENIZER] = target_tokenizer
    for pieces in filter(None, (tokenizer, target_tokenizer)):
        SentencePieceTokenizer(pieces, target_vocab)  # refused now, not when it is needed
    if input is not None:
        input = {**input, **split.get("input", {})}
    output |= split.get("output", {})
    config = {
        "architecture": architecture,
        "model": dict(settings),
        "aliases": aliases,
        "special_ids": asdict(target_vocab.specials),
        "start_token": target_vocab.eos if start_token is None else start_token,
        "input": input,
        "output": output,
    }
    if tokenization is not None:
        config["tokenization"] = tokenization
    if generation:
        config[GENERATION] = dict(generation)
    weights = [save(stored, metadata={"format": "pt"})]
    save_files(folder, weights=weights, config=config, files=copied, card=card, vocabs=dictionaries)


def save_files(
    folder: Path,
    *,
    weights: Iterable[bytes | memoryview],
    config: Mapping[str, Any],
    files: Mapping[str, Path],
    card: str,
    vocabs: Mapping[str, Vocab] = MappingProxyType({}),
) -> None:
    """Writes a model folder of the parts of its file of weights, whole or not at all.

    Args:
        config: What config.json has, but for the format and the hashes.
        files: What is copied, by name.
        vocabs: Dictionaries to write, by name.

    Raises:
        OutputError: The folder cannot be written, or what is there is no model's.
    """
    copied = {
        name for name, source in files.items() if os.path.realpath(source) == os.path.realpath(folder / name)
    }
    with writing_folder(folder, known={*_files_of(folder), *copied}) as made:
        with writing(made / WEIGHTS, binary=True) as file:
            file.writelines(weights)
        for name, vocab in vocabs.items():
            vocab.write(made / name)
        for name, source in files.items():
            with writing(made / name, binary=True) as file:
                file.write(read_file(source, most=_MOST_COPIED))
        with writing(made / CARD) as file:
            file.write(card)
        hashes = {path.name: sha256(path) for path in sorted(made.iterdir())}
        with writing(made / CONFIG) as file:
            json.dump({"format": FORMAT, **config, "files": hashes}, file, indent=2)
            file.write("\n")


def fact_card(facts: Mapping[str, object]) -> str:
    """The text of a card of facts by name."""
    return "# Model card\n\n" + "".join(f"- {name}: {value}\n" for name, value in facts.items())


def _files_of(folder: Path) -> Collection[str]:
    """The names that files of a model in this folder may have; none where there is no model."""
    try:
        config = read_json(folder / CONFIG)
        return {*_NAMES, *config.get("files", {})} if "format" in config else ()
    except (CheckpointError, TypeError):
        return ()


def _hashes(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The hashes in a config.json."""
    found = config.get("files")
    if not isinstance(found, dict) or WEIGHTS not in found or set("".join(found)) & set("/\\:\0"):
        raise CheckpointError("'files' does not name the files of the folder", where=str(folder / CONFIG))
    for name in _strings([config.get(key) for key in (*SIDES, GUARD)]):
        if name not in found and os.path.isfile(folder / name):
            raise CheckpointError(
                f"'files' has no hash of {name!r}", fix=_RESTORE, where=str(folder / CONFIG)
            )
    return found


def _strings(value: object) -> Iterator[str]:
    """The strings in a value of JSON, but for the names of its members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _compare(folder: Path, hashes: Mapping[str, str], but: Collection[str] = ()) -> None:
    for name, wanted in hashes.items():
        if name in but:
            continue
        if not os.path.isfile(folder / name):
            raise CheckpointError(f"the file {name!r} is missing", fix=_RESTORE, where=str(folder))
        _require_hash(folder / name, wanted, sha256(folder / name))


def _require_hash(path: Path, wanted: str, found: str) -> None:
    if wanted != found:
        raise CheckpointError(
            f"has been changed: its sha256 is {found[:12]}..., {CONFIG} has {str(wanted)[:12]}...",
            fix=_RESTORE,
            where=str(path),
        )


def load_checkpoint(
    folder: Path,
    *,
    check: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
) -> Checkpoint:
    """Reads a model folder, nartk's or Hugging Face's.

    Args:
        check: Whether the hashes of what is not read as a whole are compared too.
        source_lang, target_lang, source_prefix: Of the text of a folder of Hugging Face.

    Raises:
        ModelNotFoundError: `folder` is no folder, or holds no model.
        UnsupportedCheckpointError: It is another library's.
        CheckpointError: A file is missing, corrupt or inconsistent.
        UnsupportedCheckpointError: It holds a model that nartk cannot express.
    """
    if not any(os.path.isfile(folder / name) for name in (CONFIG, ADAPTER)):
        refuse_hub_name(str(folder))
        refuse_foreign(folder)
        raise ModelNotFoundError(
            f"no model at {str(folder)!r}",
            fix=f"name a shipped model or a folder with {CONFIG}, nartk's or Hugging Face's",
        )
    if is_hugging_face(folder):
        from nartk.adapters.hf_folder import read_hugging_face

        return read_hugging_face(
            folder, source_lang=source_lang, target_lang=target_lang, source_prefix=source_prefix
        )
    given = {"source_lang": source_lang, "target_lang": target_lang, "source_prefix": source_prefix}
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{named(name, value)} for {str(folder)!r}, a model of nartk, which has its own",
                fix="leave it out, or convert the folder of Hugging Face again with it",
            )
    raw = read_file(folder / CONFIG, most=_MOST_CONFIG)
    config = _parse(raw, folder / CONFIG)
    if "format" not in config:
        refuse_foreign(folder)
    if config.get("format") != FORMAT:
        raise CheckpointError(
            f"format {config.get('format')!r}, this version reads {FORMAT}",
            fix="convert the model again with nartk-convert",
            where=str(folder / CONFIG),
        )
    aliases = config.get("aliases")
    if (
        not isinstance(config.get("architecture"), str)
        or not isinstance(config.get("model"), dict)
        or not isinstance(aliases, dict)
    ):
        raise CheckpointError("'architecture', 'model' or 'aliases' is missing", where=str(folder / CONFIG))
    quantized = config.get("quantized")
    if quantized not in (None, INT8):
        raise CheckpointError(f"'quantized' is {quantized!r}, not {INT8!r}", where=str(folder / CONFIG))
    if quantized is not None and config.get("layout") != LAYOUT:
        raise CheckpointError(
            f"layout {config.get('layout')!r} of {INT8} weights, this version reads {LAYOUT}",
            fix="convert the model that it was made of again",
            where=str(folder / CONFIG),
        )
    hashes = _hashes(config, folder)
    _compare(folder, hashes, but=() if check else (WEIGHTS, CARD))
    tensors = (StoredTensors if quantized is None else QuantizedTensors)(folder / WEIGHTS)
    digest = tensors.digest()
    if digest is not None:
        _require_hash(folder / WEIGHTS, hashes[WEIGHTS], digest)
    for alias, original in aliases.items():
        if not isinstance(original, str) or original not in tensors:
            raise CheckpointError(
                f"{alias!r} is an alias of {original!r}, which is missing", where=str(folder)
            )
        tensors.alias(alias, original)
    files = [path for path in hashes if path not in (WEIGHTS, CONFIG, CARD, *_ADDED)]
    checkpoint = assemble(
        folder,
        config,
        tensors,
        fingerprint=hashlib.sha256(raw).hexdigest()[:12],
        files={each: folder / each for each in files if os.path.isfile(folder / each)},
    )
    if quantized is None:
        source, target = checkpoint.input.vocab, checkpoint.target_vocab
        for words, vocab in ((SOURCE_WORDS, source), *((each, target) for each in TARGET_WORDS)):
            if vocab is not None and tensors.shapes.get(words, (0,))[0] > len(vocab):
                tensors.read_first(words, len(vocab))
    return replace(checkpoint, quantized=quantized, checked=check)


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder is one of Hugging Face's, of a model or of what changes one."""
    if not os.path.isfile(folder / CONFIG):
        return os.path.isfile(folder / ADAPTER)
    config = read_json(folder / CONFIG)
    return "format" not in config and "model_type" in config


def assemble(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    *,
    fingerprint: str,
    files: Mapping[str, Path],
) -> Checkpoint:
    """The checkpoint of a configuration and of weights, with its processors.

    Args:
        config: As config.json of the native format has it.

    Raises:
        CheckpointError: Something is missing or inconsistent.
    """
    where = str(folder / CONFIG)
    specials = _special_ids(config.get("special_ids"), where)
    for side in SIDES:
        if not isinstance(config.get(side), dict):
            raise CheckpointError(f"{side!r} is missing", where=where)
    output: OutputProcessor = load_processor("output", folder, config["output"], specials)
    input: InputProcessor
    if config["input"] == config["output"] and isinstance(output, Tokenizer):  # read once
        input = TextInput(output)
    else:
        input = load_processor("input", folder, config["input"], specials)
    tokenization = load_tokenization(config.get("tokenization"), output, where)
    if tokenization.name and input.vocab is None:
        raise CheckpointError("a 'tokenization' of what is no text", where=where)
    guard = read_guard(config.get(GUARD), folder, where)
    if guard is not None and input.vocab is None:
        raise CheckpointError(f"a {GUARD!r} of what is no text", where=where)
    start_token, words = config.get("start_token"), len(output.vocab)
    if type(start_token) is not int or not 0 <= start_token < words:
        raise CheckpointError(f"'start_token' is {start_token!r}, not between 0 and {words - 1}", where=where)
    return Checkpoint(
        folder=folder,
        architecture=config["architecture"],
        settings=config["model"],
        tensors=tensors,
        input=input,
        output=output,
        start_token=start_token,
        tokenization=tokenization,
        generation=check_generation(config.get(GENERATION, {}), where),
        guard=guard,
        beside={key: config[key] for key in _BESIDE if config.get(key) is not None},
        files=files,
        fingerprint=fingerprint,
    )


def _special_ids(values: object, where: str) -> SpecialIds:
    names = [item.name for item in fields(SpecialIds)]
    if not isinstance(values, dict) or sorted(values) != sorted(names) or not _are_sizes([*values.values()]):
        raise CheckpointError(f"'special_ids' is {values!r}, not ids of {', '.join(names)}", where=where)
    return SpecialIds(**values)


def read_config(checkpoint: Checkpoint) -> TransformerConfig:
    """The configuration of a checkpoint, which its weights and dictionaries fit, with the words of these.

    Raises:
        UnsupportedCheckpointError: This version has no such architecture.
        CheckpointError: The weights do not fit the configuration, or it the dictionaries.
    """
    where, stored = str(checkpoint.folder), checkpoint.tensors
    try:
        declared = architecture(checkpoint.architecture)
        config = declared.config.from_dict(checkpoint.settings)
    except UsageError as error:
        raise CheckpointError(error.message, where=where) from error
    sizes = {"tgt_vocab": checkpoint.output.vocab}
    if checkpoint.input.vocab is not None:
        sizes["src_vocab"] = checkpoint.input.vocab
    for name, vocab in sizes.items():
        rows = getattr(config, name)
        if rows < len(vocab) or (checkpoint.quantized is not None and rows > len(vocab)):
            raise CheckpointError(f"the model has {rows} words, its dictionary {len(vocab)}", where=where)
        if config.pad != vocab.pad:
            raise CheckpointError(
                f"the model pads with {config.pad}, its dictionary with {vocab.pad}", where=where
            )
        if not declared.autoregressive and vocab.specials != FAIRSEQ:
            raise CheckpointError(
                f"the special ids are {vocab.specials}, those of a {declared.name} model {FAIRSEQ}",
                where=where,
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
        if type not in FLOATS:
            raise CheckpointError(f"tensor {name!r} has type {type}, which is no floating point", where=where)
    words: dict[str, Any] = {name: len(vocab) for name, vocab in sizes.items()}
    try:
        return replace(config, **words)
    except UsageError as error:  # source and target words are one matrix, but not as many
        raise CheckpointError(error.message, where=where) from error


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


def read_json(path: Path, *, most: int = _MOST_CONFIG) -> dict[str, Any]:
    """The JSON object of a file of at most so many bytes; raises CheckpointError."""
    return _parse(read_file(path, most=most), path)


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
