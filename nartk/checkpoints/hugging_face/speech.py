"""Reads folders of Whisper and Distil-Whisper.

Every setting of ``config.json``, ``preprocessor_config.json`` and ``generation_config.json`` is read, known
to change no output, or refused by name. Where the last leaves the task open, outputs are transcribed, as
OpenAI's program does it; transformers then leaves the task out of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from nartk.architectures.settings import TARGET_WORDS, both
from nartk.architectures.whisper import WhisperConfig
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.generation import KEY, read_generation
from nartk.checkpoints.hugging_face.families import FAIRSEQ_NAMES
from nartk.checkpoints.hugging_face.settings import (
    SIZES,
    WITHOUT,
    Family,
    Settings,
    activation_of,
    read_family,
    refusal,
)
from nartk.checkpoints.hugging_face.tensors import Files, MappedTensors, names_of, open_tensors
from nartk.checkpoints.hugging_face.text import as_checkpoint, start_token_of
from nartk.checkpoints.names import CONFIG, GENERATION_CONFIG
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError, named
from nartk.files import Folder, JsonObject
from nartk.processors.hugging_face import hugging_face_processors
from nartk.processors.whisper import NAME
from nartk.protocols.prompts import Prompts

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
_WORDS, _OUTPUT = "decoder.embed_tokens.weight", "proj_out.weight"
_TRANSCRIBE = "transcribe"


def _config_of(values: Settings) -> JsonObject:
    """Makes the values of `WhisperConfig` from settings."""
    if values["use_weighted_layer_sum"]:
        raise refusal("use_weighted_layer_sum", True, WITHOUT, why="which is of classifiers")
    return {
        **{ours: values[theirs] for ours, theirs in SIZES.items()},
        "tgt_vocab": values["vocab_size"],
        "d_model": values["d_model"],
        "activation": activation_of("activation_function", values),
        "input_features": values["num_mel_bins"],
        "max_source_len": 2 * values["max_source_positions"],
        "max_target_len": values["max_target_positions"],
    }


# Of training, of classifiers, of times of single words; scale_embedding, which transformers leaves unused;
# and what generation_config.json has in newer folders, with which it is read.
_IRRELEVANT = """
    apply_spec_augment classifier_proj_size forced_decoder_ids mask_feature_length mask_feature_min_masks
    mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob median_filter_width scale_embedding
