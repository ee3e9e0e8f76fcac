"""The Paraformer (Gao et al. 2022, https://arxiv.org/abs/2206.08317): an encoder of speech, and its fires."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.conformer import SPEECH_PRESETS
from nartk.architectures.decoders import FireDecoder
from nartk.architectures.encoders import SpeechEncoder


@register_architecture(
    "paraformer", criterions=("nartk_speech",), presets=SPEECH_PRESETS, strategy="paraformer"
)
@dataclass(frozen=True)
class ParaformerConfig(SpeechEncoder, FireDecoder):
    """The shape of a Paraformer."""
