"""What FunASR's models were given for tests/oracles/funasr_models.npz: configurations, weights and sounds.

All numbers are drawn by `numpy.random.RandomState`, whose numbers are those of every version of NumPy.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.stored_weights import stored_state

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "funasr_models.npz"
TOKENS = ["<blank>", "<s>", "</s>", "你", "好", "hel@@", "lo", "a", "b", "7", "word", "们", "ing", "<unk>"]
_SEEDS = {
    "large": 11,
    "small": 14,
    "bicif": 12,
}  # with which outputs have several words, special ones among them
_FIRING = {"large": 0.0, "small": -1.0, "bicif": -1.0}  # logits of the predictor's weights, about
RATE = 16000
STACKS = ((7, 6), (5, 3), (3, 2), (4, 3))  # frames side by side, and from one to the next
SAMPLES = (14_400, 400, 1_200, 1_359, 5_601, 3_119)  # of which frames there are 88, 1, 6, 6, 33 and 17

_ENCODER: dict[str, Any] = {
    "output_size": 12,
    "attention_heads": 2,
    "linear_units": 20,
    "num_blocks": 3,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "input_layer": "pe",
    "pos_enc_class": "SinusoidalPositionEncoder",
    "normalize_before": True,
    "kernel_size": 5,
    "sanm_shfit": 0,
    "selfattention_layer_type": "sanm",
}
_DECODER: dict[str, Any] = {
    "attention_heads": 3,
    "linear_units": 18,
    "num_blocks": 3,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "self_attention_dropout_rate": 0.1,
    "src_attention_dropout_rate": 0.1,
    "att_layer_num": 2,
    "kernel_size": 5,
    "sanm_shfit": 0,
}
_PREDICTOR: dict[str, Any] = {
    "idim": 12,
    "threshold": 1.0,
    "l_order": 1,
    "r_order": 1,
    "tail_threshold": 0.45,
}
_COMMON: dict[str, Any] = {
    "model": "Paraformer",
    "model_conf": {
        "ctc_weight": 0.0,
        "lsm_weight": 0.1,
        "length_normalized_loss": True,
        "predictor_weight": 1.0,
        "predictor_bias": 1,
        "sampling_ratio": 0.75,
    },
    "encoder": "SANMEncoder",
    "encoder_conf": _ENCODER,
    "decoder": "ParaformerSANMDecoder",
    "decoder_conf": _DECODER,
    "predictor": "CifPredictorV2",
    "predictor_conf": _PREDICTOR,
    "frontend": "WavFrontend",
    "frontend_conf": {
        "fs": 16000,
        "window": "hamming",
        "n_mels": 8,
        "frame_length": 25,
        "frame_shift": 10,
        "dither": 0.0,
        "lfr_m": 7,
        "lfr_n": 6,
    },
    "tokenizer": "CharTokenizer",
    "tokenizer_conf": {"unk_symbol": "<unk>", "split_with_space": True},
    "specaug": None,
    "normalize": None,
}
# What config.yaml says, by the name of a case.
MODELS: dict[str, dict[str, Any]] = {
    "large": _COMMON,
    # The other predictor, CTC, memories that look back, of an even size too, and words that are the output's.
    "small": {
        **_COMMON,
        "model_conf": {"ctc_weight": 0.3, "share_embedding": True},
        "encoder_conf": _ENCODER | {"kernel_size": 4, "sanm_shfit": 1, "num_blocks": 2},
        "decoder_conf": _DECODER | {"kernel_size": 7, "sanm_shfit": 2, "num_blocks": 2},
        "predictor": "CifPredictor",
        "predictor_conf": _PREDICTOR | {"tail_threshold": 0.3},
        "frontend_conf": {**_COMMON["frontend_conf"], "window": "povey", "lfr_m": 5, "lfr_n": 3},
    },
    # A first layer with a residual, since frames side by side have as many features as it gives.
    "bicif": {
        **_COMMON,
        "model": "BiCifParaformer",
        "decoder_conf": _DECODER | {"sanm_shfit": None, "num_blocks": 1},
        "predictor": "CifPredictorV3",
        "predictor_conf": _PREDICTOR
        | {
            "smooth_factor2": 0.25,
            "noise_threshold2": 0.01,
            "upsample_times": 3,
            "upsample_type": "cnn_blstm",
        }
        | {"use_cif1_cnn": False},
        "frontend_conf": {**_COMMON["frontend_conf"], "n_mels": 4, "lfr_m": 3, "lfr_n": 2},
    },
}


def config_of(name: str) -> dict[str, Any]:
    return copy.deepcopy(MODELS[name])


def statistics_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """What is added to frames side by side, and what they are multiplied with then."""
    frontend, rng = MODELS[name]["frontend_conf"], np.random.RandomState(len(name))
    size = frontend["n_mels"] * frontend["lfr_m"]
    return rng.uniform(-14.0, -8.0, size), rng.uniform(0.1, 0.3, size)


def mvn_of(name: str) -> str:
    """The text of am.mvn."""
    rows = [" ".join(f"{each:.6f}" for each in values) for values in statistics_of(name)]
    size = len(statistics_of(name)[0])
    return (
        f"<Nnet> \n<Splice> {size} {size} \n[ 0 ]\n<AddShift> {size} {size} \n"
        f"<LearnRateCoef> 0 [ {rows[0]} ]\n<Rescale> {size} {size} \n"
        f"<LearnRateCoef> 0 [ {rows[1]} ]\n</Nnet> \n"
    )


def weights_of(name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random weights by FunASR's names, fp32, each drawn by its name."""
    found = {}
    for key, shape in shapes.items():
        rng = np.random.RandomState(zlib.crc32(f"{name} {key} {_SEEDS[name]}".encode()))
        if len(shape) == 1 and key.endswith("weight"):
            value = rng.normal(1.0, 0.2, shape)
        elif key == "predictor.cif_output.bias":
            value = np.full(shape, _FIRING[name])
        elif len(shape) == 1:
            value = rng.normal(0.0, 0.3, shape)
        else:
            spread = 6.0 if key.startswith(("decoder.output_layer.", "predictor.cif_output.")) else 2.0
            value = rng.normal(0.0, spread / np.sqrt(np.prod(shape[1:])), shape)
        found[key] = value.astype(np.float32)
    return found


def sounds() -> list[np.ndarray]:
    """Sounds [N], fp32: noise and a tone that rise and fall."""
    found = []
    for count in SAMPLES:
        rng, time = np.random.RandomState(count), np.arange(count) / RATE
        wave = 0.05 * rng.normal(size=count) + 0.3 * np.sin(2 * np.pi * 440 * time * (1 + time))
        found.append((wave * np.sin(40 * time) ** 2).astype(np.float32))
    return found


def state_of(name: str) -> dict[str, torch.Tensor]:
    """The state dict of a model, with the shapes that the oracle has."""
    return stored_state(ORACLE, name, weights_of)


def write(
    folder: Path, name: str, config: dict[str, Any] | None = None, state: dict[str, Any] | None = None
) -> Path:
    """The folder that users download."""
    import yaml  # which not every test needs

    folder.mkdir(parents=True)
    text = yaml.dump(config or config_of(name), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, "utf-8")
    (folder / "am.mvn").write_text(mvn_of(name))
    (folder / "tokens.json").write_text(json.dumps(TOKENS, ensure_ascii=False), "utf-8")
    (folder / "seg_dict").write_text("hello hel@@ lo\n")
    torch.save(state or state_of(name), folder / "model.pt")
    return folder
