"""The kinds of layers that models are made of: each says its weights' names, shapes and int8 layout, once.

A model's configuration combines parts to a tree (`Config.tree`). From it derive the shapes that a checkpoint
is checked for, the tensors of an int8 folder (`nartk.checkpoints.quantized`) and the engine's model:
`Part.read` turns weights into the layers, arrays and dictionaries that ``csrc/module.cpp`` reads.

Symbols: H heads of f features, F the same filled up to a multiple of 16, D features of the model, c channels,
k positions of a kernel, V words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nartk.architectures.positions import FloatArray, interleaved_sinusoids, relative_buckets, sinusoids

Shape: TypeAlias = tuple[int, ...]
F = TypeVar("F", np.float32, np.float64)

LANES = 16  # floats of the engine's vectors
PANEL = 32  # outputs of a packed matrix that lie beside each other
GROUP = 4  # inputs of an output that lie beside each other


class WeightReader(Protocol):
    """Gives the weights of a model by name."""

    def array(self, name: str) -> FloatArray:
        """A weight, fp32."""

    def layer(self, name: str, part: Linear) -> object:
        """A linear layer as the engine holds it."""

    def words(self, name: str) -> object:
        """A matrix of words [V,D] as the engine holds it, packed once where several names share it."""


class Part:
    """A layer with weights."""

    def shapes(self) -> dict[str, Shape]:
        """The shape of each weight, by what follows the layer's name."""
        raise NotImplementedError

    @property
    def packed(self) -> tuple[int, int] | None:
        """Outputs and inputs of its matrix in an int8 folder; None: its weights stay fp32."""
        return None

    def read(self, name: str, reader: WeightReader) -> object:
        """The layer of that name, as the engine's model holds it."""
        raise NotImplementedError

    def leaves(self, name: str) -> Iterator[tuple[str, Part]]:
        """The layers with weights, by name."""
        yield name, self


# Parts are neither compared nor changed, and every method that a dataclass generates delays the start.
@dataclass(repr=False, eq=False)
class Group(Part):
    """Parts with names, and settings of the whole that the engine reads; `joint` joins names."""

    parts: Mapping[str, Part]
    settings: Mapping[str, Any] = field(default_factory=dict)
    joint: str = "."

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def _name(self, name: str, part: str) -> str:
        return f"{name}{self.joint}{part}" if name else part

    def read(self, name: str, reader: WeightReader) -> dict[str, Any]:
        found = {key: part.read(self._name(name, key), reader) for key, part in self.parts.items()}
        return {**self.settings, **found}

    def leaves(self, name: str) -> Iterator[tuple[str, Part]]:
        for key, part in self.parts.items():
            yield from part.leaves(self._name(name, key))


@dataclass(repr=False, eq=False)
class Numbered(Part):
    """Parts that are numbered from 0."""

    parts: Sequence[Part]

    def read(self, name: str, reader: WeightReader) -> list[object]:
        return [part.read(f"{name}.{i}", reader) for i, part in enumerate(self.parts)]

    def leaves(self, name: str) -> Iterator[tuple[str, Part]]:
        for i, part in enumerate(self.parts):
            yield from part.leaves(f"{name}.{i}")


