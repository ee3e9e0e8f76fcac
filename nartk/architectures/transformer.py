"""The encoder-decoder Transformer's configuration and weights (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nartk.architectures import register_architecture
from nartk.errors import CheckpointError, UsageError
from nartk.passes import CopiesSource, PassScorer

_LARGEST = 10_000_000  # of any size in a configuration: a larger one is a corrupt file
_MOST_LAYERS = 1000
_MOST_POSITIONS = 100_000  # tokens

# The weights with a row for each word.
SOURCE_WORDS = "encoder_embedding.words.weight"
TARGET_WORDS = ("decoder_embedding.words.weight", "output.weight")


def both(**settings: int) -> dict[str, Any]:
    """Settings of the encoder and the decoder: of ``layers=2``, ``encoder_layers`` and ``decoder_layers``."""
    return {f"{side}_{name}": value for name, value in settings.items() for side in ("encoder", "decoder")}


_BIG = {"d_model": 1024, **both(ffn=4096, heads=16), "dropout": 0.3}
TINY = {"d_model": 64, **both(layers=2, ffn=256, heads=4)}

C = TypeVar("C", bound="TransformerConfig")


@lru_cache(maxsize=8)
def sinusoids(length: int, features: int) -> npt.NDArray[np.float32]:
    """Sines then cosines, [length, features], as tensor2tensor and fairseq lay them out.

    It is kept: not to be written to. Row 0 is position 2: fairseq counts positions from the padding id (1)
    plus 1, and its models are ours. In fp64, rounded at the end: at a thousand positions an fp32 angle is off
    by 1e-4, and not alike everywhere.
    """
    half = features // 2
    frequencies = np.exp(np.arange(half) * -(math.log(10000) / max(half - 1, 1)))
    angles = np.arange(2, length + 2)[:, None] * frequencies
    table = np.zeros((length, features), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


def setting(default: Any, help: str, *, choices: Sequence[str] | None = None) -> Any:
    """Declares a field of a configuration, with its help and, for text, its choices."""
    return field(default=default, metadata={"help": help, "choices": choices})


@register_architecture(
    "transformer",
    protocols=(PassScorer, CopiesSource),
    criterions=("nartk_cross_entropy", "nartk_drafter"),
    presets={
        "": {},
        "_base": {},
        "_tiny": TINY,
        "_big": _BIG,
        "_9_3": {"encoder_layers": 9, "decoder_layers": 3},
        "_12_2": {"encoder_layers": 12, "decoder_layers": 2},
    },
    network="nartk.models.transformer:Transformer",
    scorer="nartk.models.reference:ReferenceScorer",
    engine="nartk.engine.scorer:EngineScorer",
)
@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a Transformer. The training options derive from these fields.

    Raises:
        UsageError: A value is out of its bounds, or two settings exclude each other.
    """

    src_vocab: int = setting(0, "source words, specials included")
    tgt_vocab: int = setting(0, "target words, specials included")
    pad: int = setting(1, "id of the padding symbol")
    d_model: int = setting(512, "features of a token")
    encoder_layers: int = setting(6, "layers of the encoder")
    decoder_layers: int = setting(6, "layers of the decoder")
    encoder_ffn: int = setting(2048, "inner features of the encoder's feed-forward networks")
    decoder_ffn: int = setting(2048, "inner features of the decoder's feed-forward networks")
    encoder_heads: int = setting(8, "attention heads of the encoder")
    decoder_heads: int = setting(8, "attention heads of the decoder")
    encoder_norm_first: bool = setting(True, "pre-norm encoder, with a norm after its last layer")
    decoder_norm_first: bool = setting(True, "pre-norm decoder, with a norm after its last layer")
    activation: str = setting("relu", "of the feed-forward networks", choices=("relu", "gelu"))
    encoder_positions: str = setting(
        "sinusoidal", "source positions", choices=("sinusoidal", "learned", "none")
    )
    decoder_positions: str = setting(
        "sinusoidal", "target positions", choices=("sinusoidal", "learned", "none")
    )
    max_source_len: int = setting(1024, "longest source, tokens")
    max_target_len: int = setting(1024, "longest target, tokens")
    share_embeddings: str = setting(
        "all",
        "one matrix for source, target and output words (all), for target and output (decoder), or none",
        choices=("all", "decoder", "none"),
    )
    scale_embedding: bool = setting(True, "multiply embeddings by the square root of d_model")
    norm_embedding: bool = setting(False, "layer norm after the embeddings")
    dropout: float = setting(0.1, "on embeddings and on each sublayer's output")
    attention_dropout: float = setting(0.0, "on attention weights")
    activation_dropout: float = setting(0.0, "inside the feed-forward networks")

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            choices = item.metadata["choices"]
            if choices is not None and value not in choices:
                raise UsageError(f"`{item.name}` is {value!r}", fix=f"choose from {', '.join(choices)}")
            if isinstance(item.default, float) and not 0.0 <= value < 1.0:
                raise UsageError(f"`{item.name}` is {value}, not in [0, 1)")
            if isinstance(item.default, int) and not 0 <= value <= _LARGEST:
                raise UsageError(f"`{item.name}` is {value}, not between 0 and {_LARGEST}")
        for names, most in (
            (("encoder_layers", "decoder_layers"), _MOST_LAYERS),
            (("max_source_len", "max_target_len"), _MOST_POSITIONS),
        ):
            for name in names:
                if getattr(self, name) > most:
                    raise UsageError(f"`{name}` is {getattr(self, name)}, more than {most}")
        for name in ("d_model", "max_source_len", "max_target_len"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{name}` is {getattr(self, name)}, below 1")
        for heads in ("encoder_heads", "decoder_heads"):
            if getattr(self, heads) < 1 or self.d_model % getattr(self, heads):
                raise UsageError(
                    f"`d_model` {self.d_model} is no multiple of `{heads}` {getattr(self, heads)}"
                )
        if self.share_embeddings == "all" and self.src_vocab != self.tgt_vocab:
            raise UsageError(
                f"source and target share embeddings, but have {self.src_vocab} and {self.tgt_vocab} words",
                fix="use one joint dictionary, or share_embeddings='decoder'",
            )

    @classmethod
    def from_dict(cls: type[C], values: dict[str, Any]) -> C:
        """Reads a stored configuration; an unknown key or a value of a wrong type is a CheckpointError."""
        known = {item.name: item for item in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise CheckpointError(f"unknown model setting {name!r}", fix=f"known are {', '.join(known)}")
            wanted = type(known[name].default)
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise CheckpointError(f"model setting {name!r} is {value!r}, not a {wanted.__name__}")
        return cls(**values)

    @property
    def target_positions(self) -> int:
        """Positions of the decoder."""
        return self.max_target_len

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight, by name; those that share memory are all named."""
        d = self.d_model
        shapes: dict[str, tuple[int, ...]] = {}
        for side, words, positions in (
            ("encoder", self.src_vocab, self.max_source_len),
            ("decoder", self.tgt_vocab, self.target_positions),
        ):
            shapes[f"{side}_embedding.words.weight"] = (words, d)
            if getattr(self, f"{side}_positions") == "learned":
                shapes[f"{side}_embedding.positions.weight"] = (positions, d)
            if self.norm_embedding:
                shapes |= norm(f"{side}_embedding.norm", d)
        for i in range(self.encoder_layers):
            shapes |= _layer(f"encoder_layers.{i}", d, self.encoder_ffn, over_source=False)
        for i in range(self.decoder_layers):
            shapes |= _layer(f"decoder_layers.{i}", d, self.decoder_ffn, over_source=True)
        if self.encoder_norm_first:
            shapes |= norm("encoder_norm", d)
        if self.decoder_norm_first:
            shapes |= norm("decoder_norm", d)
        return shapes | {"output.weight": (self.tgt_vocab, d)}

    def shared_weights(self) -> dict[str, str]:
        """The names of weights that are those of another name, with this name."""
        words = [
            f"{part}.weight" for part in ("encoder_embedding.words", "decoder_embedding.words", "output")
        ]
        if self.share_embeddings == "none":
            return {}
        first, *others = words if self.share_embeddings == "all" else words[1:]
        return dict.fromkeys(others, first)


def linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    """The weights of a linear layer with bias."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, features: int) -> dict[str, tuple[int, ...]]:
    """The weights of a layer norm."""
    return {f"{name}.weight": (features,), f"{name}.bias": (features,)}


def _layer(name: str, d: int, inner: int, *, over_source: bool) -> dict[str, tuple[int, ...]]:
    shapes = linear(f"{name}.self_attention.qkv", 3 * d, d) | linear(f"{name}.self_attention.out", d, d)
    shapes |= norm(f"{name}.self_norm", d)
    if over_source:
        shapes |= linear(f"{name}.cross_attention.q", d, d)
        shapes |= linear(f"{name}.cross_attention.kv", 2 * d, d)
        shapes |= linear(f"{name}.cross_attention.out", d, d)
        shapes |= norm(f"{name}.cross_norm", d)
    shapes |= linear(f"{name}.ffn.up", inner, d) | linear(f"{name}.ffn.down", d, inner)
    return shapes | norm(f"{name}.ffn_norm", d)
