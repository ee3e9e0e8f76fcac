"""The non-autoregressive Transformer: vanilla, glancing and CMLM."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import CanvasDecoder
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import TINY


@register_architecture("nat", criterions=("nartk_nar",), presets={"": {}, "_tiny": TINY})
@dataclass(frozen=True)
class NatConfig(TextEncoder, CanvasDecoder):
    """The shape of a non-autoregressive Transformer."""
