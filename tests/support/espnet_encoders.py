"""What ESPnet's encoders were given for tests/oracles/encoders.npz: shapes, random weights and utterances.

All is drawn by `numpy.random.RandomState`, whose numbers are those of every version of NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nartk.architectures import architecture

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "encoders.npz"
WORDS, LENGTHS = 11, (40, 67)  # words; frames of the utterances
_SHAPE: dict[str, Any] = {
    "tgt_vocab": WORDS,
    "d_model": 12,
    "encoder_layers": 3,
    "encoder_heads": 2,
    "decoder_heads": 2,
    "encoder_ffn": 20,
    "input_features": 18,
    "conv_kernel": 5,
    "merge_kernel": 3,
    "cgmlp_features": 16,
    "dropout": 0.0,
    "intermediate_ctc": "1,2",
    "self_conditioning": True,
    "norm_eps": 1e-12,
    "batch_norm_eps": 1e-5,
}
# Architecture and settings, by the name of ESPnet's class.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ConformerEncoder": ("owsm_ctc", {**_SHAPE, "intermediate_norm": True}),
    "EBranchformerEncoder": (
        "owsm_ctc",
        {**_SHAPE, "encoder_block": "e-branchformer", "intermediate_norm": False},
    ),
    "EBranchformerCTCEncoder": (
        "owsm_ctc",
        {
            **_SHAPE,
            "encoder_block": "e-branchformer",
            "intermediate_norm": False,
            "subsampling": 8,
            "words_in_front": True,
            "prompt_layers": 2,
            "prompt_every": 2,
        },
    ),
}
PREFIX = (4, 9)  # words in front of the frames
PROMPT = 5  # positions of the prompt


def config_of(name: str) -> Any:
    kind, settings = ENCODERS[name]
    return architecture(kind).config.from_dict(settings)


def weights_of(name: str) -> dict[str, np.ndarray]:
    """Random weights of an encoder by nartk's names, fp64."""
    rng, found = np.random.RandomState(sorted(ENCODERS).index(name)), {}
    for key, shape in sorted(config_of(name).weight_shapes().items()):
        if key.endswith("running_var"):
            found[key] = rng.uniform(0.5, 2.0, shape)
        elif key.endswith("norm.weight"):
            found[key] = rng.normal(1.0, 0.2, shape)
        elif len(shape) == 1 or "bias_" in key:
            found[key] = rng.normal(0.0, 0.3, shape)
        else:
            found[key] = rng.normal(0.0, 1.3 / np.sqrt(np.prod(shape[1:])), shape)
    return found


def inputs_of(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each utterance its frames [T,F] and its prompt's words with their positions [W,d_model], fp64."""
    rng, config = np.random.RandomState(100 + sorted(ENCODERS).index(name)), config_of(name)
    return [
        (rng.normal(size=(length, config.input_features)), rng.normal(size=(PROMPT + i, config.d_model)))
        for i, length in enumerate(LENGTHS)
    ]
