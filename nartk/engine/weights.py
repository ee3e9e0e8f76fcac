"""Turns the weights of a Transformer into the engine's model.

Symbols: H heads of f features, F the same filled up to a multiple of 16, D features of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nartk.architectures.transformer import TransformerConfig, sinusoids
from nartk.checkpoints.quantized import INT8, LANES, PANEL, packed_sizes
from nartk.checkpoints.tensors import QuantizedTensors
from nartk.engine import _native
from nartk.engine.speech_weights import hears, speech_encoder
from nartk.errors import CheckpointError
from nartk.protocols.passes import FloatArray

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


class Weights:
    """The weights of a model by name, packed as the engine reads them.

    Args:
        arrays: fp32 by the names of `nartk.models.transformer.Transformer`.
        shared: Of words that are those of another name, this name: they are read and packed once.
        type: fp32, bf16 or int8.

    Attributes:
        packed: The layers packed so far, by name, each with its bias.
    """

    def __init__(
        self,
        arrays: Arrays,
        type: str,
        *,
        shared: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._arrays, self._type, self._shared = arrays, type, shared
        self.packed: dict[str, tuple[Any, FloatArray | None]] = {}

    @property
    def are_halves(self) -> bool:
        """Whether most of what was packed lies in at most two bytes a weight."""
        layers = [layer for layer, _ in self.packed.values()]
        return sum(each.weights.nbytes for each in layers) < 3 * sum(x.outputs * x.inputs for x in layers)

    def words(self, name: str) -> Any:
        """A matrix of words [V,D] without bias, packed once where several names share it."""
        name = self._shared.get(name, name)
        layer = name.removesuffix(".weight")
        return self.packed[layer][0] if layer in self.packed else self._words(layer)

    def _words(self, layer: str) -> Any:
        return self._pack(layer, self._arrays[f"{layer}.weight"], None)

    def _pack(self, layer: str, weight: FloatArray, bias: FloatArray | None) -> Any:
        made = _native.Linear.pack(weight, bias, self._type)
        self.packed[layer] = made, bias
        return made

    def array(self, name: str) -> FloatArray:
        return self._arrays[name]

    def has(self, name: str) -> bool:
        return name in self._arrays

    @property
    def plain(self) -> Weights:
        """The same weights in fp32."""
        return Weights(self._arrays, "fp32")

    def linear(self, name: str, *, scale: float = 1.0, channels: int = 1) -> Any:
        """A layer whose outputs are multiplied by `scale`.

        With `channels`, its inputs are stored as [channels, features], and read as [features, channels].
        """
        weight, bias = self._arrays[f"{name}.weight"], self._arrays.get(f"{name}.bias")
        if channels != 1:
            weight = weight.reshape(len(weight), channels, -1).swapaxes(1, 2).reshape(weight.shape)
        if scale != 1.0:
            weight, bias = weight * np.float32(scale), None if bias is None else bias * np.float32(scale)
        return self._pack(name, weight, bias)

    def convolution(self, name: str) -> Any:
        """A convolution [outputs,channels,...] as a layer that reads [...,channels]."""
        weight = np.moveaxis(self._arrays[f"{name}.weight"], 1, -1)
        return self._pack(name, weight.reshape(len(weight), -1), self._arrays[f"{name}.bias"])

    def heads_out(self, name: str, parts: int, heads: int) -> Any:
        """A layer whose outputs are `parts` times H heads of f features, filled up to F: [parts*H*F, D]."""
        weight, bias = self._arrays[f"{name}.weight"], self._arrays.get(f"{name}.bias")
        features = len(weight) // parts // heads
        missing = -features % LANES
        if missing:
            rows = np.pad(weight.reshape(parts * heads, features, -1), ((0, 0), (0, missing), (0, 0)))
            weight = rows.reshape(-1, weight.shape[1])
            if bias is not None:
                bias = np.pad(bias.reshape(parts * heads, features), ((0, 0), (0, missing))).ravel()
        return self._pack(name, weight, bias)

    def heads_in(self, name: str, heads: int) -> Any:
        """A layer whose inputs are H heads of f features, filled up to F: [D, H*F]."""
        weight, bias = self._arrays[f"{name}.weight"], self._arrays.get(f"{name}.bias")
        outputs, inputs = weight.shape
        features = inputs // heads
        missing = -features % LANES
        if missing:
            columns = np.pad(weight.reshape(outputs, heads, features), ((0, 0), (0, 0), (0, missing)))
            weight = columns.reshape(outputs, -1)
        return self._pack(name, weight, bias)

    def norm(self, name: str, config: TransformerConfig) -> tuple[Any, Any, float] | None:
        """Gain, bias if it has one, and epsilon of a norm; None where the model has none of that name."""
        gain = self._arrays.get(f"{name}.weight")
        return None if gain is None else (gain, self._arrays.get(f"{name}.bias"), config.norm_eps)

    def layer(self, side: str, name: str, config: TransformerConfig) -> dict[str, Any]:
        """A layer of the encoder or the decoder."""
        return self.attention(side, name, config) | {"ffn": self.feed_forward(f"{name}.ffn", config)}

    def attention(self, side: str, name: str, config: TransformerConfig) -> dict[str, Any]:
        """A layer but its feed-forward network; it attends to a source if it has weights for it."""
        features = config.attention_features(side)
        heads: int = getattr(config, f"{side}_heads")
        made = {
            "norm_first": getattr(config, f"{side}_norm_first"),
            "heads": heads,
            "features": features + -features % LANES,
            "scale": features**-0.5 if config.scale_attention else 1.0,
            "qkv": self.heads_out(f"{name}.self_attention.qkv", 3, heads),
            "out": self.heads_in(f"{name}.self_attention.out", heads),
            "self_norm": self.norm(f"{name}.self_norm", config),
        }
        if self.has(f"{name}.cross_attention.q.weight"):
            made["cross_q"] = self.heads_out(f"{name}.cross_attention.q", 1, heads)
            made["cross_kv"] = self.heads_out(f"{name}.cross_attention.kv", 2, heads)
            made["cross_out"] = self.heads_in(f"{name}.cross_attention.out", heads)
            made["cross_norm"] = self.norm(f"{name}.cross_norm", config)
        return made

    def feed_forward(self, name: str, config: TransformerConfig) -> dict[str, Any]:
        return {
            "activation": config.activation,
            "gate": self.linear(f"{name}.gate") if config.gated_ffn else None,
            "up": self.linear(f"{name}.up"),
            "down": self.linear(f"{name}.down"),
            "norm": self.norm(f"{name}_norm", config),
        }

    def stack(self, side: str, config: TransformerConfig, count: int) -> dict[str, Any]:
        """The encoder or the decoder, with so many positions."""
        positions: str = getattr(config, f"{side}_positions")
        farthest = config.relative_distance
        table: FloatArray | None = None
        biases: FloatArray | None = None
        if positions == "relative":
            biases = self._arrays[f"{side}_relative.weight"][
                config.distance_buckets(side)
            ].T  # [buckets,H] -> [H,distances]
        if positions == "learned":
            table = self._arrays[f"{side}_embedding.positions.weight"]
        elif positions == "sinusoidal":
            table = sinusoids(count, config.d_model)
        words = f"{side}_embedding.words.weight"
        return {
            "embedding": {
                "words": self.words(words) if words in config.weight_shapes() else None,
                "scale": math.sqrt(config.d_model) if config.scale_embedding else 1.0,
                "positions": table,
                "count": count,
                "norm": self.norm(f"{side}_embedding.norm", config),
            },
            "layers": [
                self.layer(side, f"{side}_layers.{i}", config)
                for i in range(getattr(config, f"{side}_layers"))
            ],
            "norm": self.norm(f"{side}_norm", config),
            "relative": biases,
            "farthest": farthest,
        }

    def model(self, config: TransformerConfig, *, parallel: Mapping[str, Any] | None = None) -> Any:
        """The whole Transformer.

        Args:
            parallel: What a non-autoregressive model has beside it, as `nartk.engine.parallel_scorer` says.
        """
        if hears(config):
            parts = speech_encoder(self, config)
        else:
            parts = {"encoder": self.stack("encoder", config, config.max_source_len)}
        if "output.weight" in config.weight_shapes():
            parts |= self._decoder(config)
        parts["features"] = config.d_model
        return _native.Model(parts if parallel is None else {**parts, "parallel": parallel})

    def _decoder(self, config: TransformerConfig) -> dict[str, Any]:
        output, bias = self.words("output.weight"), self._arrays.get("output.bias")
        return {
            "decoder": self.stack("decoder", config, config.target_positions),
            "output": output,
            "output_bias": None if bias is None else np.pad(bias, (0, -len(bias) % PANEL)),
            "output_scale": config.d_model**-0.5 if config.scale_output else 1.0,
        }


class StoredWeights(Weights):
    """The weights of an int8 folder: what is packed stays in the file, which is mapped.

    Raises:
        CheckpointError: A matrix holds -128, which kernels may not negate.
    """

    def __init__(self, tensors: QuantizedTensors, config: TransformerConfig) -> None:
        super().__init__(tensors, INT8, shared=config.shared_weights())
        self._tensors = tensors
        self._sizes = packed_sizes(config)

    def _words(self, layer: str) -> Any:
        return self._read(layer)

    def linear(self, name: str, *, scale: float = 1.0, channels: int = 1) -> Any:
        return self._read(name)  # it was scaled and turned before it was packed

    def convolution(self, name: str) -> Any:
        return self._read(name)

    def heads_out(self, name: str, parts: int, heads: int) -> Any:
        return self._read(name)

    def heads_in(self, name: str, heads: int) -> Any:
        return self._read(name)

    def _read(self, layer: str) -> Any:
        block = self._tensors.mapped(f"{layer}.weight").reshape(-1)
        if block.min() == -128:
            raise CheckpointError(f"tensor '{layer}.weight' holds -128, below -127")
        bias = self._arrays.get(f"{layer}.bias")
        made = _native.Linear.packed(
            block, bias, self._arrays[f"{layer}.scales"], *self._sizes[layer], self._type
        )
        self.packed[layer] = made, bias
        return made


def weights_of(arrays: Arrays, type: str, config: TransformerConfig) -> Weights:
    """The weights of a model in a type: packed here, or as an int8 folder has them."""
    if isinstance(arrays, QuantizedTensors):
        return StoredWeights(arrays, config)
    return Weights(arrays, type, shared=config.shared_weights())
