"""A Conformer or an E-Branchformer whose CTC head and Transformer decoder both read what it encodes.

Kim et al. 2017, https://arxiv.org/abs/1609.06773.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nartk.architectures import register_architecture
from nartk.architectures.decoders import CausalDecoder
from nartk.architectures.encoders import CtcHead, SpeechEncoder
from nartk.architectures.settings import POSITIONS, TINY, both, setting

_PUBLISHED = {"d_model": 256, "encoder_layers": 12, "decoder_layers": 6, **both(ffn=2048, heads=4)}
SPEECH_PRESETS: dict[str, dict[str, Any]] = {
    "": _PUBLISHED,
    "_tiny": TINY,
    "_large": {**_PUBLISHED, "d_model": 512, **both(heads=8)},
    "_e_branchformer": {
        **_PUBLISHED,
        "encoder_block": "e-branchformer",
        "encoder_ffn": 1024,
        "intermediate_norm": False,
    },
}


@register_architecture("conformer", criterions=("nartk_speech",), presets=SPEECH_PRESETS, strategy="greedy")
@dataclass(frozen=True)
class ConformerConfig(SpeechEncoder, CausalDecoder, CtcHead):
    """The shape of an encoder of speech with a Transformer decoder and a CTC head."""

    decoder_positions: str = setting("sinusoidal", "target positions", choices=POSITIONS)
