"""Reads a state dict with a map of names and a configuration, which the user writes.

The configuration is JSON, an object with

- ``architecture``: ``transformer`` by default.
- ``model``: settings of the architecture but for the numbers of words, the padding symbol and
  ``share_embeddings``, which follow. Positions may also be ``interleaved``: sine and cosine side by side, as
  in Vaswani et al. 2017 and PyTorch's tutorial, of which the state dict has no table.
- ``special_tokens``: ``bos``, ``pad``, ``eos`` and ``unk``, each a word or an id; ``start_token`` likewise,
  by default bos.
- ``words``: all words by id, where no file has them.
- ``split``: how text becomes words, as in `nartk.processors.vocabulary`.
- ``before``, ``after``: words around a source, by default none and eos; ``fill`` as in the same module.
- ``generation``: values of strategies' options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from nartk.architectures import architecture
from nartk.architectures.positions import interleaved_sinusoids
from nartk.architectures.settings import SOURCE_WORDS, TARGET_WORDS, Config
from nartk.checkpoints.checkpoint import Checkpoint, assemble
from nartk.checkpoints.generation import KEY as GENERATION
from nartk.checkpoints.hugging_face.tensors import PickledTensors
from nartk.checkpoints.names import TARGET_TOKENIZER, TOKENIZER
from nartk.checkpoints.state_dicts.names import MappedWeights, NameMap
from nartk.checkpoints.tensors import StoredTensors, Tensors
from nartk.errors import (
    CheckpointError,
    InputFileError,
    UnsupportedCheckpointError,
    UsageError,
    named,
    requiring_torch,
)
from nartk.files import MOST_JSON, Folder, JsonObject, parse_json, read_file, sha256
from nartk.processors.vocabulary import FILE, NAME, read_words

INTERLEAVED = "interleaved"

_KEYS = (
    *("architecture", "model", "special_tokens", "start_token", "words", "split", "before", "after", "fill"),
    GENERATION,
)
_DERIVED = ("src_vocab", "tgt_vocab", "pad", "share_embeddings")
_SPECIALS = ("bos", "pad", "eos", "unk")
_TARGET_FILE = "vocabulary.target.json"
_MOST_WORDS = 50_000_000  # bytes of a file of words
_SHARES = {(True, True): "all", (True, False): "inputs", (False, True): "decoder", (False, False): "none"}


@dataclass(frozen=True)
class Files:
    """The files that describe a state dict.

    Attributes:
        weights: ``.pt`` or another name of what torch has pickled, or ``.safetensors``.
        map, config: JSON files.
        words, target_words: Lists of words, JSON or one a line; None: the configuration's, and the source's.
        pieces, target_pieces: Models of sentencepiece; None: the configuration's ``split``.
    """

    weights: Path
    map: Path
    config: Path
    words: Path | None = None
    target_words: Path | None = None
    pieces: Path | None = None
    target_pieces: Path | None = None


@contextmanager
def reading_state_dict(files: Files) -> Iterator[Checkpoint]:
    """Reads a state dict as a checkpoint, whose processors' files are there within.

    Raises:
        CheckpointError: A file is damaged or unsafe; or tensors are missing, left over or of another shape.
        InputFileError: A file is not there.
        UnsupportedCheckpointError: This version has no such architecture.
        UsageError: Nothing lists the words, or says how text becomes words.
    """
    values = _description(files.config)
    map = NameMap.of(_json(files.map), str(files.map))
    stored = _open(files.weights)
    with TemporaryDirectory() as made:
        yield _assembled(files, values, map, stored, Path(made))


def _assembled(files: Files, values: JsonObject, map: NameMap, stored: Tensors, folder: Path) -> Checkpoint:
    where = str(files.config)
    source = _words(files.words, values.get("words"), where)
    target = source if files.target_words is None else _words(files.target_words, None, where)
    specials = _specials(values.get("special_tokens"), target, where)
    config, tensors = _network(files, values, map, stored, (len(source), len(target)), specials["pad"])
    output: JsonObject = {"name": NAME, "vocabulary": FILE if target == source else _TARGET_FILE}
    copied = {FILE: folder / FILE, output["vocabulary"]: folder / output["vocabulary"]}
    (folder / FILE).write_text(json.dumps(source, ensure_ascii=False), "utf-8")
    copied[output["vocabulary"]].write_text(json.dumps(target, ensure_ascii=False), "utf-8")
    input: JsonObject = {**output, "vocabulary": FILE}
    for side, pieces, name in (
        (input, files.pieces, TOKENIZER),
        (output, files.pieces if files.target_pieces is None else files.target_pieces, TARGET_TOKENIZER),
    ):
        if pieces is not None:
            name = TOKENIZER if pieces == files.pieces else name
            (folder / name).write_bytes(read_file(pieces, most=_MOST_WORDS))
            side["sentencepiece"], copied[name] = name, folder / name
        else:
            side["split"] = _split(values, where)
    input |= {
        "before": [_id(word, source, "before", where) for word in _list(values, "before", [], where)],
        "after": [
            _id(word, source, "after", where) for word in _list(values, "after", [specials["eos"]], where)
        ],
        "fill": values.get("fill", 0),
    }
    described: JsonObject = {
        "architecture": values.get("architecture", "transformer"),
        "model": asdict(config),
        "special_ids": specials,
        "start_token": _id(values.get("start_token", specials["bos"]), target, "start_token", where),
        "input": input,
        "output": output,
    }
    if GENERATION in values:
        described[GENERATION] = values[GENERATION]
    digest = hashlib.sha256(f"{sha256(files.weights)} {json.dumps(described)}".encode()).hexdigest()
    made = assemble(Folder(folder), described, tensors, fingerprint=digest[:12], files=copied)
    return replace(made, folder=files.weights)  # for messages, and the card


def _network(
    files: Files, values: JsonObject, map: NameMap, stored: Tensors, words: tuple[int, int], pad: int
) -> tuple[Config, MappedWeights]:
    """The configuration with all that follows, and the weights."""
    where = str(files.config)
    settings = values.get("model")
    if not isinstance(settings, dict):
        raise CheckpointError("'model' is missing", where=where)
    for name in _DERIVED:
        if name in settings:
            raise CheckpointError(f"'model' has {name!r}, which follows", fix="leave it out", where=where)
    computed = [side for side in ("encoder", "decoder") if settings.get(f"{side}_positions") == INTERLEAVED]
    settings = settings | {f"{side}_positions": "learned" for side in computed}
    name = values.get("architecture", "transformer")
    declared = architecture(name if isinstance(name, str) else "").config
    if not declared.reads_text:  # type: ignore[attr-defined]  # of the encoder
        raise UnsupportedCheckpointError(f"a {name!r} model, which reads no text", where=where)
    settings |= {"src_vocab": words[0], "tgt_vocab": words[1], "pad": pad, "share_embeddings": "none"}
    config = _config(declared, settings, where)
    shapes = config.weight_shapes()
    tables = {}
    for side in computed:
        own = f"{side}_embedding.positions.weight"
        tables[own] = interleaved_sinusoids(np.arange(shapes[own][0]), shapes[own][1])
    weights = MappedWeights(stored, map, shapes, tables, str(files.weights))
    source, target, output = (weights.sources[each] for each in (SOURCE_WORDS, *TARGET_WORDS[:2]))
    # Of tied matrices a state dict has one tensor, which the map names twice, or equal ones.
    equal = [
        one == other or _are_equal(stored, one.name, other.name)
        for one, other in ((source, target), (target, output))
    ]
    shared = _SHARES[equal[0] and words[0] == words[1], equal[1]]
    return _config(declared, settings | {"share_embeddings": shared}, where), weights


def _config(declared: type[Config], settings: JsonObject, where: str) -> Config:
    try:
        return declared.from_dict(settings)
    except UsageError as error:
        raise CheckpointError(error.message, fix=error.fix, where=where) from error
    except CheckpointError as error:
        error.where = where
        raise


def _are_equal(stored: Tensors, one: str, other: str) -> bool:
    return stored.shapes[one] == stored.shapes[other] and np.array_equal(stored[one], stored[other])


def _open(path: Path) -> Tensors:
    """The tensors of a file of torch's, of its only part that holds such, or of a safetensors file."""
    if not path.is_file():
        raise InputFileError("no such file", fix="check the name", where=str(path))
    if path.suffix == ".safetensors":
        return StoredTensors(path)
    with requiring_torch(f"reading {path.name!r}"):
        from nartk.checkpoints.pickles import load_nested_tensors
    return PickledTensors(path, load_nested_tensors(path))


