"""Writes folders of Whisper as transformers has them, which `nartk.checkpoints.hugging_face.speech` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file

from nartk.adapters.hf import ACTIVATIONS, copy_tokenizer
from nartk.architectures.settings import TARGET_WORDS
from nartk.architectures.whisper import WhisperConfig
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.generation import write_generation
from nartk.checkpoints.hugging_face.settings import SIZES
from nartk.checkpoints.hugging_face.speech import FAMILY, PREPROCESSOR, SOUND
from nartk.checkpoints.hugging_face.tensors import names_of
from nartk.checkpoints.names import CONFIG, GENERATION_CONFIG, WEIGHTS
from nartk.errors import UnsupportedCheckpointError
from nartk.files import JsonObject, writing
from nartk.models.reference import DTYPES
from nartk.processors.whisper import WhisperText
from nartk.serving.scorers import load_network

TYPES = ("fp32", "bf16", "fp16")  # of the weights that `write_folder` writes
_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_RATE = 100  # frames a second
_PREVIOUS = "<|startofprev|>"


def write_folder(checkpoint: Checkpoint, folder: Path, dtype: str) -> Iterator[str]:
    """Writes a folder that `AutoModelForSpeechSeq2Seq` and `AutoProcessor` load.

    Yields nothing: there is nothing that a reader of the folder must know.

    Args:
        folder: Exists.
        dtype: One of `TYPES`.

    Raises:
        UsageError: The model's weights are int8.
        UnsupportedCheckpointError: A key's bias is not 0, which transformers has not.
    """
    config, output = cast(WhisperConfig, read_config(checkpoint)), checkpoint.output
    assert isinstance(output, WhisperText)
    type = DTYPES[dtype]
    weights = {name: weight.to(type) for name, weight in _weights(checkpoint, config)}
    ids: JsonObject = {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), output.vocab.eos),
        "decoder_start_token_id": checkpoint.start_token,
    }
    files = {
        CONFIG: _config(config, ids, _NAMES[dtype]),
        GENERATION_CONFIG: _generation(checkpoint, output, ids),
        PREPROCESSOR: {
            **SOUND,
            "processor_class": "WhisperProcessor",
            "feature_size": config.input_features,
            "chunk_length": config.max_source_len // _RATE,
        },
    }
    for name, values in files.items():
        with writing(folder / name) as file:
            json.dump(values, file, indent=2)
    copy_tokenizer(checkpoint, folder)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    yield from ()


def _weights(checkpoint: Checkpoint, config: WhisperConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by transformers' names; of fused layers each part, without the bias that keys have not."""
    for name, weight in load_network(checkpoint).state_dict().items():
        if name in TARGET_WORDS[:2]:
            if name == TARGET_WORDS[0]:
                yield "model.decoder.embed_tokens.weight", weight
            elif config.share_embeddings == "none":
                yield "proj_out.weight", weight
            continue
        names = names_of(name, FAMILY.names, gated=False)
        for each, part in zip(names, weight.chunk(len(names)), strict=True):
            if not each.endswith("k_proj.bias"):
                yield f"model.{each}", part.contiguous()
            elif part.any():
                raise UnsupportedCheckpointError(f"{name!r}: keys have a bias, which no Whisper has")


def _config(config: WhisperConfig, ids: JsonObject, dtype: str) -> JsonObject:
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": config.tgt_vocab,
        "d_model": config.d_model,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "activation_function": ACTIVATIONS.get(config.activation, config.activation),
        "num_mel_bins": config.input_features,
        "max_source_positions": config.max_source_len // 2,
        "max_target_positions": config.max_target_len,
        "tie_word_embeddings": config.share_embeddings == "decoder",
        "dtype": dtype,
        **ids,
    }


def _generation(checkpoint: Checkpoint, output: WhisperText, ids: JsonObject) -> JsonObject:
    """The contents of generation_config.json: lengths, banned words and prompts."""
    given, prompts = checkpoint.generation, output.prompts
    found = write_generation(given, output.vocab.eos, output.vocab.also_eos)
    for ours, theirs, name in (
        ("max_len", "max_length", "max_length"),
        ("min_len", "min_length", "min_new_tokens"),
    ):
        found.pop(theirs, None)  # which counts the start token, or the prompt
        if ours in given:
            found[name] = given[ours]
    banned = found.pop("bad_words_ids", [])
    found["suppress_tokens"] = [each[0] for each in banned if len(each) == 1]
    if longer := [each for each in banned if len(each) > 1]:
        found["bad_words_ids"] = longer
    found |= {
        **ids,
        "eos_token_id": found["eos_token_id"],
        "return_timestamps": given.get("timestamps", False),
        "no_timestamps_token_id": prompts.no_timestamps,
        "is_multilingual": bool(prompts.languages),
    }
    if prompts.latest_start >= 0:
        found["max_initial_timestamp_index"] = prompts.latest_start
    if prompts.languages:
        found["lang_to_id"] = {f"<|{code}|>": id for code, id in prompts.languages.items()}
    if prompts.tasks:
        found["task_to_id"] = {**prompts.tasks}
    if prompts.heads:
        found["alignment_heads"] = [[*pair] for pair in prompts.heads]
    for name in ("language", "task"):
        if getattr(prompts, name):
            found[name] = getattr(prompts, name)
    if _PREVIOUS in output.vocab.words:
        found["prev_sot_token_id"] = output.vocab.words.index(_PREVIOUS)
    return found
