"""Reads ESPnet's models of speech recognition (Watanabe et al. 2018, https://arxiv.org/abs/1804.00015).

A model is a file of weights, such as ``valid.acc.ave.pth``, beside the ``config.yaml`` that training wrote,
or what ESPnet packs, whose ``meta.yaml`` names both. Encoders are Conformer and E-Branchformer, with a CTC
head, and a Transformer decoder or none; and OWSM-CTC's (`nartk.checkpoints.espnet.owsm`), whose sources are
filled up with silence and have a language, a task and a prompt beside them. The means and deviations of
``global_mvn`` are those of the file of weights, where ESPnet reads them too, not those of
``feats_stats.npz``.

It differs from ESPnet's program in this: words have nartk's ids, with a padding symbol that ESPnet lacks
and which is never output; CTC does not emit ``<sos/eos>``, nor OWSM-CTC's ``<eos>``; and sources and
outputs have a longest length.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np

from nartk.architectures import architecture
from nartk.architectures.encoders import SpeechEncoder
from nartk.checkpoints.checkpoint import Checkpoint, assemble
from nartk.checkpoints.espnet import owsm
from nartk.checkpoints.espnet.configuration import (
    features_of,
    is_owsm,
    network_of,
    require_known,
    tokens_of,
    words_of,
)
from nartk.checkpoints.espnet.sections import is_inside, part, read_yaml, refused, shortened
from nartk.checkpoints.espnet.weights import DEVIATION, MEAN, EspnetTensors
from nartk.checkpoints.foreign import ESPNET_CONFIG, ESPNET_PACKED
from nartk.checkpoints.generation import KEY as GENERATION
from nartk.checkpoints.hugging_face.tensors import Files, PickledTensors
from nartk.checkpoints.names import TOKENIZER
from nartk.data.audio.features import FeatureSettings
from nartk.data.audio.normalization import LEAST_VARIANCE, Statistics
from nartk.errors import (
    CheckpointError,
    InputFileError,
    UnsupportedCheckpointError,
    UsageError,
    named,
    requiring_torch,
)
from nartk.files import Folder, JsonObject, read_file, sha256
from nartk.processors.audio import GLOBAL, NONE, UTTERANCE
from nartk.processors.text import SentencePieceTokenizer
from nartk.processors.vocabulary import FILE, NAME, SPACES
from nartk.vocab import FAIRSEQ, Vocab

_STATISTICS = "statistics.json"
_AVERAGES = ("valid.acc.ave.pth", "valid.acc.ave_*best.pth", "valid.*.ave*.pth", "*.ave*.pth", "*.pth")
_MOST_PIECES = 50_000_000  # bytes of a model of sentencepiece
_UPWARDS = 4  # folders in which the files that a configuration names are looked for
_TASKS = ("asr", "s2t")


@dataclass(frozen=True)
class Located:
    """The files of a model.

    Attributes:
        weights, config: State dict and YAML.
        around: Folders that the paths in the configuration may start from.
    """

    weights: Path
    config: Path
    around: tuple[Path, ...]


@contextmanager
def reading_espnet(path: Path, pieces: Path | None = None) -> Iterator[Checkpoint]:
    """Reads a model as a checkpoint, whose processors' files are there within.

    Args:
        path: The file of weights, its folder, or the folder of what ESPnet has packed.
        pieces: Model of sentencepiece; None: the one that the configuration names.

    Raises:
        CheckpointError: A file is damaged or unsafe; or tensors are missing, left over or of another shape.
        UnsupportedCheckpointError: nartk has no such setting.
        UsageError: A folder holds several files of weights.
        MissingDependencyError: torch or PyYAML is not installed.
    """
    files = _located(path)
    values = read_yaml(files.config)
    require_known(values, str(files.config))
    stored = _open(files.weights)
    with TemporaryDirectory() as made:
        yield _assembled(files, values, stored, pieces, Path(made))


def _located(path: Path) -> Located:
    if not path.is_dir():
        return Located(path, path.parent / ESPNET_CONFIG, _around(path.parent))
    if not (path / ESPNET_CONFIG).is_file():
        packed = read_yaml(path / ESPNET_PACKED)
        where = str(path / ESPNET_PACKED)
        files = part(packed, "files", where)
        task = next((each for each in _TASKS if f"{each}_model_file" in files), _TASKS[0])
        config = _named(path, part(packed, "yaml_files", where), f"{task}_train_config", where)
        weights = _named(path, files, f"{task}_model_file", where)
        return Located(weights, config, (weights.parent, path))
    for pattern in _AVERAGES:
        found = sorted({os.path.realpath(each): each for each in sorted(path.glob(pattern))}.values())
        if len(found) == 1:
            return Located(found[0], path / ESPNET_CONFIG, _around(path))
        if found:
            raise UsageError(
                f"{str(path)!r} holds {', '.join(each.name for each in found[:4])}", fix="name one of them"
            )
    raise CheckpointError("holds no weights (*.pth)", where=str(path))


def _around(folder: Path) -> tuple[Path, ...]:
    return (folder, *folder.resolve().parents[:_UPWARDS])


def _named(folder: Path, values: JsonObject, key: str, where: str) -> Path:
    """The file that a manifest names, inside of its folder."""
    if key not in values:
        raise UnsupportedCheckpointError(
            f"names {', '.join(map(shortened, values)) or 'nothing'}, not {key!r}",
            fix="nartk reads ESPnet's models of speech recognition",
            where=where,
        )
    name = values[key]
    if not isinstance(name, str) or not is_inside(name) or not os.path.isfile(folder / name):
        raise CheckpointError(f"{key} is {shortened(name)}, no file of the folder", where=where)
    return folder / name


def _open(path: Path) -> Files:
    if not path.is_file():
        raise InputFileError("no such file", fix="check the name", where=str(path))
    with requiring_torch(f"reading {path.name!r}"):
        from nartk.checkpoints.pickles import load_tensors
    return Files(str(path), [PickledTensors(path, load_tensors(path))])


def _assembled(
    files: Located, values: JsonObject, stored: Files, pieces: Path | None, folder: Path
) -> Checkpoint:
    where = str(files.config)
    words, order = words_of(tokens_of(values, where), values)
    sound = features_of(values, where)
    name, config, fill = _configured(values, sound, words, where)
    tensors = EspnetTensors(config, stored, order)
    (folder / FILE).write_text(json.dumps(words, ensure_ascii=False), "utf-8")
    copied = {FILE: folder / FILE}
    output: JsonObject = {"name": NAME, "vocabulary": FILE}
    if values["token_type"] == "bpe":
        found = _pieces(files, values.get("bpemodel")) if pieces is None else pieces
        SentencePieceTokenizer(found, Vocab((*words,)))  # refused now, by its own name
        (folder / TOKENIZER).write_bytes(read_file(found, most=_MOST_PIECES))
        output["sentencepiece"], copied[TOKENIZER] = TOKENIZER, folder / TOKENIZER
    elif pieces is not None:
        raise UsageError(
            f"{named('spm', str(pieces))} for a model whose token_type is {values['token_type']}",
            fix="leave it out",
        )
    else:
        output["split"] = SPACES if values["token_type"] == "word" else []
    input: JsonObject = {"name": "audio", **sound, "shortest": config.least_frames}
    if is_owsm(values):
        input |= {**output, "name": "prompted_audio", "front": owsm.FRONT, "fill": fill}
        output["hides_symbols"] = True
    input["cmvn"] = _normalization(values, stored, sound["bins"], folder, where)
    if input["cmvn"] == GLOBAL:
        input["statistics"], copied[_STATISTICS] = _STATISTICS, folder / _STATISTICS
    described: JsonObject = {
        "architecture": name,
        "model": asdict(config),
        "special_ids": asdict(FAIRSEQ),
        "start_token": FAIRSEQ.eos,
        "input": input,
        "output": output,
        GENERATION: {"strategy": architecture(name).strategy},
    }
    parts = [tensors.digest(), json.dumps(described), *(sha256(each) for each in copied.values())]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    made = assemble(Folder(folder), described, tensors, fingerprint=digest[:12], files=copied)
    return replace(made, folder=files.weights)  # for messages, and the card


def _configured(
    values: JsonObject, sound: JsonObject, words: Sequence[str], where: str
) -> tuple[str, SpeechEncoder, float]:
    """The architecture, its configuration, whose sizes are within bounds, and the seconds of a source."""
    fill = 0.0
    try:
        features = FeatureSettings(**sound)
        name, settings = network_of(values, sound["bins"], where)
        if is_owsm(values):
            if settings.get("prompt_layers"):
                settings["absent_prompt"] = words.index(owsm.ABSENT)
            if not features.is_stored:
                fill = owsm.seconds_of(values, where)
                settings["max_source_len"] = _longest(features, fill, settings["subsampling"])
        config = architecture(name).config.from_dict({**settings, "tgt_vocab": len(words)})
    except UsageError as error:
        raise CheckpointError(error.message, fix=error.fix, where=where) from error
    assert isinstance(config, SpeechEncoder)
    return name, config, fill


def _longest(features: FeatureSettings, seconds: float, subsampling: int) -> int:
    """Frames of sound of so many seconds, or of as many whole positions, whichever is more."""
    frames = features.frames(int(seconds * features.sample_rate))
    return max(frames, ((frames - 1) // subsampling + 1) * subsampling - 1)


def _pieces(files: Located, named_file: object) -> Path:
    """The model of sentencepiece that a configuration names, or one of that name beside the weights."""
    if isinstance(named_file, str) and named_file.endswith(".model"):
        beside = files.around[0] / PurePosixPath(named_file).name
        inside = [folder / named_file for folder in files.around if is_inside(named_file)]
        for path in (beside, *inside):
            if os.path.isfile(path):  # False of a name that is too long
                return path
    raise CheckpointError(
        f"its model of sentencepiece is not there, bpemodel is {shortened(named_file)}",
        fix=f"give {named('spm')} with the file, or copy it beside the weights",
        where=str(files.config),
    )


def _normalization(values: JsonObject, stored: Files, features: int, folder: Path, where: str) -> str:
    """The name of the normalisation; the statistics of a global one are written to the folder."""
    name, given = values.get("normalize"), part(values, "normalize_conf", where)
    flags = {"norm_means": True, "norm_vars": name == "global_mvn"}
    for key in flags:
        flags[key] = given.get(key, flags[key])
        if name is not None and type(flags[key]) is not bool:
            raise refused(f"normalize_conf.{key}", flags[key], where, [True, False])
    if name is None:
        return NONE
    if name == "utterance_mvn":
        for key, value in flags.items():
            if not value:
                raise refused(f"normalize_conf.{key} of {name}", value, where, [True])
        return UTTERANCE
    for key in (MEAN, DEVIATION):
        stored.require([key], (features,))
    mean, deviation = (np.asarray(stored[key], np.float64) for key in (MEAN, DEVIATION))
    if not flags["norm_means"]:
        mean = np.zeros(features)
    if not flags["norm_vars"]:
        deviation = np.ones(features)
    if not np.isfinite(deviation).all() or (deviation**2 < LEAST_VARIANCE).any():
        raise UnsupportedCheckpointError(
            f"{DEVIATION} is {deviation.min():g}, below {LEAST_VARIANCE**0.5:g}", where=str(stored.where)
        )
    Statistics(1, mean, deviation**2).write(folder / _STATISTICS)
    return GLOBAL
