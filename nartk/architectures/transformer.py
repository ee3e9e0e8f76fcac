"""The encoder-decoder Transformer's configuration and weights (Vaswani et al. 2017).

Its options cover Marian, BART, mBART, Pegasus, M2M-100 and T5.
"""

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
from nartk.protocols.passes import CopiesSource, PassScorer

_LARGEST = 10_000_000  # of any size in a configuration: a larger one is a corrupt file
_MOST_LAYERS = 1000
_MOST_POSITIONS = 100_000  # tokens

# The weights with a row for each word.
SOURCE_WORDS = "encoder_embedding.words.weight"
TARGET_WORDS = ("decoder_embedding.words.weight", "output.weight", "output.bias")
JOINT = ("all", "inputs")  # of `share_embeddings`: source and target have one matrix
POSITIONS = ("sinusoidal", "learned", "none")


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


def relative_buckets(
    distances: npt.NDArray[np.int64], buckets: int, most: int, *, causal: bool
) -> npt.NDArray[np.int64]:
    """The bucket of each distance, of a key's position less its query's (Raffel et al. 2020, section 2.1).

    Half of the buckets are for one distance each, the others for ranges that grow by a factor, up to `most`
    tokens; what is farther falls into the last. Without `causal`, each direction has half of all.
    The arithmetic is fp32, as T5's: where it is rounded decides at the borders.
    """
    own = buckets if causal else buckets // 2
    exact = own // 2
    away = np.maximum(-distances, 0) if causal else np.abs(distances)
    share = np.log(np.maximum(away, 1) / exact).astype(np.float32) / np.float32(math.log(most / exact))
    ranges = exact + (share * np.float32(own - exact)).astype(np.int64)
    found = np.where(away < exact, away, np.minimum(ranges, own - 1))
    return found if causal else found + own * (distances > 0)


