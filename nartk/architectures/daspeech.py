"""DASpeech: speech into speech, by a graph of phonemes and FastSpeech 2 (Fang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import AcousticDecoder, GraphDecoder
from nartk.architectures.encoders import SpeechEncoder
from nartk.architectures.fastspeech2 import TINY_ACOUSTIC
from nartk.architectures.parts import Group, Linear, Part
from nartk.architectures.settings import TINY, setting
from nartk.errors import UsageError

_PUBLISHED = {
    "d_model": 256,
    "encoder_layers": 12,
    "encoder_heads": 4,
    "decoder_features": 512,
    "decoder_layers": 4,
    "decoder_norm_first": False,
    "activation": "gelu",
}


@register_architecture(
    "daspeech",
    criterions=("nartk_s2s",),
    presets={
        "": _PUBLISHED,
        "_tiny": {**TINY, **TINY_ACOUSTIC, "acoustic_features": 64, "adaptor_features": 128},
    },
    network="nartk.models.daspeech:DaSpeech",
    strategy="dag-lookahead",
)
@dataclass(frozen=True)
class DaSpeechConfig(SpeechEncoder, GraphDecoder, AcousticDecoder):
    """The shape of a DA-Transformer over speech whose vertices an acoustic part reads through an adaptor."""

    acoustic_features: int = setting(256, "features of a phoneme in the acoustic part; 0: d_model")
    adaptor_features: int = setting(
        1024, "inner features of the adaptor between the graph's features and the acoustic part's"
    )
    upsample_scale: str = setting(
        "2",
        "vertices per position of the encoder (predict: per token; fixed: vertices), never more than "
        "max_target_len; 1~2: any scale between, drawn for each training batch, and the last when decoding",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptor_features < 1:
            raise UsageError(f"`adaptor_features` is {self.adaptor_features}, below 1")

    def parts(self) -> dict[str, Part]:
        inner = self.adaptor_features
        adaptor = {
            "up": Linear(inner, self.side_features("decoder")),
            "down": Linear(self.side_features("acoustic"), inner),
        }
        return {**super().parts(), "adaptor": Group(adaptor, {"activation": "relu"})}
