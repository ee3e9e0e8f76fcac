"""Reads folders of text models of Hugging Face, and makes checkpoints of what was read."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from nartk.architectures.settings import SOURCE_WORDS, TARGET_WORDS
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.checkpoint import Checkpoint, assemble
from nartk.checkpoints.generation import KEY, ending_words, read_generation
from nartk.checkpoints.hugging_face.families import BIAS, FAMILIES
from nartk.checkpoints.hugging_face.settings import Family, Settings, read_family
from nartk.checkpoints.hugging_face.tensors import Files, MappedTensors, names_of, open_tensors
from nartk.checkpoints.names import CONFIG, GENERATION_CONFIG
from nartk.checkpoints.tensors import Array, Tensors
from nartk.errors import CheckpointError, UsageError
from nartk.files import Folder, JsonObject
from nartk.processors.hugging_face import hugging_face_processors

_WORDS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


def read_network(
    folder: Folder, *, allow_pickle: bool = False, tell: Callable[[str], None] = warnings.warn
) -> tuple[TransformerConfig, MappedTensors]:
    """The configuration and the weights of a folder of one of `FAMILIES`.

    Args:
        tell: Same as in `read_settings`.

    Raises:
        UnsupportedCheckpointError: A setting is not known.
        CheckpointError: A file is missing or corrupt, or weights are missing, left over, or of another shape
            than the settings have; or they are pickled, without `allow_pickle`.
        MissingDependencyError: They are pickled, and torch is not installed.
    """
    family = FAMILIES[folder.json(CONFIG)["model_type"]]
    settings, values = read_family(folder, family, tell)
    return _network(open_tensors(folder, allow_pickle=allow_pickle), family, settings, values)


def _network(
    files: Files, family: Family, settings: Settings, values: JsonObject
) -> tuple[TransformerConfig, MappedTensors]:
    """The configuration of settings, already as `values`, and weights."""
    words = dict(zip((SOURCE_WORDS, *TARGET_WORDS[:2]), _words(files, family, settings), strict=True))
    source, target, output = words.values()
    shares = {(True, True): "all", (True, False): "inputs", (False, True): "decoder", (False, False): "none"}
    values["share_embeddings"] = shares[source == target, target == output]
    values["output_bias"] = family.has_bias and BIAS in files.shapes and bool(files[BIAS].any())
    try:
        config = TransformerConfig.from_dict(values)
    except UsageError as error:
        raise CheckpointError(error.message, where=files.where) from error
    shapes = config.weight_shapes()
    parts: dict[str, Sequence[str]] = {}
    skipped: dict[str, int] = {}
    tables: dict[str, Array] = {}
    for name, shape in shapes.items():
        wanted = shape
        if name in words:
            names = [words[name]]
        elif name == "output.bias":
            names, wanted = [BIAS], (1, *shape)
        else:
            names = names_of(name, family.names, gated=config.gated_ffn)
            wanted = (shape[0] // len(names), *shape[1:])
        if name.endswith("positions.weight"):
            if family.computes_positions and names[0] not in files.shapes:
                tables[name] = _sinusoids(*shape)
                continue
            skipped[name] = family.skipped
            wanted = (shape[0] + family.skipped, *shape[1:])
        files.require(names, wanted)
        parts[name] = names
    bias = {BIAS} if family.has_bias else set()
    files.refuse_others({*_WORDS, *bias, *family.unused, *chain.from_iterable(parts.values())})
    return config, MappedTensors(files, shapes, parts, skipped, tables)


def _words(files: Files, family: Family, settings: Settings) -> list[str]:
    """The names of the matrices of source, target and output words; those that are equal have one.

    Matrices that are tied are in some files one tensor, of any of their names, in others several.
    """
    shared, source, target, output = _WORDS
    tied = family.ties_words or settings["tie_word_embeddings"]
    if not settings.get("share_encoder_decoder_embeddings", True):
        choices = [[source], [target, output][: 1 + tied], [output, target][: 1 + tied]]
    elif tied:
        choices = [[each, *_WORDS] for each in (source, target, output)]
    else:
        choices = [[source, shared], [target, shared], [output]]
    found: list[str] = []
    for names in choices:
        name = next((each for each in names if each in files.shapes), names[0])
        files.require([name], files.shapes.get(name, ()))
        found.append(next((each for each in found if files.are_equal(each, name)), name))
    return found


def _sinusoids(count: int, features: int) -> Array:
    """The positions of Marian and Pegasus, sines then cosines, [count, features]."""
    angles = np.arange(count)[:, None] * 10000.0 ** -(np.arange(0, features, 2) / features)
    return np.concatenate([np.sin(angles), np.cos(angles[:, : features // 2])], 1).astype(np.float32)


def read_text(
    folder: Folder,
    *,
    source_lang: str | None,
    target_lang: str | None,
    source_prefix: str | None,
    allow_pickle: bool,
) -> Checkpoint:
    """Reads a folder as `read_hugging_face` does."""
    notices: list[str] = []
    network, tensors = read_network(folder, allow_pickle=allow_pickle, tell=notices.append)
    config, generation_config = folder.json(CONFIG), folder.optional_json(GENERATION_CONFIG)
    start = partial(
        start_token_of, config, generation_config, FAMILIES[config["model_type"]].start, str(folder)
    )
    text = hugging_face_processors(
        folder,
        ends=ending_words(config, generation_config),
        start=start,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
    )
    generation = read_generation(config, generation_config, tell=notices.append)
    # The language chosen takes the place of the model's own; decoding begins outputs with it, not the text.
    first, start_token = text.output["first_word"], text.output["start_word"]
    if first is not None:
        generation["forced_bos"] = first
    return as_checkpoint(
        folder,
        {
            "architecture": "transformer",
            "model": asdict(network),
            "special_ids": asdict(text.specials),
            "start_token": start() if start_token is None else start_token,
            "input": text.input,
            "output": {**text.output, "first_word": None},
            KEY: generation,
        },
        tensors,
        text.files,
        also=[GENERATION_CONFIG],
        notices=(*text.notices, *notices),
    )


def as_checkpoint(
    folder: Folder,
    config: JsonObject,
    tensors: Tensors,
    files: Mapping[str, Path],
    *,
    also: Sequence[str],
    notices: Sequence[str],
) -> Checkpoint:
    """The checkpoint of a folder, of a configuration as nartk's has it.

    Args:
        files: Paths of the processors' files, by name.
        also: Names of what its fingerprint covers besides, if it is there.
    """
    beside = {key: value for key, value in config.items() if key not in ("architecture", "model")}
    names = sorted(filter(folder.has, {CONFIG, *also, *files}))
    digests = [str(tensors.digest()), json.dumps(beside), *map(folder.sha256, names)]
    return assemble(
        folder,
        config,
        tensors,
        files=files,
        fingerprint=hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12],
        notices=notices,
    )


def start_token_of(
    config: JsonObject, generation_config: JsonObject | None, default: tuple[str, int] | None, where: str
) -> int:
    """The start token of the decoder, as `generate` finds it; where it finds none, that of the files.

    Args:
        config, generation_config: Contents of the files of these names; None: there is no such file.
        default: A setting of the family, and its default.
        where: For messages.
    """
    given = [] if generation_config is None else [generation_config]
    for values in (*given, config):
        for key in ("decoder_start_token_id", "bos_token_id"):
            found = values.get(key)
            if isinstance(found, list) and len(found) == 1:
                (found,) = found
            if type(found) is int:
                return found
    if default is None:
        raise CheckpointError("'decoder_start_token_id' is missing", where=where)
    name, fallback = default
    value = found = config.get(name)
    if isinstance(found, list) and found:
        found = found[0]
    if found is None:
        return fallback
    if type(found) is not int:
        raise CheckpointError(f"{name!r} is {value!r}, not the id of a word", where=where)
    return found
