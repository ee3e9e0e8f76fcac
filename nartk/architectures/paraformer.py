"""The Paraformer's configuration and weights (Gao et al. 2022, https://arxiv.org/abs/2206.08317)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.conformer import SPEECH_PRESETS, ConformerConfig, convolution
from nartk.architectures.transformer import POSITIONS, linear, setting
from nartk.protocols.parallel import FireScorer, FrameScorer


@register_architecture(
    "paraformer",
    protocols=(FireScorer, FrameScorer),
    criterions=("nartk_speech",),
    presets=SPEECH_PRESETS,
    network="nartk.models.paraformer:Paraformer",
    scorer="nartk.models.paraformer_reference:ParaformerReference",
    engine="nartk.engine.speech_scorer:ParaformerEngine",
    strategy="paraformer",
)
@dataclass(frozen=True)
class ParaformerConfig(ConformerConfig):
    """The shape of a Paraformer: the Conformer's encoder, a predictor of fires, and a parallel decoder.

    Each fire of the predictor is a token, eos included. The embeddings of words are the sampler's, which
    training alone reads.

    Raises:
        UsageError: As ConformerConfig does.
    """

    predictor: str = setting(
        "convolution",
        "what weighs positions: a convolution over all features (convolution: FunASR's CifPredictorV2), or "
        "one of each feature by itself that is added to what it reads (depthwise: its CifPredictor)",
        choices=("convolution", "depthwise"),
    )
    decoder_positions: str = setting("sinusoidal", "of the fires", choices=POSITIONS)
    tail_threshold: float = setting(
        0.45, "added to the sum of the weights of a source, so that what is left of it may fire"
    )

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.d_model
        read = 1 if self.predictor == "depthwise" else d
        return super().weight_shapes() | convolution("cif.conv", d, read, 3) | linear("cif.out", 1, d)
