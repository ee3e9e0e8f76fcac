"""Whisper's configuration and weights (Radford et al. 2023, arXiv:2212.04356); Distil-Whisper's are the same.

Names and shapes that differ from a Transformer's, with d = d_model and F features a frame:

- ``encoder_conv.0.weight`` [d,F,3] and ``.bias``: over three frames, stride 1, zeros on both sides;
- ``encoder_conv.1.weight`` [d,d,3] and ``.bias``: the same with stride 2, so that T frames become
  (T + 1) // 2 encoder positions; GELU follows each;
- ``encoder_embedding.positions.weight`` [positions,d]: as the checkpoint stores them, sinusoids in those of
  OpenAI;
- no ``encoder_embedding.words``. The keys of attention have no bias in Whisper: in the fused layers it is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.transformer import POSITIONS, SOURCE_WORDS, TransformerConfig, setting
from nartk.errors import UsageError
from nartk.protocols.passes import PassScorer

KERNEL = 3  # frames that a convolution reads
STRIDES = (1, 2)  # frames, of the two convolutions


@register_architecture(
    "whisper",
    protocols=(PassScorer,),
    criterions=(),
    presets={},
    network="nartk.models.whisper:Whisper",
    scorer="nartk.models.whisper:WhisperReference",
    engine="nartk.engine.speech_scorer:WhisperEngine",
)
@dataclass(frozen=True)
class WhisperConfig(TransformerConfig):
    """The shape of a Whisper; the defaults are its size "base".

    Raises:
        UsageError: As TransformerConfig does; and where a frame has no features.
    """

    input_features: int = setting(80, "features of a frame")
    activation: str = setting(
        "gelu", "of the feed-forward networks", choices=("relu", "gelu", "gelu_tanh", "silu")
    )
    encoder_positions: str = setting("learned", "source positions", choices=("learned",))
    decoder_positions: str = setting("learned", "target positions", choices=POSITIONS)
    max_source_len: int = setting(3000, "longest source, frames")
    max_target_len: int = setting(448, "longest target, tokens")
    share_embeddings: str = setting(
        "decoder", "one matrix for target and output words (decoder), or none", choices=("decoder", "none")
    )
    scale_embedding: bool = setting(False, "multiply embeddings by the square root of d_model")
    dropout: float = setting(0.0, "on embeddings and on each sublayer's output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_features < 1:
            raise UsageError(f"`input_features` is {self.input_features}, below 1")

    @property
    def source_positions(self) -> int:
        """Positions of the encoder: those of the longest source."""
        return encoder_positions(self.max_source_len)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        d, shapes = self.d_model, super().weight_shapes()
        del shapes[SOURCE_WORDS]
        shapes["encoder_embedding.positions.weight"] = self.source_positions, d
        for i, inputs in enumerate((self.input_features, d)):
            shapes |= {f"encoder_conv.{i}.weight": (d, inputs, KERNEL), f"encoder_conv.{i}.bias": (d,)}
        return shapes


def encoder_positions(frames: int) -> int:
    """How many positions the encoder has for so many frames."""
    return (frames - 1) // STRIDES[1] + 1