"""
FAMILY = Family(
    ("WhisperForConditionalGeneration", "WhisperModel"),
    {
        "vocab_size": 51865,
        "num_mel_bins": 80,
        **both(layers=4, ffn_dim=1536, attention_heads=6),
        "activation_function": "gelu",
        "d_model": 384,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "tie_word_embeddings": True,
        "use_weighted_layer_sum": False,
    },
    {
        "num_key_value_heads": "encoder_attention_heads",
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    },
    _config_of,
    {**FAIRSEQ_NAMES, "conv.0": "conv1", "conv.1": "conv2"},
    irrelevant=frozenset(_IRRELEVANT.split()),
)
# Settings of the feature extractor: those that have one value, and those that change nothing.
SOUND: JsonObject = {
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "padding_value": 0.0,
    "dither": 0.0,
    "do_normalize": False,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "padding_side": "right",
}
_LEFT = ("mel_filters", "n_samples", "nb_max_frames", "processor_class", "return_attention_mask")


def read_speech(
    folder: Folder,
    *,
    source_lang: str | None,
    target_lang: str | None,
    source_prefix: str | None,
    allow_pickle: bool = False,
    files: Files | None = None,
) -> Checkpoint:
    """Reads a folder as `read_hugging_face` does.

    Args:
        files: The tensors, where they are in no file of transformers'.
        source_lang: Language of the sound; None: the model's own choice, which may be to detect it.
        target_lang: Language of the outputs: the sound's, or ``en``, into which it is then translated.
        source_prefix: None: sound has none.
    """
    if source_prefix is not None:
        raise UsageError(
            f"{named('source_prefix', source_prefix)} for {str(folder)!r}, which reads sound",
            fix="leave it out",
        )
    notices: list[str] = []
    config, generation_config = folder.json(CONFIG), folder.optional_json(GENERATION_CONFIG)
    settings, values = read_family(folder, FAMILY, notices.append)
    text = hugging_face_processors(folder)
    values["pad"] = text.specials.pad  # which no output holds: models pad with eos
    if files is None:
        files = open_tensors(folder, allow_pickle=allow_pickle)
    network, tensors = _network(files, values, tied=settings["tie_word_embeddings"])
    given = config if generation_config is None else generation_config
    prompts = _in_languages(_prompts(given, config, network, str(folder)), source_lang, target_lang)
    return as_checkpoint(
        folder,
        {
            "architecture": "whisper",
            "model": asdict(network),
            "special_ids": asdict(text.specials),
            "start_token": start_token_of(config, generation_config, FAMILY.start, str(folder)),
            "input": {
                "name": NAME,
                "features": "whisper",
                "bins": network.input_features,
                "seconds": _seconds(folder, network),
                "shortest": 1,
            },
            "output": {**text.output, "name": NAME, **asdict(prompts)},
            KEY: read_generation(config, generation_config, tell=notices.append),
        },
        tensors,
        text.files,
        also=[GENERATION_CONFIG, PREPROCESSOR, PROCESSOR],
        notices=notices,
    )


def _network(files: Files, values: JsonObject, *, tied: bool) -> tuple[WhisperConfig, MappedTensors]:
    """The configuration of values, and the weights.

    Keys have no bias, which our fused layers of queries, keys and values have: zeros are put there.
    """
    ours, output = TARGET_WORDS[0], _OUTPUT
    own = output in files.shapes and not files.are_equal(output, _WORDS)
    values["share_embeddings"] = "none" if own and not tied else "decoder"
    try:
        config = WhisperConfig.from_dict(values)
    except UsageError as error:
        raise CheckpointError(error.message, where=files.where) from error
    if not tied and output not in files.shapes:
        files.require([output], (config.tgt_vocab, config.d_model))
    shapes = config.weight_shapes()
    parts: dict[str, Sequence[str]] = {}
    tables: JsonObject = {}
    for name, shape in shapes.items():
        if name in TARGET_WORDS[:2]:
            names = [_WORDS if name == ours or values["share_embeddings"] == "decoder" else output]
        else:
            names = names_of(name, FAMILY.names, gated=False)
        biased = [each for each in names if not each.endswith("k_proj.bias")]
        files.require(biased, (shape[0] // len(names), *shape[1:]))
        if len(biased) < len(names):
            zeros = np.zeros(shape[0] // len(names), np.float32)
            tables[name] = np.concatenate([files[each] if each in biased else zeros for each in names])
        parts[name] = biased
    used = {each for names in parts.values() for each in names}
    files.refuse_others({*used, _WORDS, output})
    parts = {name: names for name, names in parts.items() if name not in tables}
    return config, MappedTensors(files, shapes, parts, {}, tables)


def _prompts(given: Settings, config: Settings, network: WhisperConfig, where: str) -> Prompts:
    """The prompts that a configuration of generation says.

    Args:
        given: It.
        config: Contents of config.json, which is read where `given` leaves the prompt open.
    """
    fields = {name: given.get(name) for name in ("lang_to_id", "task_to_id", "language", "task")}
    for name in ("lang_to_id", "task_to_id"):
        if not isinstance(fields[name], dict | None):
            raise CheckpointError(f"{name} is {fields[name]!r}, not ids by name", where=where)
    languages = {_code(name): id for name, id in (fields["lang_to_id"] or {}).items()}
    tasks = dict(fields["task_to_id"] or {})
    forced = given.get("forced_decoder_ids")
    if forced is None:
        forced = config.get("forced_decoder_ids")
    if fields["language"] is not None or fields["task"] is not None:
        forced = None
    latest, last = given.get("max_initial_timestamp_index"), given.get("no_timestamps_token_id")
    values = {
        "languages": languages,
        "tasks": tasks,
        "no_timestamps": last,
        "language": "",
        "task": _TRANSCRIBE if _TRANSCRIBE in tasks else "",
        "latest_start": -1 if latest is None else latest,
        "frames": network.max_source_len,
        "heads": _heads(given.get("alignment_heads"), network, where),
    }
    try:
        prompts = Prompts.of(values, network.tgt_vocab)
        if forced is not None:
            return _forced(prompts, forced)
        return prompts.asking(*(fields[name] or "" for name in ("language", "task")))
    except UsageError as error:
        raise UnsupportedCheckpointError(f"a prompt: {error.message}", where=where) from error


def _heads(pairs: object, network: WhisperConfig, where: str) -> object:
    """The heads that follow the sound, pairs of a layer and a head; none where a configuration has none.

    Raises:
        CheckpointError: The network has no such head.
    """
    for pair in pairs if isinstance(pairs, list) else []:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair)):
            break  # which `Prompts.of` refuses
        if not (0 <= pair[0] < network.decoder_layers and 0 <= pair[1] < network.decoder_heads):
            raise CheckpointError(f"alignment_heads has {pair}, which the decoder has not", where=where)
    return [] if pairs is None else pairs


def _forced(prompts: Prompts, forced: object) -> Prompts:
    """The prompts of ``forced_decoder_ids``: pairs of a position and a word, which may be null.

    Raises:
        UsageError: They are of another form.
    """
    pairs: list[Any] = forced if isinstance(forced, list) else [forced]
    ids = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    names = {id: name for known in (prompts.languages, prompts.tasks) for name, id in known.items()}
    rest = [id for id in ids if id not in (None, prompts.no_timestamps)]
    if [pair[:1] for pair in pairs] != [[i] for i in range(1, len(ids) + 1)] or not all(
        id in names for id in rest
    ):
        raise UsageError(f"forced_decoder_ids is {forced!r}, no language, task and word without times")
    found = prompts
    for id in rest:
        name = names[id]
        found = found.asking(language=name) if name in found.languages else found.asking(task=name)
    return found


def _code(name: str) -> str:
    """The code of a language's token."""
    return name.removeprefix("<|").removesuffix("|>")


