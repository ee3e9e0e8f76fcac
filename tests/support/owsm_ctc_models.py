"""What ESPnet's OWSM-CTC was given for tests/oracles/owsm_ctc.npz: configurations, weights and sounds.

All numbers are drawn by `numpy.random.RandomState`, whose numbers are those of every version of NumPy.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.stored_weights import stored_state

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "owsm_ctc.npz"
PIECES = ["\u2581a", "b", "\u2581c", "d", "\u2581", "e", "f", "\u2581g", "h", "i"]
SYMBOLS = ["<na>", "<nolang>", "<eng>", "<deu>", "<asr>", "<st_deu>"]
TOKENS = ["<blank>", "<unk>", *SYMBOLS, *PIECES, "<sos>", "<eos>", "<sop>"]
RATE, SECONDS = 16000, 2.4  # of a source
_SEEDS = {"published": 23, "wide": 15}  # with which outputs have several words
# Of random weights by parts of their names, else 1.3: with which frames tell.
_SPREADS = {"ctc.ctc_lo": 5.0, "encoder.embed": 3.0, "conditioning": 0.6, "prompt_proj": 0.5}

_ENCODER: dict[str, Any] = {
    "output_size": 16,
    "attention_heads": 2,
    "attention_layer_type": "selfattn",
    "pos_enc_layer_type": "abs_pos",
    "rel_pos_type": "latest",
    "cgmlp_linear_units": 20,
    "cgmlp_conv_kernel": 5,
    "use_linear_after_conv": False,
    "gate_activation": "identity",
    "num_blocks": 4,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "input_layer": "conv2d8",
    "layer_drop_rate": 0.0,
    "linear_units": 24,
    "positionwise_layer_type": "linear",
    "use_ffn": True,
    "macaron_ffn": True,
    "merge_conv_kernel": 3,
    "interctc_layer_idx": [1, 3],
    "interctc_use_conditioning": True,
    "use_cross_attention": [0, 1, 0, 1],
    "use_flash_attn": False,
}
_COMMON: dict[str, Any] = {
    "token_list": TOKENS,
    "token_type": "bpe",
    "bpemodel": "data/token_list/bpe_unigram10/bpe.model",
    "model": "espnet_ctc",
    "model_conf": {"interctc_weight": 0.8, "sym_na": "<na>", "ctc_asr_only": [True, False, False]},
    "input_size": None,
    "ctc_conf": {"dropout_rate": 0.0, "ctc_type": "builtin", "reduce": True},
    "frontend": "default",
    "frontend_conf": {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 20, "fs": "16k"},
    "specaug": "specaug",
    "specaug_conf": {"apply_time_warp": False, "time_mask_width_ratio_range": [0.0, 0.05]},
    "normalize": "global_mvn",
    "normalize_conf": {"stats_file": "exp/s2t_stats_raw_bpe50000/train/feats_stats.npz"},
    "encoder": "e_branchformer_ctc",
    "promptencoder": "transformer",
    "preprocessor": "s2t_ctc",
    "preprocessor_conf": {"na_symbol": "<na>", "speech_length": SECONDS, "nolang_symbol": "<nolang>"},
    "version": "202511",
}
# What config.yaml says, by the name of a case: the first is as published, but small.
MODELS: dict[str, dict[str, Any]] = {
    "published": {
        **_COMMON,
        "encoder_conf": _ENCODER,
        "promptencoder_conf": {
            "output_size": 12,
            "attention_heads": 3,
            "linear_units": 14,
            "num_blocks": 2,
            "use_flash_attn": False,
        },
    },
    # As many features on both sides, relative positions, every layer reads the prompt, no conditioning.
    "wide": {
        **_COMMON,
        "encoder_conf": _ENCODER
        | {
            "attention_layer_type": "rel_selfattn",
            "pos_enc_layer_type": "rel_pos",
            "num_blocks": 2,
            "interctc_layer_idx": [1],
            "interctc_use_conditioning": False,
            "use_cross_attention": True,
        },
        "promptencoder_conf": {
            "output_size": 16,
            "attention_heads": 4,
            "linear_units": 10,
            "num_blocks": 1,
            "use_flash_attn": False,
        },
        "normalize": "utterance_mvn",
        "normalize_conf": {"norm_means": True, "norm_vars": True},
        "model_conf": {},
    },
}
# Seconds of a sound, language, task, and the ids of a prompt by ESPnet's list, none for its default.
CASES: dict[str, tuple[float, str, str, tuple[int, ...]]] = {
    "plain": (1.3, "<nolang>", "<asr>", ()),
    "task": (1.3, "<eng>", "<st_deu>", ()),
    "prompt": (2.4, "<deu>", "<asr>", (8, 9, 10, 11)),
}
LONG = (9.7, "<eng>", "<asr>", (8, 9, 8))


def config_of(name: str) -> dict[str, Any]:
    return copy.deepcopy(MODELS[name])


def weights_of(name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random weights by ESPnet's names, fp32, each drawn by its name."""
    found = {}
    for key, shape in shapes.items():
        rng = np.random.RandomState(zlib.crc32(f"{name} {key} {_SEEDS[name]}".encode()))
        if key == "normalize.mean":
            value = rng.uniform(-9.0, -5.0, shape)
        elif key == "normalize.std":
            value = rng.uniform(2.0, 4.0, shape)
        elif len(shape) == 1 and key.endswith("weight"):
            value = rng.normal(1.0, 0.2, shape)
        elif len(shape) == 1 or "pos_bias" in key:
            value = rng.normal(0.0, 0.3, shape)
        else:
            spread = next((each for part, each in _SPREADS.items() if part in key), 1.3)
            value = rng.normal(0.0, spread / np.sqrt(np.prod(shape[1:])), shape)
        if key == "ctc.ctc_lo.bias":
            value[TOKENS.index("<eos>")] = -50.0  # which ESPnet would output, and nartk never does
        found[key] = value.astype(np.float32)
    return found


