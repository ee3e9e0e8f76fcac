"""Whisper (Radford et al. 2023, arXiv:2212.04356); Distil-Whisper's models are the same.

The keys of attention have no bias in Whisper: in the fused layers it is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import CausalDecoder
from nartk.architectures.encoders import WhisperEncoder
from nartk.architectures.settings import POSITIONS, setting


@register_architecture("whisper", criterions=(), presets={})
@dataclass(frozen=True)
class WhisperConfig(WhisperEncoder, CausalDecoder):
    """The shape of a Whisper; the defaults are its size "base"."""

    decoder_positions: str = setting("learned", "target positions", choices=POSITIONS)
    max_target_len: int = setting(448, "longest target, tokens")
