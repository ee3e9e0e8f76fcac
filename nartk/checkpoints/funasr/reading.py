"""Reads FunASR's Paraformers (Gao et al. 2022, https://arxiv.org/abs/2206.08317).

A model is a folder: ``config.yaml``, ``model.pt``, ``am.mvn`` and ``tokens.json`` or ``tokens.txt``; or files
of other names, which ``configuration.json`` says. ``seg_dict``, by which FunASR cuts text for training, is
not read. BiCifParaformer and SeacoParaformer are read as Paraformers: the output of their predictor for
timestamps and what reads hotwords are left out, since nartk has its own of both.

It differs from FunASR's program in this: there is no dither, a frame has a whole window, sums of weights are
as `nartk.models.cif` says, and sources and outputs have a longest length.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from nartk.architectures import architecture
from nartk.architectures.sanm_paraformer import SanmParaformerConfig
from nartk.checkpoints.checkpoint import Checkpoint, assemble
from nartk.checkpoints.espnet.sections import is_inside, part, read_yaml, shortened
from nartk.checkpoints.foreign import FUNASR_CONFIG, FUNASR_MANIFEST, FUNASR_STATISTICS, FUNASR_WEIGHTS
from nartk.checkpoints.funasr.configuration import features_of, network_of, require_known, words_of
from nartk.checkpoints.funasr.weights import FACTOR, OFFSET, FunasrTensors
from nartk.checkpoints.generation import KEY as GENERATION
from nartk.checkpoints.hugging_face.tensors import Files, PickledTensors
from nartk.checkpoints.tensors import Array
from nartk.data.audio.features import FeatureSettings
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError, requiring_torch
from nartk.files import Folder, JsonObject, parse_json, read_file, sha256
from nartk.processors.audio import NONE
from nartk.processors.funasr import NAME
from nartk.processors.vocabulary import FILE
from nartk.vocab import FAIRSEQ

_ARCHITECTURE = "sanm_paraformer"
_EXTRA = "funasr"
_TOKENS = ("tokens.json", "tokens.txt")
_MOST_MANIFEST, _MOST_STATISTICS, _MOST_TOKENS = 1_000_000, 5_000_000, 4_000_000  # bytes
_NUMBERS = re.compile(r"[^\n]*\n\s*<LearnRateCoef>\s+\S+\s+\[([^\]]*)\]")
_PREFIX = "module."  # of what several devices have trained


@dataclass(frozen=True)
class Located:
    """The files of a model.

    Attributes:
        weights, config, tokens: State dict, YAML, and words; tokens, None: the YAML lists them.
        statistics: am.mvn; None: features are as they are.
    """

    weights: Path
    config: Path
    tokens: Path | None
    statistics: Path | None


@contextmanager
def reading_funasr(path: Path) -> Iterator[Checkpoint]:
    """Reads a model's folder, or its file of weights, as a checkpoint, whose files are there within.

    Raises:
        CheckpointError: A file is missing, damaged or unsafe; or tensors are missing, left over or of another
            shape.
        UnsupportedCheckpointError: nartk has no such setting.
        MissingDependencyError: torch or PyYAML is not installed.
    """
    folder = path if path.is_dir() else path.parent
    named = _manifest(folder)
    config = named.get("config", folder / FUNASR_CONFIG)
    values = read_yaml(_there(config), _EXTRA)
    require_known(values, str(config))
    files = _located(folder, path, named, config, values)
    stored = _open(files.weights)
    with TemporaryDirectory() as made:
        yield _assembled(files, values, stored, Path(made))


def _manifest(folder: Path) -> dict[str, Path]:
    """The files that ``configuration.json`` names, if it is there."""
    path = folder / FUNASR_MANIFEST
    if not path.is_file():
        return {}
    values = parse_json(read_file(path, most=_MOST_MANIFEST), path)
    metas = part(values, "file_path_metas", str(path))
    tokenizer, frontend = (part(metas, f"{each}_conf", str(path)) for each in ("tokenizer", "frontend"))
    given = {
        "weights": metas.get("init_param"),
        "config": metas.get("config"),
        "tokens": tokenizer.get("token_list"),
        "statistics": frontend.get("cmvn_file"),
    }
    found = {}
    for key, name in given.items():
        if name is None:
            continue
        if not isinstance(name, str) or not is_inside(name):
            raise CheckpointError(f"names {shortened(name)}, no file of the folder", where=str(path))
        found[key] = folder / name
    return found


def _there(path: Path) -> Path:
    if not os.path.isfile(path):
        raise CheckpointError(
            f"{shortened(path.name)[1:-1]} is missing",
            fix="copy it from where the model was published",
            where=str(path.parent),
        )
    return path


def _located(
    folder: Path, path: Path, named: Mapping[str, Path], config: Path, values: JsonObject
) -> Located:
    weights = path if path.is_file() else named.get("weights", folder / FUNASR_WEIGHTS)
    tokens = named.get("tokens")
    if tokens is None and "token_list" not in values:
        found = [folder / each for each in _TOKENS if (folder / each).is_file()]
        tokens = found[0] if found else folder / _TOKENS[0]
    frontend = part(values, "frontend_conf", str(config))
    statistics = named.get("statistics", folder / FUNASR_STATISTICS)
    is_plain = "cmvn_file" in frontend and frontend["cmvn_file"] is None and not statistics.is_file()
    return Located(
        _there(weights),
        config,
        None if tokens is None else _there(tokens),
        None if is_plain else _there(statistics),
    )


def _open(path: Path) -> Files:
    with requiring_torch(f"reading {path.name!r}"):
        from nartk.checkpoints.pickles import load_nested_tensors
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in load_nested_tensors(path).items()}
    return Files(str(path), [PickledTensors(path, tensors)])


def _tokens(files: Located, values: JsonObject) -> tuple[list[object], str]:
    """FunASR's words by id, and the file that lists them."""
    where = str(files.config if files.tokens is None else files.tokens)
    if files.tokens is None:
        found: object = values["token_list"]
    else:
        raw = read_file(files.tokens, most=_MOST_TOKENS)
        try:
            text = raw.decode("utf-8")
            is_json = files.tokens.suffix == ".json"
            found = json.loads(text) if is_json else [line.rstrip() for line in text.splitlines()]
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"no list of words: {str(error)[:120]}", where=where) from error
    if not isinstance(found, list):
        raise CheckpointError(f"is {shortened(found)}, no list of words", where=where)
    return found, where


