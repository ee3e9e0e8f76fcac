"""A drafter without an encoder: a Transformer's decoder over what the encoder of its verifier gives.

Its layers and width are its own; keys and values of its cross-attention are made of the verifier's features.
In a prototype one such layer gave 3.0 tokens a pass of a translation model at 4 drafted tokens, as many as
a small model with an encoder of its own. Training is that of FastDraft (Zafrir et al. 2024,
https://arxiv.org/abs/2411.11055): on what the verifier writes, by its distribution and its words.
"""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import CausalDecoder
from nartk.architectures.encoders import EncodedSources
from nartk.architectures.settings import setting


@register_architecture(
    "light_drafter",
    criterions=("nartk_drafter",),
    presets={
        "": {},
        "_tiny": {"decoder_features": 64, "decoder_ffn": 256},
        "_2": {"decoder_layers": 2},
    },
)
@dataclass(frozen=True)
class LightDrafterConfig(EncodedSources, CausalDecoder):
    """The shape of a light drafter; `d_model` is its verifier's."""

    decoder_features: int = setting(256, "features of a token of the drafter; 0: its verifier's")
    decoder_layers: int = setting(1, "layers of the drafter")
    decoder_ffn: int = setting(1024, "inner features of its feed-forward networks")
    decoder_heads: int = setting(4, "attention heads of the drafter")
