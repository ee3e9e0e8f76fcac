"""The non-autoregressive Transformer's configuration and weights: vanilla, glancing and CMLM."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.transformer import POSITIONS, TINY, TransformerConfig, linear, setting
from nartk.errors import UsageError
from nartk.protocols.parallel import CanvasScorer


@register_architecture(
    "nat",
    protocols=(CanvasScorer,),
    criterions=("nartk_nar",),
    presets={"": {}, "_tiny": TINY},
    network="nartk.models.nat:Nat",
    scorer="nartk.models.parallel_reference:NatReference",
    engine="nartk.engine.parallel_scorer:NatEngine",
)
@dataclass(frozen=True)
class NatConfig(TransformerConfig):
    """The shape of a non-autoregressive Transformer.

    Raises:
        UsageError: As TransformerConfig does; and where a soft copy has no temperature, or the predictor no
            length to choose from.
    """

    decoder_positions: str = setting("sinusoidal", "target positions", choices=POSITIONS)
    decoder_input: str = setting(
        "soft-copy",
        "at unfilled places: the mask symbol (mask), the source word at the same share of the length "
        "(uniform-copy), or source words weighted by their distance from there (soft-copy)",
        choices=("mask", "uniform-copy", "soft-copy"),
    )
    copy_temperature: float = setting(0.3, "of the soft copy: source positions at which weights fall by e")
    length_difference: int = setting(
        128, "most tokens that the output may be longer or shorter than the source"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.copy_temperature <= 0.0:
            raise UsageError(f"`copy_temperature` is {self.copy_temperature}, not above 0")
        if self.length_difference < 1:
            raise UsageError(f"`length_difference` is {self.length_difference}, below 1")

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return super().weight_shapes() | linear("lengths", 2 * self.length_difference + 1, self.d_model)
