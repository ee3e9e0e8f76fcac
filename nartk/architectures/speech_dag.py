"""A DA-Transformer over an encoder of speech: recognition or translation by a graph of words."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.conformer import SPEECH_PRESETS
from nartk.architectures.decoders import GraphDecoder
from nartk.architectures.encoders import SpeechEncoder
from nartk.architectures.settings import setting


@register_architecture(
    "speech_dag", criterions=("nartk_speech",), presets=SPEECH_PRESETS, strategy="dag-lookahead"
)
@dataclass(frozen=True)
class SpeechDagConfig(SpeechEncoder, GraphDecoder):
    """The shape of a DA-Transformer whose graphs have as many vertices as the encoder has positions."""

    upsample_scale: str = setting(
        "1",
        "vertices per position of the encoder (predict: per token; fixed: vertices), never more than "
        "max_target_len; 1~2: any scale between, drawn for each training batch, and the last when decoding",
    )