def sound_of(seconds: float) -> np.ndarray:
    """A sound [N], fp32: noise and tones that change, and pauses."""
    rng, count = np.random.RandomState(int(10 * seconds)), int(seconds * RATE)
    time = np.arange(count) / RATE
    pitch = np.repeat(rng.uniform(150, 2500, 1 + count // 2400), 2400)[:count]
    level = np.repeat(
        rng.uniform(0.05, 0.4, 1 + count // 2400) * (rng.random_sample(1 + count // 2400) > 0.2), 2400
    )
    wave = 0.01 * rng.normal(size=count) + level[:count] * np.sin(2 * np.pi * pitch * time)
    return wave.astype(np.float32)


def state_of(name: str) -> dict[str, torch.Tensor]:
    """The state dict of a model, with the shapes that the oracle has."""
    return stored_state(ORACLE, name, weights_of)


def write_pieces(path: Path) -> None:
    """A model of sentencepiece of the tokens."""
    from sentencepiece import sentencepiece_model_pb2 as pb

    path.parent.mkdir(parents=True)
    made = pb.ModelProto()
    for i, piece in enumerate(["<unk>", "<s>", "</s>", *SYMBOLS, *PIECES]):
        type = (2, 3, 3)[i] if i < 3 else 4 if piece in SYMBOLS else 1
        made.pieces.add(piece=piece, score=-float(i), type=type)
    made.trainer_spec.model_type = 1
    path.write_bytes(made.SerializeToString())


def write(
    folder: Path, name: str, config: dict[str, Any] | None = None, state: dict[str, Any] | None = None
) -> Path:
    """What ESPnet packs for the hub."""
    import yaml  # which not every test needs

    inner = folder / "exp" / "s2t_train"
    inner.mkdir(parents=True)
    text = yaml.dump(config or config_of(name), sort_keys=False, allow_unicode=True)
    (inner / "config.yaml").write_text(text, "utf-8")
    torch.save(state or state_of(name), inner / "valid.total_count.ave_5best.till45epoch.pth")
    write_pieces(folder / "data" / "token_list" / "bpe_unigram10" / "bpe.model")
    described = {
        "espnet": "202511",
        "files": {"s2t_model_file": "exp/s2t_train/valid.total_count.ave_5best.till45epoch.pth"},
        "yaml_files": {"s2t_train_config": "exp/s2t_train/config.yaml"},
    }
    (folder / "meta.yaml").write_text(yaml.dump(described))
    return folder
