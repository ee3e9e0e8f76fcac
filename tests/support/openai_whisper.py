"""A small Whisper as OpenAI's program stores it, whose weights follow from their names."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from support.whisper_models import BEGIN, START

SIZES = {
    "n_mels": 8,
    "n_audio_ctx": 50,
    "n_audio_state": 12,
    "n_audio_head": 3,
    "n_audio_layer": 2,
    "n_vocab": BEGIN + 51,
    "n_text_ctx": 24,
    "n_text_state": 12,
    "n_text_head": 2,
    "n_text_layer": 2,
}
TOKENS = (START, START + 1, 5, 90, 7, 258, 40)

Array = npt.NDArray[np.float32]


def weight_of(name: str, shape: Sequence[int]) -> Array:
    """A weight of that name: random, of a size that lets it count."""
    rng = np.random.default_rng(crc32(name.encode()))
    scale = 0.3 if len(shape) == 1 else 1.5 / np.sqrt(np.prod(shape[1:]))
    offset = 1.0 if "ln" in name and name.endswith("weight") else 0.0
    return (offset + scale * rng.standard_normal(shape)).astype(np.float32)


def frames() -> Array:
    """Frames [T,F] of a second."""
    shape = 2 * SIZES["n_audio_ctx"], SIZES["n_mels"]
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)
