"""What ESPnet's models were given for tests/oracles/espnet_models.npz: configurations, weights and a sound.

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

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "espnet_models.npz"
TOKENS = ["<blank>", "<unk>", "<space>", "'", "A", "É", "C", "no", "-", "E", "<sos/eos>"]
TARGET = (4, 2, 6, 9, 9, 3)  # ids of ESPnet's that the decoder reads behind <sos/eos>
_SEEDS = {"conformer": 11, "e_branchformer": 10, "ctc": 7}  # with which outputs have several words
LONGEST = 12  # words that greedy search outputs

_ENCODER: dict[str, Any] = {
    "output_size": 12,
    "attention_heads": 2,
    "linear_units": 20,
    "num_blocks": 2,
    "dropout_rate": 0.1,
    "input_layer": "conv2d",
    "rel_pos_type": "latest",
    "pos_enc_layer_type": "rel_pos",
}
_CONFORMER = _ENCODER | {
    "selfattention_layer_type": "rel_selfattn",
    "activation_type": "swish",
    "macaron_style": True,
    "use_cnn_module": True,
    "cnn_module_kernel": 5,
}
_COMMON: dict[str, Any] = {
    "token_list": TOKENS,
    "token_type": "char",
    "bpemodel": None,
    "model": "espnet",
    "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False},
    "input_size": None,
    "frontend": "default",
    "specaug": "specaug",
    "specaug_conf": {"apply_time_warp": True},
    "preencoder": None,
    "postencoder": None,
    "decoder": "transformer",
    "decoder_conf": {
        "attention_heads": 2,
        "linear_units": 20,
        "num_blocks": 2,
        "dropout_rate": 0.1,
        "positional_dropout_rate": 0.1,
        "self_attention_dropout_rate": 0.1,
        "src_attention_dropout_rate": 0.1,
    },
    "version": "202511",
}
# What config.yaml says, by the name of a case.
MODELS: dict[str, dict[str, Any]] = {
    "conformer": {
        **_COMMON,
        "frontend_conf": {"fs": "16k", "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 23},
        "normalize": "global_mvn",
        "normalize_conf": {"stats_file": "exp/asr_stats_raw_en_char_sp/train/feats_stats.npz"},
        "encoder": "conformer",
        "encoder_conf": _CONFORMER | {"interctc_layer_idx": [1], "interctc_use_conditioning": True},
    },
    "e_branchformer": {
        **_COMMON,
        "frontend_conf": {"fs": "16k", "n_mels": 40},
        "normalize": "global_mvn",
        "normalize_conf": {"stats_file": "feats_stats.npz", "norm_means": True, "norm_vars": True},
        "encoder": "e_branchformer",
        "encoder_conf": _ENCODER
        | {
            "attention_layer_type": "rel_selfattn",
            "input_layer": "conv2d8",
            "cgmlp_linear_units": 16,
            "cgmlp_conv_kernel": 5,
            "use_linear_after_conv": False,
            "gate_activation": "identity",
            "macaron_ffn": True,
            "use_ffn": True,
            "merge_conv_kernel": 3,
        },
    },
    "ctc": {
        **_COMMON,
        "model_conf": {"ctc_weight": 1.0},
        "frontend_conf": {"fs": 8000, "n_fft": 256, "hop_length": 80, "n_mels": 18},
        "normalize": None,
        "normalize_conf": {},
        "encoder": "conformer",
        "encoder_conf": _CONFORMER
        | {"pos_enc_layer_type": "abs_pos", "selfattention_layer_type": "selfattn", "input_layer": "conv2d"},
    },
}


def config_of(name: str) -> dict[str, Any]:
    return copy.deepcopy(MODELS[name])


def rate_of(name: str) -> int:
    return 8000 if name == "ctc" else 16000


def weights_of(name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random weights by ESPnet's names, fp32, each drawn by its name."""
    found = {}
    for key, shape in shapes.items():
        rng = np.random.RandomState(zlib.crc32(f"{name} {key} {_SEEDS[name]}".encode()))
        if key == "normalize.mean":
            value = rng.uniform(-9.0, -5.0, shape)
        elif key.endswith("running_var") or key == "normalize.std":
            value = rng.uniform(0.5, 2.0, shape)
        elif key.endswith("num_batches_tracked"):
            found[key] = np.array(7)
            continue
        elif len(shape) == 1 and key.endswith("weight"):
            value = rng.normal(1.0, 0.2, shape)
        elif len(shape) == 1 or "pos_bias" in key:
            value = rng.normal(0.0, 0.3, shape)
        else:
            spread = 4.0 if key.startswith(("ctc.", "decoder.output_layer.")) else 1.3
            value = rng.normal(0.0, spread / np.sqrt(np.prod(shape[1:])), shape)
        found[key] = value.astype(np.float32)
    return found


def sound_of(name: str) -> np.ndarray:
    """A sound [N] of 0.8 s, fp32: noise and a tone that grow and fall, and some silence."""
    rate, rng = rate_of(name), np.random.RandomState(len(name))
    time = np.arange(int(0.8 * rate) + 37) / rate
    wave = 0.05 * rng.normal(size=len(time)) + 0.3 * np.sin(2 * np.pi * 440 * time * (1 + time))
    wave *= np.sin(np.pi * time / time[-1]) ** 2
    wave[len(wave) // 2 : len(wave) // 2 + rate // 20] = 0
    return wave.astype(np.float32)


def state_of(name: str) -> dict[str, torch.Tensor]:
    """The state dict of a model, with the shapes that the oracle has."""
    return stored_state(ORACLE, name, weights_of)


def write(
    folder: Path, name: str, config: dict[str, Any] | None = None, state: dict[str, Any] | None = None
) -> Path:
    """The folder that ESPnet's training leaves behind."""
    import yaml  # which not every test needs

    folder.mkdir(parents=True)
    text = yaml.dump(config or config_of(name), indent=4, sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, "utf-8")
    torch.save(state or state_of(name), folder / "valid.acc.ave_10best.pth")
    (folder / "valid.acc.ave.pth").symlink_to("valid.acc.ave_10best.pth")
    return folder