def setting(default: Any, help: str, *, choices: Sequence[Any] | None = None) -> Any:
    """Declares a field of a configuration, with its help and, if it has any, its choices."""
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
    activation: str = setting(
        "relu", "of the feed-forward networks", choices=("relu", "gelu", "gelu_tanh", "silu")
    )
    gated_ffn: bool = setting(False, "multiply what the activation gives by a second projection of its input")
    norm: str = setting("layer", "layer norm, or RMSNorm, which has no bias", choices=("layer", "rms"))
    norm_eps: float = setting(1e-5, "what norms add to the variance")
    bias: bool = setting(True, "biases in the linear layers")
    head_features: int = setting(0, "features of an attention head; 0: d_model divided by the heads")
    scale_attention: bool = setting(True, "divide attention scores by the square root of a head's features")
    encoder_positions: str = setting(
        "sinusoidal", "source positions; relative: of T5", choices=(*POSITIONS, "relative")
    )
    decoder_positions: str = setting(
        "sinusoidal", "target positions; relative: of T5", choices=(*POSITIONS, "relative")
    )
    relative_buckets: int = setting(32, "ranges of distances that relative positions tell apart")
    relative_distance: int = setting(128, "tokens from which on distances are in the last bucket")
    max_source_len: int = setting(1024, "longest source, tokens")
    max_target_len: int = setting(1024, "longest target, tokens")
    share_embeddings: str = setting(
        "all",
        "one matrix for source, target and output words (all), for target and output (decoder), for source "
        "and target (inputs), or none",
        choices=("all", "decoder", "inputs", "none"),
    )
    output_bias: bool = setting(False, "a bias of the output words")
    scale_output: bool = setting(False, "divide what the output layer reads by the square root of d_model")
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
                known = ", ".join(map(str, choices))
                raise UsageError(f"`{item.name}` is {value!r}", fix=f"choose from {known}")
            if isinstance(item.default, float) and not 0.0 <= value < 1.0:
                raise UsageError(f"`{item.name}` is {value}, not in [0, 1)")
            if isinstance(item.default, int) and not 0 <= value <= _LARGEST:
                raise UsageError(f"`{item.name}` is {value}, not between 0 and {_LARGEST}")
        for names, most in (
            (("encoder_layers", "decoder_layers"), _MOST_LAYERS),
            (("max_source_len", "max_target_len", "relative_distance"), _MOST_POSITIONS),
        ):
            for name in names:
                if getattr(self, name) > most:
                    raise UsageError(f"`{name}` is {getattr(self, name)}, more than {most}")
        for name in ("d_model", "max_source_len", "max_target_len"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{name}` is {getattr(self, name)}, below 1")
        for heads in ("encoder_heads", "decoder_heads"):
            if getattr(self, heads) < 1:
                raise UsageError(f"`{heads}` is {getattr(self, heads)}, below 1")
            if not self.head_features and self.d_model % getattr(self, heads):
                raise UsageError(
                    f"`d_model` {self.d_model} is no multiple of `{heads}` {getattr(self, heads)}",
                    fix="set `head_features`",
                )
        if self.relative_buckets < 4:
            raise UsageError(f"`relative_buckets` is {self.relative_buckets}, below 4")
        if self.relative_distance <= self.relative_buckets // 2:
            raise UsageError(
                f"`relative_distance` {self.relative_distance} is not above half of `relative_buckets` "
                f"{self.relative_buckets}"
            )
        if self.share_embeddings in JOINT and self.src_vocab != self.tgt_vocab:
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

    def attention_features(self, side: str) -> int:
        """Features of an attention head of the side, ``encoder`` or ``decoder``."""
        heads: int = getattr(self, f"{side}_heads")
        return self.head_features if self.head_features else self.d_model // heads

    def distance_buckets(self, side: str) -> npt.NDArray[np.int64]:
        """The buckets of the distances from -`relative_distance` to it, of ``encoder`` or ``decoder``."""
        distances = np.arange(-self.relative_distance, self.relative_distance + 1)
        return relative_buckets(
            distances, self.relative_buckets, self.relative_distance, causal=side == "decoder"
        )

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight, by name; those that share memory are all named."""
        d, rms = self.d_model, self.norm == "rms"
        shapes: dict[str, tuple[int, ...]] = {}
        for side, words, positions in (
            ("encoder", self.src_vocab, self.max_source_len),
            ("decoder", self.tgt_vocab, self.target_positions),
        ):
            shapes[f"{side}_embedding.words.weight"] = (words, d)
            if getattr(self, f"{side}_positions") == "learned":
                shapes[f"{side}_embedding.positions.weight"] = (positions, d)
            if getattr(self, f"{side}_positions") == "relative":
                shapes[f"{side}_relative.weight"] = (self.relative_buckets, getattr(self, f"{side}_heads"))
            if self.norm_embedding:
                shapes |= norm(f"{side}_embedding.norm", d, bias=not rms)
            for i in range(getattr(self, f"{side}_layers")):
                shapes |= self._layer(side, i)
            if getattr(self, f"{side}_norm_first"):
                shapes |= norm(f"{side}_norm", d, bias=not rms)
        return shapes | linear("output", self.tgt_vocab, d, bias=self.output_bias)

    def _layer(self, side: str, index: int) -> dict[str, tuple[int, ...]]:
        d, inner = self.d_model, getattr(self, f"{side}_ffn")
        width = getattr(self, f"{side}_heads") * self.attention_features(side)
        layers = {"self_attention.qkv": (3 * width, d), "self_attention.out": (d, width)}
        norms = ["self_norm", "ffn_norm"]
        if side == "decoder":
            layers["cross_attention.q"] = width, d
            layers["cross_attention.kv"] = 2 * width, d
            layers["cross_attention.out"] = d, width
            norms.append("cross_norm")
        if self.gated_ffn:
            layers["ffn.gate"] = inner, d
        layers |= {"ffn.up": (inner, d), "ffn.down": (d, inner)}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, (outputs, inputs) in layers.items():
            shapes |= linear(f"{side}_layers.{index}.{name}", outputs, inputs, bias=self.bias)
        for name in norms:
            shapes |= norm(f"{side}_layers.{index}.{name}", d, bias=self.norm == "layer")
        return shapes

    def shared_weights(self) -> dict[str, str]:
        """The names of weights that are those of another name, with this name."""
        words = [SOURCE_WORDS, *TARGET_WORDS[:2]]
        shared = {"all": words, "decoder": words[1:], "inputs": words[:2], "none": words[:1]}
        first, *others = shared[self.share_embeddings]
        return dict.fromkeys(others, first)


def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    """The weights of a linear layer."""
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def norm(name: str, features: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
    """The weights of a norm."""
    return dict.fromkeys([f"{name}.weight", *([f"{name}.bias"] if bias else [])], (features,))