def _statistics(path: Path | None, features: int) -> dict[str, Array]:
    """Offsets and factors of frames side by side, by the weights' names."""
    if path is None:
        return {OFFSET: np.zeros(features, np.float32), FACTOR: np.ones(features, np.float32)}
    text = read_file(path, most=_MOST_STATISTICS).decode("utf-8", "replace")
    found = {}
    for name, tag in ((OFFSET, "<AddShift>"), (FACTOR, "<Rescale>")):
        match = _NUMBERS.match(text, text.index(tag) + len(tag)) if tag in text else None
        if match is None:
            raise CheckpointError(f"has no numbers of {tag}", where=str(path))
        try:
            values = np.array([float(each) for each in match[1].split(maxsplit=features)], np.float32)
        except ValueError as error:
            raise CheckpointError(f"{tag} has {shortened(str(error))}", where=str(path)) from error
        if values.shape != (features,) or not np.isfinite(values).all():
            raise CheckpointError(
                f"{tag} has {len(values)} numbers, not {features} that are finite, as the front end gives",
                where=str(path),
            )
        found[name] = values
    return found


def _assembled(files: Located, values: JsonObject, stored: Files, folder: Path) -> Checkpoint:
    where = str(files.config)
    words, order = words_of(*_tokens(files, values))
    sound = features_of(values, where)
    config = _configured(values, sound, len(words), where)
    tensors = FunasrTensors(config, stored, order, _statistics(files.statistics, config.stacked_features))
    (folder / FILE).write_text(json.dumps(words, ensure_ascii=False), "utf-8")
    described: JsonObject = {
        "architecture": _ARCHITECTURE,
        "model": asdict(config),
        "special_ids": asdict(FAIRSEQ),
        "start_token": FAIRSEQ.eos,
        "input": {"name": "audio", **sound, "shortest": config.least_frames, "cmvn": NONE},
        "output": {"name": NAME, "vocabulary": FILE},
        GENERATION: {"strategy": architecture(_ARCHITECTURE).strategy},
    }
    read = [each for each in (files.statistics, folder / FILE) if each is not None]
    parts = [tensors.digest(), json.dumps(described), *map(sha256, read)]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    copied = {FILE: folder / FILE}
    made = assemble(Folder(folder), described, tensors, fingerprint=digest[:12], files=copied)
    return replace(made, folder=files.weights)  # for messages, and the card


def _configured(values: JsonObject, sound: JsonObject, words: int, where: str) -> SanmParaformerConfig:
    """The configuration, whose features and sizes are within bounds."""
    try:
        FeatureSettings(**sound)
        settings = {**network_of(values, where), "tgt_vocab": words}
        return SanmParaformerConfig.from_dict(settings)
    except UnsupportedCheckpointError:
        raise
    except UsageError as error:
        raise CheckpointError(error.message, fix=error.fix, where=where) from error