@dataclass(repr=False, eq=False)
class Linear(Part):
    """A linear layer.

    Attributes:
        scale: The engine multiplies its outputs by it.
        exact: It is fp32 in all types.
    """

    outputs: int
    inputs: int
    bias: bool = True
    scale: float = 1.0
    exact: bool = False

    def shapes(self) -> dict[str, Shape]:
        weight: dict[str, Shape] = {"weight": (self.outputs, self.inputs)}
        return weight | {"bias": (self.outputs,)} if self.bias else weight

    @property
    def packed(self) -> tuple[int, int] | None:
        return None if self.exact else self._size

    @property
    def _size(self) -> tuple[int, int]:
        return self.outputs, self.inputs

    def matrix(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        """Its weight as a matrix as the engine packs it, and its bias."""
        if self.scale != 1.0:
            weight, bias = (
                weight * np.float32(self.scale),
                None if bias is None else bias * np.float32(self.scale),
            )
        return weight, bias

    def unpacked(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        """The weight and bias that `matrix` made these of."""
        if self.scale != 1.0:
            weight, bias = (
                weight / np.float32(self.scale),
                None if bias is None else bias / np.float32(self.scale),
            )
        return weight, bias

    def read(self, name: str, reader: WeightReader) -> object:
        return reader.layer(name, self)


@dataclass(repr=False, eq=False)
class IntoHeads(Linear):
    """Gives `count` times H heads of f features each, filled up to F: [count*H*F, D]."""

    heads: int = 1
    count: int = 1

    @property
    def _size(self) -> tuple[int, int]:
        blocks = self.count * self.heads
        return blocks * filled(self.outputs // blocks), self.inputs

    def matrix(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        blocks = self.count * self.heads
        features = self.outputs // blocks
        if missing := filled(features) - features:
            rows = np.pad(weight.reshape(blocks, features, -1), ((0, 0), (0, missing), (0, 0)))
            weight = rows.reshape(-1, weight.shape[1])
            if bias is not None:
                bias = np.pad(bias.reshape(blocks, features), ((0, 0), (0, missing))).ravel()
        return weight, bias

    def unpacked(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        blocks = self.count * self.heads
        features = self.outputs // blocks
        rows = weight.reshape(blocks, filled(features), -1)[:, :features]
        if bias is not None:
            bias = bias.reshape(blocks, -1)[:, :features].ravel()
        return rows.reshape(self.outputs, -1), bias


@dataclass(repr=False, eq=False)
class FromHeads(Linear):
    """Reads H heads of f features, filled up to F: [D, H*F]."""

    heads: int = 1

    @property
    def _size(self) -> tuple[int, int]:
        return self.outputs, self.heads * filled(self.inputs // self.heads)

    def matrix(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        features = self.inputs // self.heads
        if missing := filled(features) - features:
            columns = weight.reshape(self.outputs, self.heads, features)
            weight = np.pad(columns, ((0, 0), (0, 0), (0, missing))).reshape(self.outputs, -1)
        return weight, bias

    def unpacked(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        columns = weight.reshape(self.outputs, self.heads, -1)[..., : self.inputs // self.heads]
        return columns.reshape(self.outputs, -1), bias


@dataclass(repr=False, eq=False)
class FromImages(Linear):
    """Reads [channels, features] as a checkpoint stores it, [features, channels] in the engine."""

    channels: int = 1

    def matrix(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        turned = weight.reshape(len(weight), self.channels, -1).swapaxes(1, 2).reshape(weight.shape)
        return super().matrix(turned, bias)

    def unpacked(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        turned = weight.reshape(len(weight), -1, self.channels).swapaxes(1, 2).reshape(weight.shape)
        return super().unpacked(turned, bias)


@dataclass(repr=False, eq=False)
class Convolution(Linear):
    """A convolution [outputs,inputs,*kernel] over all channels, as a layer that reads [...,inputs].

    Attributes:
        stride, padding: Positions between two that it is read at, and zeros on both sides.
    """

    kernel: Shape = (3,)
    stride: int = 1
    padding: int = 0

    def shapes(self) -> dict[str, Shape]:
        return {"weight": (self.outputs, self.inputs, *self.kernel), "bias": (self.outputs,)}

    @property
    def _size(self) -> tuple[int, int]:
        return self.outputs, self.inputs * math.prod(self.kernel)

    def matrix(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        return np.moveaxis(weight, 1, -1).reshape(len(weight), -1), bias

    def unpacked(self, weight: FloatArray, bias: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
        return np.moveaxis(weight.reshape(len(weight), *self.kernel, -1), -1, 1), bias


@dataclass(repr=False, eq=False)
class Depthwise(Part):
    """A convolution of each channel by itself: to the engine taps [k,c] and biases [c], c filled up.

    Attributes:
        later: Positions by which it sees further back, and less far ahead, than a symmetric one. Of an even
            kernel that one sees one position more ahead.
    """

    channels: int
    kernel: int
    bias: bool = True
    later: int = 0

    @property
    def sides(self) -> tuple[int, int]:
        """Positions that it sees before and behind its own."""
        before = (self.kernel - 1) // 2 + self.later
        return before, self.kernel - 1 - before

    def shapes(self) -> dict[str, Shape]:
        weight: dict[str, Shape] = {"weight": (self.channels, 1, self.kernel)}
        return weight | {"bias": (self.channels,)} if self.bias else weight

    def read(self, name: str, reader: WeightReader) -> tuple[FloatArray, FloatArray]:
        taps = reader.array(f"{name}.weight")[:, 0].T
        bias = reader.array(f"{name}.bias") if self.bias else np.zeros(self.channels, np.float32)
        before, behind = self.sides
        side = max(before, behind)  # the engine's are symmetric
        return fill(np.pad(taps, ((side - before, side - behind), (0, 0)))), fill(bias)


@dataclass(repr=False, eq=False)
class BatchNorm(Part):
    """A batch norm with running statistics: to `Normed`, what multiplies a channel, and its mean and bias."""

    features: int
    eps: float

    def shapes(self) -> dict[str, Shape]:
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (self.features,))

    def read(self, name: str, reader: WeightReader) -> tuple[npt.NDArray[np.float64], ...]:
        gain, bias, mean, variance = (
            reader.array(f"{name}.{own}").astype(np.float64) for own in self.shapes()
        )
        return fill(gain / np.sqrt(variance + self.eps)), fill(mean), fill(bias)


@dataclass(repr=False, eq=False)
class Normed(Group):
    """A group whose batch norm ``norm`` is a part of its convolution ``depthwise`` in the engine."""

    def read(self, name: str, reader: WeightReader) -> dict[str, Any]:
        found = super().read(name, reader)
        taps, bias = found["depthwise"]
        scale, mean, shift = found.pop("norm")
        return found | {
            "depthwise": (
                (taps * scale).astype(np.float32),
                ((bias - mean) * scale + shift).astype(np.float32),
            )
        }


@dataclass(repr=False, eq=False)
class Norm(Part):
    """A layer norm, or without bias an RMSNorm: to the engine gain, bias and epsilon."""

    features: int
    eps: float
    bias: bool = True

    def shapes(self) -> dict[str, Shape]:
        return dict.fromkeys(("weight", "bias") if self.bias else ("weight",), (self.features,))

    def read(self, name: str, reader: WeightReader) -> tuple[FloatArray, FloatArray | None, float]:
        return reader.array(f"{name}.weight"), reader.array(f"{name}.bias") if self.bias else None, self.eps


@dataclass(repr=False, eq=False)
class Words(Part):
    """A matrix of words."""

    count: int
    features: int

    def shapes(self) -> dict[str, Shape]:
        return {"weight": (self.count, self.features)}

    @property
    def packed(self) -> tuple[int, int] | None:
        return self.count, self.features

    def read(self, name: str, reader: WeightReader) -> object:
        return reader.words(f"{name}.weight")


@dataclass(repr=False, eq=False)
class OutputWords(Words):
    """The output layer, whose words may be those of another matrix, but its bias its own."""

    bias: bool = False
    scale: float = 1.0  # of what it reads

    def shapes(self) -> dict[str, Shape]:
        return super().shapes() | ({"bias": (self.count,)} if self.bias else {})

    def read(self, name: str, reader: WeightReader) -> dict[str, Any]:
        bias = fill(reader.array(f"{name}.bias"), PANEL) if self.bias else None
        return {"words": super().read(name, reader), "bias": bias, "scale": self.scale}


@dataclass(repr=False, eq=False)
class Positions(Part):
    """Vectors [count,D] of positions, or of a kind that is computed: ``sinusoidal`` or ``interleaved``.

    Attributes:
        first: Number of the first position of ``sinusoidal`` ones.
    """

    type: str
    count: int
    features: int
    first: int = 2

    def shapes(self) -> dict[str, Shape]:
        return {"weight": (self.count, self.features)} if self.type == "learned" else {}

    @property
    def table(self) -> FloatArray:
        """The vectors that are computed."""
        if self.type == "sinusoidal":
            return sinusoids(self.count, self.features, self.first)
        return interleaved_sinusoids(np.arange(self.count), self.features)

    def read(self, name: str, reader: WeightReader) -> FloatArray | None:
        return reader.array(f"{name}.weight") if self.type == "learned" else self.table


@dataclass(repr=False, eq=False)
class Distances(Part):
    """Biases of attention scores [buckets,H] by distance, up to `farthest` tokens."""

    buckets: int
    heads: int
    farthest: int
    causal: bool

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """The bucket of each distance from -`farthest` to it."""
        distances = np.arange(-self.farthest, self.farthest + 1)
        return relative_buckets(distances, self.buckets, self.farthest, causal=self.causal)

    def shapes(self) -> dict[str, Shape]:
        return {"weight": (self.buckets, self.heads)}

    def read(self, name: str, reader: WeightReader) -> FloatArray:
        return reader.array(f"{name}.weight")[self.table].T  # [buckets,H] -> [H,distances]


@dataclass(repr=False, eq=False)
class HeadVectors(Part):
    """A vector for each head, [H,f], which has no further name."""

    heads: int
    features: int

    def shapes(self) -> dict[str, Shape]:
        return {"": (self.heads, self.features)}

    def read(self, name: str, reader: WeightReader) -> FloatArray:
        return fill(reader.array(name))  # [H,f] -> [H,F]


@dataclass(repr=False, eq=False)
class Factor(Part):
    """A learned number [1], which has no further name."""

    def shapes(self) -> dict[str, Shape]:
        return {"": (1,)}

    def read(self, name: str, reader: WeightReader) -> FloatArray:
        return reader.array(name)


@dataclass(repr=False, eq=False)
class Constants(Part):
    """Numbers by name that training leaves as they are, such as the means of a corpus."""

    sizes: Mapping[str, Shape]

    def shapes(self) -> dict[str, Shape]:
        return dict(self.sizes)

    def read(self, name: str, reader: WeightReader) -> dict[str, FloatArray]:
        return {own: reader.array(f"{name}.{own}") for own in self.sizes}


def filled(features: int, multiple: int = LANES) -> int:
    """Rounds a number of features up to a multiple."""
    return features + -features % multiple


def fill(x: npt.NDArray[F], multiple: int = LANES) -> npt.NDArray[F]:
    """Fills the last dimension up with zeros."""
    return np.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, -x.shape[-1] % multiple),))


def weight_shapes(parts: Part) -> dict[str, Shape]:
    """The shape of each weight of a model, by name."""
    return {
        f"{name}.{own}" if own else name: shape
        for name, part in parts.leaves("")
        for own, shape in part.shapes().items()
    }


def attention(
    d: int, heads: int, features: int, *, scale: float, bias: bool = True, source: int = 0
) -> Group:
    """Multi-head attention: one matrix for queries, keys and values, or that of queries apart.

    Args:
        source: Features of what it attends to; 0: to what it reads itself.
    """
    width = heads * features
    if source:
        read = {
            "q": IntoHeads(width, d, bias, heads=heads),
            "kv": IntoHeads(2 * width, source, bias, heads=heads, count=2),
        }
    else:
        read = {"qkv": IntoHeads(3 * width, d, bias, heads=heads, count=3)}
    settings = {"heads": heads, "features": filled(features), "scale": scale}
    return Group({**read, "out": FromHeads(d, width, bias, heads=heads)}, settings)


def feed_forward(
    d: int, inner: int, activation: str, *, gated: bool = False, bias: bool = True, scale: float = 1.0
) -> Group:
    """A feed-forward network whose outputs are multiplied by `scale` in the engine."""
    gate = {"gate": Linear(inner, d, bias)} if gated else {}
    layers = {**gate, "up": Linear(inner, d, bias), "down": Linear(d, inner, bias, scale)}
    return Group(layers, {"activation": activation})


def recurrence(d: int, *, bias: bool = True) -> Group:
    """A simpler simple recurrent unit: one matrix for the candidates of the state, and for its forget gate.

    Kim et al. 2019, "From Research to Production and Back: Ludicrously Fast Neural Machine Translation",
    section 3.1. The published candidates have no bias; here they may have one.
    """
    return Group({"project": Linear(2 * d, d, bias)})
