"""The CTC Transformer's configuration and weights (Libovický and Helcl 2018, arXiv:1811.04719)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.transformer import POSITIONS, TINY, TransformerConfig, setting
from nartk.errors import UsageError
from nartk.protocols.parallel import FrameScorer

_MOST_FRAMES = 16  # frames of a source token; more is a mistake or a corrupt file


@register_architecture(
    "ctc",
    protocols=(FrameScorer,),
    criterions=("nartk_nar",),
    presets={"": {}, "_tiny": TINY},
    network="nartk.models.ctc:CtcNat",
    scorer="nartk.models.parallel_reference:CtcReference",
    engine="nartk.engine.parallel_scorer:CtcEngine",
)
@dataclass(frozen=True)
class CtcConfig(TransformerConfig):
    """The shape of a CTC Transformer.

    Raises:
        UsageError: As TransformerConfig does; and where a source token has no frames, or too many.
    """

    decoder_positions: str = setting("sinusoidal", "target positions", choices=POSITIONS)
    upsample: int = setting(2, "frames per source token")
    decoder_input: str = setting(
        "source",
        "what the frames of a token begin with: its embedding (source), or its encoder output (memory)",
        choices=("source", "memory"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.upsample <= _MOST_FRAMES:
            raise UsageError(f"`upsample` is {self.upsample}, not between 1 and {_MOST_FRAMES}")

    @property
    def target_positions(self) -> int:
        """Positions of the decoder: the frames of the longest source, however long targets may be."""
        return self.upsample * self.max_source_len
