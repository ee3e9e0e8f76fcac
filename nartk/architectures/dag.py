"""The DA-Transformer's configuration and weights (Huang et al. 2022, https://arxiv.org/abs/2205.07459)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.transformer import POSITIONS, TINY, TransformerConfig, linear, setting
from nartk.errors import UsageError
from nartk.protocols.parallel import GraphScorer

_SCALE = re.compile(r"(\d+(?:\.\d+)?)(?:~(\d+(?:\.\d+)?))?")


@register_architecture(
    "dag",
    protocols=(GraphScorer,),
    criterions=("nartk_nar",),
    presets={"": {}, "_tiny": TINY},
    network="nartk.models.da_transformer:DaTransformer",
    scorer="nartk.models.parallel_reference:DagReference",
    engine="nartk.engine.parallel_scorer:DagEngine",
)
@dataclass(frozen=True)
class DagConfig(TransformerConfig):
    """The shape of a DA-Transformer. A graph has at least 2 and at most `max_target_len` vertices.

    Raises:
        UsageError: A value is out of its bounds, or the scale is none.
    """

    decoder_positions: str = setting("learned", "positions of the vertices", choices=POSITIONS)
    decoder_input: str = setting(
        "mask",
        "what vertices begin with: the mask symbol (mask, as published), or the source word at the same "
        "share of the graph (uniform-copy), which learns in fewer steps",
        choices=("mask", "uniform-copy"),
    )
    upsampling: str = setting(
        "source",
        "a graph's size goes by the length of the source, or by that of the target, which is predicted when "
        "decoding (predict), or is always the same (fixed)",
        choices=("source", "predict", "fixed"),
    )
    upsample_scale: str = setting(
        "8",
        "vertices per token of that length (fixed: vertices), never more than max_target_len; 4~8: any "
        "scale between, drawn for each training batch, and the last when decoding",
    )
    length_difference: int = setting(128, "most tokens that a predicted length differs from the source's")
    link_features: str = setting(
        "feature:position",
        "what links are computed from: the decoder's features, learned positions of the vertices, or both",
        choices=("feature:position", "feature", "position"),
    )
    link_heads: int = setting(8, "heads of the links")
    max_transition_length: int = setting(
        99999, "most vertices that a link leads ahead; as many as a graph has, or more: any"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.link_heads < 1 or self.d_model % self.link_heads:
            raise UsageError(f"`d_model` {self.d_model} is no multiple of `link_heads` {self.link_heads}")
        if self.max_transition_length < 1:
            raise UsageError(f"`max_transition_length` is {self.max_transition_length}, below 1")
        if self.length_difference < 1:
            raise UsageError(f"`length_difference` is {self.length_difference}, below 1")
        low, high = self.scales
        if not 0.0 < low <= high <= self.max_target_len:
            raise UsageError(
                f"`upsample_scale` {self.upsample_scale!r} is not between 0 and `max_target_len` "
                f"{self.max_target_len}, the lower first"
            )

    @property
    def scales(self) -> tuple[float, float]:
        """The least and the largest scale; raises UsageError where `upsample_scale` is none."""
        found = _SCALE.fullmatch(self.upsample_scale)
        if found is None:
            raise UsageError(
                f"`upsample_scale` is {self.upsample_scale!r}", fix="write a number, or two, as 4~8"
            )
        low = float(found[1])
        return low, low if found[2] is None else float(found[2])

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        d, shapes = self.d_model, super().weight_shapes()
        parts = self.link_features.split(":")
        if "position" in parts:
            shapes["links.positions.weight"] = (self.max_target_len, d)
        for name, outputs in (("query", d), ("key", d), ("gate", self.link_heads)):
            shapes |= linear(f"links.{name}", outputs, len(parts) * d)
        if self.upsampling == "predict":
            shapes |= linear("lengths", 2 * self.length_difference + 1, d)
        return shapes
