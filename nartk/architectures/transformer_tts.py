"""Transformer TTS: a mel spectrogram of phonemes, step by step (Li et al. 2019, arXiv:1809.08895)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import DecoderStack, PhonemeOutput
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.parts import Group, Linear, Numbered, Part
from nartk.architectures.settings import TINY, both, setting

_PUBLISHED = {**both(heads=4), "encoder_norm_first": False, "decoder_norm_first": False}


@register_architecture(
    "transformer_tts",
    criterions=("nartk_tts",),
    presets={"": _PUBLISHED, "_tiny": {**TINY, "prenet_features": 64}},
    network="nartk.models.transformer_tts:TransformerTts",
    strategy="speak",
)
@dataclass(frozen=True)
class TransformerTtsConfig(TextEncoder, DecoderStack, PhonemeOutput):
    """The shape of Transformer TTS over words, which are phonemes or letters.

    Raises:
        UsageError: Same as the parts; and the prenet has no features.
    """

    share_embeddings: str = setting("none", "there are no words but the source's", choices=("none",))
    frames_per_step: int = setting(1, "frames that a step of the decoder gives", choices=(1, 2, 4))
    prenet_features: int = setting(256, "features of the prenet's layers, which read the last step's frames")
    prenet_dropout: float = setting(0.5, "behind each layer of the prenet, in training")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_least(prenet_features=1)

    @property
    def most_steps(self) -> int:
        """Steps of the longest output."""
        return -(-self.max_mel_len // self.frames_per_step)

    def parts(self) -> dict[str, Part]:
        d, inner = self.side_features("decoder"), self.prenet_features
        size = self.frames_per_step * self.mel_features
        stack = self.stack_part("decoder", self.most_steps, words=None)
        prenet = Group(
            {"layers": Numbered([Linear(inner, size), Linear(inner, inner)]), "out": Linear(d, inner)}
        )
        # The last number tells the end: it is above 0 where the step is the last one.
        own = {"prenet": prenet, "out": Linear(size + 1, d), "statistics": self.statistics_part()}
        decoder = Group({**stack.parts, **own}, {**stack.settings, "most": self.max_mel_len}, stack.joint)
        return {**super().parts(), "decoder": decoder}
