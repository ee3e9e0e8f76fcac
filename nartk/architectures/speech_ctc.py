"""A CTC Transformer over an encoder of speech: a decoder refines positions, and training may glance."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.conformer import SPEECH_PRESETS
from nartk.architectures.decoders import FrameDecoder
from nartk.architectures.encoders import SpeechEncoder
from nartk.architectures.settings import setting


@register_architecture(
    "speech_ctc", criterions=("nartk_speech",), presets=SPEECH_PRESETS, strategy="ctc-greedy"
)
@dataclass(frozen=True)
class SpeechCtcConfig(SpeechEncoder, FrameDecoder):
    """The shape of a CTC Transformer that reads speech."""

    upsample: int = setting(1, "frames per position of the encoder")