def _in_languages(prompts: Prompts, source_lang: str | None, target_lang: str | None) -> Prompts:
    """The prompts for sound in a language and outputs in one."""
    if source_lang is not None:
        prompts = prompts.asking(language=source_lang)
    if target_lang is None:
        return prompts
    target = prompts.asking(language=target_lang).language
    if target == prompts.language:
        return prompts.asking(task=_TRANSCRIBE)
    if target != "en":
        raise UsageError(
            f"{named('target_lang')} is {target_lang!r}, into which this model does not translate",
            fix="choose en, or leave it out",
        )
    return prompts.asking(task="translate")


def _seconds(folder: Folder, network: WhisperConfig) -> float:
    """Seconds of sound of a source; raises unless the feature extractor's settings are Whisper's."""
    name, values = PREPROCESSOR, folder.optional_json(PREPROCESSOR)
    if values is None and folder.has(PROCESSOR):
        name, values = PROCESSOR, folder.json(PROCESSOR).get("feature_extractor")
    seconds = network.max_source_len / 100
    wanted = {**SOUND, "feature_size": network.input_features, "chunk_length": seconds}
    for key, value in values.items() if isinstance(values, dict) else ():
        if key in _LEFT or value is None:
            continue
        if key not in wanted or value != wanted[key]:
            fix = f"known is {wanted[key]!r}" if key in wanted else WITHOUT
            raise UnsupportedCheckpointError(f"{key} is {value!r}", fix=fix, where=str(folder / name))
    return seconds