def _description(path: Path) -> JsonObject:
    values = _json(path)
    unknown = values.keys() - _KEYS
    if unknown:
        fix = f"known are {', '.join(_KEYS)}"
        raise CheckpointError(f"unknown key {min(unknown)!r}", fix=fix, where=str(path))
    return values


def _json(path: Path) -> JsonObject:
    if not path.is_file():
        raise InputFileError("no such file", fix="check the name", where=str(path))
    return parse_json(read_file(path, most=MOST_JSON), path)


def _words(path: Path | None, given: object, where: str) -> list[str]:
    """The words by id, of a file or of the configuration."""
    if path is None:
        if given is None:
            raise UsageError(
                "nothing lists the model's words",
                fix=f"give {named('dict')}, or 'words' in the configuration",
            )
        return read_words(json.dumps(given).encode(), where)
    raw = read_file(path, most=_MOST_WORDS)
    if path.suffix == ".json":
        return read_words(raw, str(path))
    try:
        return raw.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"not UTF-8: {error}", where=str(path)) from error


def _split(values: Mapping[str, Any], where: str) -> object:
    if "split" not in values:
        raise UsageError(
            f"{where}: nothing says how text becomes words",
            fix=f"give 'split' in the configuration, or {named('spm')}",
        )
    return values["split"]


def _specials(values: object, words: Sequence[str], where: str) -> dict[str, int]:
    if not isinstance(values, dict) or sorted(values) != sorted(_SPECIALS):
        raise CheckpointError(f"'special_tokens' is not of {', '.join(_SPECIALS)}", where=where)
    return {name: _id(values[name], words, name, where) for name in _SPECIALS}


def _list(values: JsonObject, key: str, default: list[Any], where: str) -> list[Any]:
    found = values.get(key, default)
    if not isinstance(found, list):
        raise CheckpointError(f"{key!r} is {found!r}, not a list of words", where=where)
    return found


def _id(word: object, words: Sequence[str], what: str, where: str) -> int:
    """The id of a word that is given by itself or by its id."""
    if isinstance(word, str) and word in words:
        return words.index(word)
    if type(word) is int and 0 <= word < len(words):
        return word
    raise CheckpointError(f"{what!r} is {word!r}, which is no word", where=where)
