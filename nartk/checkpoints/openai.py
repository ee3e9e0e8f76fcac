"""OpenAI's own files of Whisper, such as ``tiny.pt``: sizes, and the weights under OpenAI's names.

Such a file has no tokenizer, and the ids that OpenAI's program never outputs are in its code. Both are in the
folder of transformers of the same model, which is given with it: ``tokenizer.json`` and
``generation_config.json`` are read, and the weights as if they were that folder's.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nartk.architectures.settings import both
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.hugging_face.speech import read_speech
from nartk.checkpoints.hugging_face.tensors import Files, PickledTensors
from nartk.checkpoints.names import CONFIG, GENERATION_CONFIG
from nartk.errors import CheckpointError, UnsupportedCheckpointError, named, requiring_torch
from nartk.files import DescribedFolder, Folder, JsonObject

_SIDES = (("encoder", "audio"), ("decoder", "text"))
_WEIGHTS, _SIZES = "model_state_dict", "dims"
_NEEDED = ("tokenizer.json", GENERATION_CONFIG)
_MULTILINGUAL = 51_865  # words of the smallest model of several languages; those of English have one less
# Parts of transformers' names, by OpenAI's; the longer ones first.
_PARTS = {
    "cross_attn_ln.": "encoder_attn_layer_norm.",
    "attn_ln.": "self_attn_layer_norm.",
    "mlp_ln.": "final_layer_norm.",
    "cross_attn.": "encoder_attn.",
    "attn.": "self_attn.",
    "mlp.0.": "fc1.",
    "mlp.2.": "fc2.",
    "query.": "q_proj.",
    "key.": "k_proj.",
    "value.": "v_proj.",
    "out.": "out_proj.",
}
_WHOLE = {
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.ln": "decoder.layer_norm",
    "decoder.token_embedding": "decoder.embed_tokens",
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
}


def is_openai(path: Path) -> bool:
    """Tells whether a file is one of OpenAI's; raises CheckpointError if it is damaged or unsafe."""
    if not zipfile.is_zipfile(path):
        return False
    with requiring_torch(f"reading {path.name!r}"):
        import torch

        from nartk.checkpoints.pickles import loading_safely
    with loading_safely(path):
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return isinstance(found, dict) and {_WEIGHTS, _SIZES} <= found.keys()


def read_openai(path: Path, tokenizer: Path | None, **given: Any) -> Checkpoint:
    """Reads a file of OpenAI's as `nartk.checkpoints.hugging_face.speech.read_speech` does a folder.

    Args:
        tokenizer: The folder of transformers of the same model; None: that of the file.
        given: Languages, as there.

    Raises:
        CheckpointError: The file is damaged; or the folder lacks a file, or is another model's.
        UnsupportedCheckpointError: Sizes of encoder and decoder differ.
    """
    with requiring_torch(f"reading {path.name!r}"):
        from nartk.checkpoints.pickles import load_pickle, require_tensors
    found, where = load_pickle(path), str(path)
    sizes = found.get(_SIZES) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(sizes, dict):
        raise CheckpointError(f"{_SIZES!r} is missing", where=where)
    weights = require_tensors(found.get(_WEIGHTS), f"{_WEIGHTS!r} has no tensors by name", where)
    folder = Folder(path.parent if tokenizer is None else tokenizer)
    for name in _NEEDED:
        if not folder.has(name):
            words = sizes.get("n_vocab")
            small = "tiny" if not isinstance(words, int) or words >= _MULTILINGUAL else "tiny.en"
            raise CheckpointError(
                f"has no {name}, and {path.name} holds no words",
                fix=f"give {named('tokenizer')} with the folder of transformers of this model, or of "
                f"openai/whisper-{small}, or copy its {' and '.join(_NEEDED)} beside the file",
                where=str(folder),
            )
    generation = folder.json(GENERATION_CONFIG)
    described = DescribedFolder(folder.path, {CONFIG: _config(sizes, generation, where)})
    tensors = PickledTensors(path, {own: weights[name] for name, own in _renamed(weights)})
    return replace(read_speech(described, files=Files(where, [tensors]), **given), folder=path)


def _renamed(names: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """OpenAI's names with transformers'."""
    for name in names:
        side, _, rest = name.partition(".blocks.")
        number, _, part = rest.partition(".")
        if part:
            for theirs, ours in _PARTS.items():
                if part.startswith(theirs) or f".{theirs}" in part:
                    part = part.replace(theirs, ours, 1)
            yield name, f"{side}.layers.{number}.{part}"
            continue
        theirs = next((each for each in _WHOLE if name == each or name.startswith(f"{each}.")), "")
        yield name, _WHOLE[theirs] + name.removeprefix(theirs) if theirs else name


def _config(sizes: JsonObject, generation: JsonObject, where: str) -> JsonObject:
    """The config.json that transformers has of such sizes."""

    def size(name: str) -> int:
        if type(sizes.get(name)) is not int:
            raise CheckpointError(f"{name!r} of {_SIZES!r} is {sizes.get(name)!r}, no number", where=where)
        return int(sizes[name])

    if size("n_audio_state") != size("n_text_state"):
        raise UnsupportedCheckpointError(
            f"{size('n_audio_state')} features of sound, {size('n_text_state')} of text", where=where
        )
    ends = {name: generation.get("eos_token_id") for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "model_type": "whisper",
        "vocab_size": size("n_vocab"),
        "num_mel_bins": size("n_mels"),
        "d_model": size("n_audio_state"),
        "max_source_positions": size("n_audio_ctx"),
        "max_target_positions": size("n_text_ctx"),
        **both(ffn_dim=4 * size("n_audio_state")),
        **{f"{side}_layers": size(f"n_{theirs}_layer") for side, theirs in _SIDES},
        **{f"{side}_attention_heads": size(f"n_{theirs}_head") for side, theirs in _SIDES},
        **ends,
    }
