"""A blockwise drafter (Xia et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import BlockDecoder
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import TINY


@register_architecture(
    "blockwise", criterions=("nartk_nar", "nartk_drafter"), presets={"": {}, "_tiny": TINY}
)
@dataclass(frozen=True)
class BlockwiseConfig(TextEncoder, BlockDecoder):
    """The shape of a blockwise drafter."""
