"""Turns the weights of a model into the engine's, as its parts say (`nartk.architectures.parts`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nartk.architectures.parts import Linear
from nartk.architectures.settings import Config
from nartk.checkpoints.quantized import INT8, packed_sizes
from nartk.checkpoints.tensors import QuantizedTensors, Tensors
from nartk.engine import _native
from nartk.errors import CheckpointError
from nartk.protocols.passes import FloatArray

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


class Weights:
    """The weights of a model by name, packed as the engine reads them: a `WeightReader` of parts.

    Args:
        arrays: fp32, by the names of the model's parts.
        shared: Aliases of words, each with the name under which they are read and packed once.
        type: fp32, bf16 or int8.

    Attributes:
        packed: The layers packed so far, by name, each with its bias; but those that are fp32 in all types.
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
        """Tells whether most packed weights take at most two bytes each."""
        layers = [layer for layer, _ in self.packed.values()]
        size: int = sum(each.weights.nbytes for each in layers)
        count: int = sum(each.outputs * each.inputs for each in layers)
        return size < 3 * count

    def array(self, name: str) -> FloatArray:
        return self._arrays[name]

    def words(self, name: str) -> _native.Linear:
        name = self._shared.get(name, name)
        layer = name.removesuffix(".weight")
        return self.packed[layer][0] if layer in self.packed else self._words(layer)

    def layer(self, name: str, part: Linear) -> _native.Linear:
        if not part.exact:
            return self._layer(name, part)
        return _native.Linear.pack(*self._matrix(name, part), "fp32")

    def model(self, config: Config) -> _native.Model:
        """The whole model."""
        return _native.Model(config.tree.read("", self))

    def _matrix(self, name: str, part: Linear) -> tuple[FloatArray, FloatArray | None]:
        return part.matrix(self._arrays[f"{name}.weight"], self._arrays.get(f"{name}.bias"))

    def _layer(self, name: str, part: Linear) -> _native.Linear:
        weight, bias = self._matrix(name, part)
        scales = self._scales(name)
        if scales is not None:  # of an output, as a bias is
            scales = part.matrix(self._arrays[f"{name}.weight"], scales)[1]
        return self._pack(name, weight, bias, scales)

    def _words(self, layer: str) -> _native.Linear:
        return self._pack(layer, self._arrays[f"{layer}.weight"], None, self._scales(layer))

    def _scales(self, layer: str) -> FloatArray | None:
        """Scales of outputs, where weights were int8 already and are to be so again."""
        if self._type != INT8 or not isinstance(self._arrays, Tensors):
            return None
        return self._arrays.row_scales(f"{layer}.weight")

    def _pack(
        self, layer: str, weight: FloatArray, bias: FloatArray | None, scales: FloatArray | None
    ) -> _native.Linear:
        made = _native.Linear.pack(weight, bias, self._type, scales)
        self.packed[layer] = made, bias
        return made


class StoredWeights(Weights):
    """The weights of an int8 folder: what is packed stays in the file, which is mapped.

    Raises:
        CheckpointError: A matrix holds -128, which kernels may not negate.
    """

    def __init__(self, tensors: QuantizedTensors, config: Config) -> None:
        super().__init__(tensors, INT8, shared=config.shared_weights())
        self._tensors = tensors
        self._sizes = packed_sizes(config)

    def _layer(self, name: str, part: Linear) -> _native.Linear:
        return self._words(name)  # it was turned before it was packed

    def _words(self, layer: str) -> _native.Linear:
        block = self._tensors.mapped(f"{layer}.weight").reshape(-1)
        if block.min() == -128:
            raise CheckpointError(f"tensor '{layer}.weight' holds -128, below -127")
        bias = self._arrays.get(f"{layer}.bias")
        made = _native.Linear.packed(
            block, bias, self._arrays[f"{layer}.scales"], *self._sizes[layer], self._type
        )
        self.packed[layer] = made, bias
        return made


def weights_of(arrays: Arrays, type: str, config: Config) -> Weights:
    """The weights of a model in a type: packed here, or as an int8 folder has them."""
    if isinstance(arrays, QuantizedTensors):
        return StoredWeights(arrays, config)
    return Weights(arrays, type, shared=config.shared_weights())
