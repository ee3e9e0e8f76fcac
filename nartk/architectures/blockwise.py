"""The configuration of a blockwise drafter (Xia et al. 2022); its weights are a Transformer's."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.transformer import POSITIONS, TINY, TransformerConfig, setting
from nartk.protocols.parallel import BlockScorer


@register_architecture(
    "blockwise",
    protocols=(BlockScorer,),
    criterions=("nartk_nar", "nartk_drafter"),
    presets={"": {}, "_tiny": TINY},
    network="nartk.models.blockwise:Blockwise",
    scorer="nartk.models.parallel_reference:BlockwiseReference",
    engine="nartk.engine.parallel_scorer:BlockwiseEngine",
)
@dataclass(frozen=True)
class BlockwiseConfig(TransformerConfig):
    """The shape of a blockwise drafter."""

    decoder_positions: str = setting("learned", "target positions", choices=POSITIONS)
    block: int = setting(25, "places that are filled at once")
