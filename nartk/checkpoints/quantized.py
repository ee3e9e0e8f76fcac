"""The int8 model folder: how matrices lie in it, so that the engine maps them as they are.

A matrix [m,k] of words or of a layer is stored as ``NAME.weight``, whole numbers of [-127, 127], and
``NAME.scales`` [m] fp32: a weight is its number times its output's scale. The outputs or inputs of attention
are filled up with zeros, so that each head has a multiple of 16 features; a bias is filled up alike. Of an
encoder of speech, a convolution [m,c,...] over all channels but the first one, which reads frames, is such a
matrix [m,...*c]; what the layer behind it reads is [features,c]; and what the engine multiplies outputs by is
a part of their scales and biases. All else is stored as fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nartk.architectures.parts import GROUP, PANEL, Linear

if TYPE_CHECKING:
    from nartk.architectures.positions import FloatArray
    from nartk.architectures.settings import Config
    from nartk.checkpoints.tensors import Array

INT8 = "int8"  # what config.json says
LAYOUT = 1  # of what is described here, in config.json


def packed_sizes(config: Config) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each layer, heads filled up, and words and features of each matrix of words.

    Matrices of words that are those of another name have that name alone.
    """
    shared = config.shared_weights()
    leaves = config.tree.leaves("")
    return {
        name: part.packed
        for name, part in leaves
        if part.packed is not None and f"{name}.weight" not in shared
    }


def block_shape(outputs: int, inputs: int) -> tuple[int, int, int, int]:
    """The shape of a stored matrix: panels of 32 outputs, in each groups of 4 inputs; zeros fill it up."""
    return -(-outputs // PANEL), -(-inputs // GROUP), PANEL, GROUP


def stored_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of an int8 folder, by name."""
    shapes, sizes = config.weight_shapes(), packed_sizes(config)
    for name in config.shared_weights():
        del shapes[name]
    for layer, (outputs, inputs) in sizes.items():
        shapes[f"{layer}.weight"] = block_shape(outputs, inputs)
        shapes[f"{layer}.scales"] = (outputs,)
        if f"{layer}.bias" in shapes:
            shapes[f"{layer}.bias"] = (outputs,)
    return shapes


def stored_types(config: Config) -> dict[str, str]:
    """The type of each tensor of an int8 folder, by name, as safetensors names it."""
    blocks = {f"{layer}.weight" for layer in packed_sizes(config)}
    return {name: "I8" if name in blocks else "F32" for name in stored_shapes(config)}


def restored(tensors: Mapping[str, Array], config: Config) -> dict[str, FloatArray]:
    """The weights that an int8 folder stands for, fp32, by the names and in the shapes of the model's own."""
    found: dict[str, FloatArray] = {}
    sizes, parts = packed_sizes(config), dict(config.tree.leaves(""))
    packed = {f"{layer}.{own}" for layer in sizes for own in ("weight", "scales", "bias")}
    for layer, (outputs, inputs) in sizes.items():
        blocks = tensors[f"{layer}.weight"].transpose(0, 2, 1, 3)
        numbers = blocks.reshape(blocks.shape[0] * PANEL, -1)[:outputs, :inputs]
        weight = numbers.astype(np.float32) * tensors[f"{layer}.scales"][:, None]
        bias, part = tensors.get(f"{layer}.bias"), parts[layer]
        if isinstance(part, Linear):
            weight, bias = part.unpacked(weight, bias)
        found[f"{layer}.weight"] = np.ascontiguousarray(weight)
        if bias is not None:
            found[f"{layer}.bias"] = bias
    found |= {name: tensors[name] for name in tensors if name not in packed}
    return found | {name: found[same] for name, same in config.shared_weights().items()}
