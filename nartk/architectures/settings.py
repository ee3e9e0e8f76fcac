"""Settings and parts that the configurations of all architectures share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar

from nartk.architectures.parts import (
    Distances,
    Group,
    Norm,
    Numbered,
    Part,
    Positions,
    Shape,
    Words,
    attention,
    feed_forward,
    weight_shapes,
)
from nartk.errors import CheckpointError, UsageError

_LARGEST = 10_000_000  # of any size in a configuration: a larger one is a corrupt file
MOST_LAYERS = 1000
_MOST_POSITIONS = 100_000  # tokens
POSITIONS = ("sinusoidal", "learned", "none")
FINAL_NORMS = ("pre-norm", "always", "never")
JOINT = ("all", "inputs")  # of `share_embeddings`: source and target have one matrix
# The weights with a row for each word.
SOURCE_WORDS = "encoder_embedding.words.weight"
TARGET_WORDS = ("decoder_embedding.words.weight", "output.weight", "output.bias")

C = TypeVar("C", bound="Config")


def setting(default: Any, help: str, *, choices: Sequence[Any] | None = None) -> Any:
    """Declares a field of a configuration, with its help and, if it has any, its choices."""
    return field(default=default, metadata={"help": help, "choices": choices})


class Speaks(NamedTuple):
    """Protocols that a part of a model adds to its scorers.

    Attributes:
        protocols: Classes of `nartk.protocols`.
        engine, reference: ``module:Class`` of the mixins that implement them, on the engine and in torch.
        device: The same of what takes the reference's place on a GPU; "": nothing does.
    """

    protocols: tuple[type, ...]
    engine: str
    reference: str
    device: str = ""


@dataclass(frozen=True)
class Config:
    """The shape of a model. The training options derive from these fields.

    An architecture combines an encoder of `nartk.architectures.encoders` and a decoder of
    `nartk.architectures.decoders`, if it has one; each adds its settings, its weights and its protocols.

    Raises:
        UsageError: A value is out of its bounds, or two settings exclude each other.
    """

    speaks: ClassVar[Speaks | None] = None
    network: ClassVar[str]  # module:Class of the network in torch
    stored: ClassVar[frozenset[str]] = frozenset()  # settings of no meaning, which folders may have

    src_vocab: int = setting(0, "source words, specials included")
    tgt_vocab: int = setting(0, "target words, specials included")
    pad: int = setting(1, "id of the padding symbol")
    d_model: int = setting(512, "features of a token")
    activation: str = setting(
        "relu", "of the feed-forward networks", choices=("relu", "gelu", "gelu_tanh", "silu")
    )
    gated_ffn: bool = setting(False, "multiply what the activation gives by a second projection of its input")
    norm: str = setting("layer", "layer norm, or RMSNorm, which has no bias", choices=("layer", "rms"))
    norm_eps: float = setting(1e-5, "what norms add to the variance")
    bias: bool = setting(True, "biases in the linear layers")
    head_features: int = setting(0, "features of an attention head; 0: a token's divided by the heads")
    scale_attention: bool = setting(True, "divide attention scores by the square root of a head's features")
    relative_buckets: int = setting(32, "ranges of distances that relative positions tell apart")
    relative_distance: int = setting(128, "tokens from which on distances are in the last bucket")
    max_source_len: int = setting(1024, "longest source, tokens")
    max_target_len: int = setting(1024, "longest target, tokens")
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
            most = {"layers": MOST_LAYERS, "len": _MOST_POSITIONS, "distance": _MOST_POSITIONS}
            bound = most.get(item.name.rpartition("_")[2])
            if bound is not None and value > bound:
                raise UsageError(f"`{item.name}` is {value}, more than {bound}")
            if item.name in ("d_model", "max_source_len", "max_target_len") and value < 1:
                raise UsageError(f"`{item.name}` is {value}, below 1")
            if item.name in ("encoder_heads", "decoder_heads", "acoustic_heads"):
                self._check_heads(item.name, value)
        if self.relative_buckets < 4:
            raise UsageError(f"`relative_buckets` is {self.relative_buckets}, below 4")
        if self.relative_distance <= self.relative_buckets // 2:
            raise UsageError(
                f"`relative_distance` {self.relative_distance} is not above half of `relative_buckets` "
                f"{self.relative_buckets}"
            )

    def _check_heads(self, name: str, heads: int) -> None:
        if heads < 1:
            raise UsageError(f"`{name}` is {heads}, below 1")
        side = name.removesuffix("_heads")
        features = self.side_features(side)
        if not self.head_features and features % heads:
            own = f"{side}_features" if getattr(self, f"{side}_features", 0) else "d_model"
            raise UsageError(
                f"`{own}` {features} is no multiple of `{name}` {heads}", fix="set `head_features`"
            )

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """Reads a stored configuration; an unknown key or a value of a wrong type is a CheckpointError."""
        known = {item.name: item for item in fields(cls)}
        for name, value in values.items():
            if name in cls.stored and name not in known:
                continue
            if name not in known:
                raise CheckpointError(f"unknown model setting {name!r}", fix=f"known are {', '.join(known)}")
            wanted = type(known[name].default)
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise CheckpointError(f"model setting {name!r} is {value!r}, not a {wanted.__name__}")
        return cls(**{name: value for name, value in values.items() if name in known})

    def parts(self) -> dict[str, Part]:
        """The model's layers by name; encoders and decoders add theirs."""
        return {}

    def engine_settings(self) -> dict[str, Any]:
        """Settings that the engine reads besides the layers."""
        return {"features": self.d_model, "decoder_features": self.side_features("decoder")}

    @property
    def tree(self) -> Group:
        """All layers, and what the engine reads beside them."""
        return Group(self.parts(), self.engine_settings())

    def weight_shapes(self) -> dict[str, Shape]:
        """The shape of each weight, by name; those that share memory are all named."""
        return weight_shapes(self.tree)

    def shared_weights(self) -> dict[str, str]:
        """The names of weights that are those of another name, with this name."""
        return {}

    def layers(self, side: str) -> int:
        """Number of layers of the side, ``encoder`` or ``decoder``."""
        found: int = getattr(self, f"{side}_layers", 0)
        return found

    def side_features(self, side: str) -> int:
        """Features of a token of the side, ``encoder``, ``decoder`` or ``acoustic``."""
        own: int = getattr(self, f"{side}_features", 0)
        return own if own else self.d_model

    def attention_features(self, side: str) -> int:
        """Features of an attention head of the side, ``encoder``, ``decoder`` or ``acoustic``."""
        heads: int = getattr(self, f"{side}_heads")
        return self.head_features if self.head_features else self.side_features(side) // heads

    @property
    def source_features(self) -> int:
        """Features of what cross-attention reads."""
        return self.d_model

    @property
    def target_positions(self) -> int:
        """Positions of the decoder."""
        return self.max_target_len

    @property
    def labels_per_position(self) -> int:
        """Labels of CTC that a position of the encoder has."""
        return 1

    def has_final_norm(self, side: str) -> bool:
        """True if a norm stands behind the last layer of the side, ``encoder`` or ``decoder``."""
        pre_norm: bool = getattr(self, f"{side}_norm_first")
        chosen = getattr(self, f"{side}_final_norm", FINAL_NORMS[0])
        return pre_norm if chosen == FINAL_NORMS[0] else chosen == FINAL_NORMS[1]

    def norm_part(self, side: str = "encoder") -> Norm:
        """A norm of a layer of the side, ``encoder``, ``decoder`` or ``acoustic``."""
        return Norm(self.side_features(side), self.norm_eps, self.norm == "layer")

    def attention_part(self, side: str, *, over_source: bool = False) -> Group:
        """Attention of the side, as of `norm_part`, to itself or to what an encoder gives."""
        heads, features = getattr(self, f"{side}_heads"), self.attention_features(side)
        scale = features**-0.5 if self.scale_attention else 1.0
        d, source = self.side_features(side), self.source_features if over_source else 0
        return attention(d, heads, features, scale=scale, bias=self.bias, source=source)

    def layer_part(self, side: str) -> Group:
        """A layer of a Transformer's encoder or decoder."""
        inner: int = getattr(self, f"{side}_ffn")
        d, norm = self.side_features(side), self.norm_part(side)
        ffn = feed_forward(d, inner, self.activation, gated=self.gated_ffn, bias=self.bias)
        parts: dict[str, Part] = {"self_attention": self.attention_part(side), "self_norm": norm}
        if side == "decoder":
            cross = self.attention_part(side, over_source=True)
            parts |= {"cross_attention": cross, "cross_norm": norm}
        parts |= {"ffn": ffn, "ffn_norm": norm}
        return Group(parts, {"norm_first": getattr(self, f"{side}_norm_first")})

    def embedding_part(
        self, positions: str, count: int, *, words: int | None, side: str = "encoder"
    ) -> Group:
        """Embeddings of so many words, None for none, and of positions of a type, if it is one."""
        parts: dict[str, Part] = {}
        d = self.side_features(side)
        if words is not None:
            parts["words"] = Words(words, d)
        if positions in (*POSITIONS[:2], "interleaved"):
            parts["positions"] = Positions(positions, count, d)
        if self.norm_embedding:
            parts["norm"] = self.norm_part(side)
        scale = math.sqrt(d) if self.scale_embedding else 1.0
        return Group(parts, {"scale": scale, "count": count})

    def stack_part(self, side: str, count: int, *, words: int | None) -> Group:
        """A Transformer's encoder or decoder of so many positions, and words, None for none."""
        positions: str = getattr(self, f"{side}_positions")
        embedding = self.embedding_part(positions, count, words=words, side=side)
        parts: dict[str, Part] = {"embedding": embedding}
        parts["layers"] = Numbered([self.layer_part(side)] * self.layers(side))
        if positions == "relative":
            heads: int = getattr(self, f"{side}_heads")
            sizes = self.relative_buckets, heads, self.relative_distance
            parts["relative"] = Distances(*sizes, causal=side == "decoder")
        if self.has_final_norm(side):
            parts["norm"] = self.norm_part(side)
        return Group(parts, {"farthest": self.relative_distance}, joint="_")


def both(**settings: int) -> dict[str, Any]:
    """Settings of the encoder and the decoder: of ``layers=2``, ``encoder_layers`` and ``decoder_layers``."""
    return {f"{side}_{name}": value for name, value in settings.items() for side in ("encoder", "decoder")}


TINY = {"d_model": 64, **both(layers=2, ffn=256, heads=4)}
