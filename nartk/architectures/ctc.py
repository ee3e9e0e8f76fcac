"""The CTC Transformer (Libovický and Helcl 2018, arXiv:1811.04719)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import FrameDecoder
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import TINY, setting


@register_architecture("ctc", criterions=("nartk_nar",), presets={"": {}, "_tiny": TINY})
@dataclass(frozen=True)
class CtcConfig(TextEncoder, FrameDecoder):
    """The shape of a CTC Transformer."""

    decoder_input: str = setting(
        "source",
        "what the frames of a token begin with: its embedding (source), or its encoder output (memory)",
        choices=("source", "memory"),
    )
