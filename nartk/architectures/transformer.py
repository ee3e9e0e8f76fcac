"""The encoder-decoder Transformer (Vaswani et al. 2017).

Its options cover Marian, BART, mBART, Pegasus, M2M-100 and T5.
"""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.decoders import CausalDecoder, CopiesWords
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import TINY, both

_BIG = {"d_model": 1024, **both(ffn=4096, heads=16), "dropout": 0.3}


@register_architecture(
    "transformer",
    criterions=("nartk_cross_entropy", "nartk_drafter"),
    presets={
        "": {},
        "_base": {},
        "_tiny": TINY,
        "_big": _BIG,
        "_9_3": {"encoder_layers": 9, "decoder_layers": 3},
        "_12_2": {"encoder_layers": 12, "decoder_layers": 2},
    },
)
@dataclass(frozen=True)
class TransformerConfig(TextEncoder, CausalDecoder, CopiesWords):
    """The shape of a Transformer that reads text."""
