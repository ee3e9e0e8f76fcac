"""The DA-Transformer (Huang et al. 2022, https://arxiv.org/abs/2205.07459)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import GraphDecoder
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import TINY


@register_architecture("dag", criterions=("nartk_nar",), presets={"": {}, "_tiny": TINY})
@dataclass(frozen=True)
class DagConfig(TextEncoder, GraphDecoder):
    """The shape of a DA-Transformer."""
