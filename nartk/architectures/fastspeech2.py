"""FastSpeech 2: a mel spectrogram of phonemes, all frames at once (Ren et al. 2021, arXiv:2006.04558)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nartk.architectures import register_architecture
from nartk.architectures.decoders import AcousticDecoder, PhonemeOutput
from nartk.architectures.parts import Group, Part, Words
from nartk.architectures.settings import setting

TINY_ACOUSTIC = {
    "acoustic_encoder_layers": 2,
    "acoustic_decoder_layers": 2,
    "acoustic_heads": 2,
    "acoustic_ffn": 128,
    "acoustic_kernel": 3,
    "acoustic_second_kernel": 3,
    "predictor_features": 64,
}


@register_architecture(
    "fastspeech2",
    criterions=("nartk_tts",),
    presets={"": {}, "_tiny": {"d_model": 64, **TINY_ACOUSTIC}},
    network="nartk.models.fastspeech2:FastSpeech2",
    strategy="speak",
)
@dataclass(frozen=True)
class FastSpeech2Config(PhonemeOutput, AcousticDecoder):
    """The shape of FastSpeech 2 over words, which are phonemes or letters; the defaults are DASpeech's."""

    d_model: int = setting(256, "features of a phoneme")
    dropout: float = setting(0.2, "on embeddings and behind each feed-forward network")

    def parts(self) -> dict[str, Part]:
        words = Words(self.src_vocab, self.side_features("acoustic"))
        embedding = Group({"words": words}, {"scale": 1.0, "count": self.max_source_len})
        return {"encoder": Group({"embedding": embedding}, {"layers": []}, "_"), **super().parts()}

    def engine_settings(self) -> dict[str, Any]:
        return {**super().engine_settings(), "features": self.side_features("acoustic")}
