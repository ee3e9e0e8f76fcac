"""Continuous integrate-and-fire over text: a Transformer's encoder whose fires are the output's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import FireDecoder
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import TINY


@register_architecture(
    "cif", criterions=("nartk_nar",), presets={"": {}, "_tiny": TINY}, strategy="paraformer"
)
@dataclass(frozen=True)
class CifConfig(TextEncoder, FireDecoder):
    """The shape of a Transformer of text with a predictor of fires."""
