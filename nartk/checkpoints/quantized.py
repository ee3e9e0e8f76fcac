"""The int8 model folder: how matrices lie in it, so that the engine maps them as they are.

A matrix [m,k] of words or of a layer is stored as ``NAME.weight``, whole numbers of [-127, 127], and
``NAME.scales`` [m] fp32: a weight is its number times its output's scale. The outputs or inputs of attention
are filled up with zeros, so that each head has a multiple of 16 features; a bias is filled up alike. Of an
encoder of speech, a convolution [m,c,...] over all channels but the first one, which reads frames, is such a
matrix [m,...*c]; what the layer behind it reads is [features,c]; and what the engine multiplies outputs by is
a part of their scales and biases. All else is stored as fp32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nartk.architectures.transformer import TransformerConfig

INT8 = "int8"  # what config.json says
LAYOUT = 1  # of what is described here, in config.json
LANES = 16  # floats of the engine's vectors
PANEL = 32  # outputs that lie beside each other
GROUP = 4  # inputs of an output that lie beside each other
_QUANTIZED = ("encoder", "decoder", "output", "ctc", "condition")  # parts of a model, by the first of a name
_CONVOLUTIONS = ("encoder_subsample.conv.", "encoder_conv.")  # that are layers over neighbouring positions


def packed_sizes(config: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each layer, heads filled up, and words and features of each matrix of words.

    Matrices of words that are those of another name have that name alone.
    """
    shared = config.shared_weights()
    sizes: dict[str, tuple[int, int]] = {}
    for name, shape in config.weight_shapes().items():
        layer, weight, _ = name.rpartition(".weight")
        side = layer.partition("_")[0]
        by_position = layer.endswith((".positions", "_relative"))
        if not weight or name in shared or by_position or side not in _QUANTIZED:
            continue
        if layer.startswith(_CONVOLUTIONS) and not layer.endswith(".0"):  # the first reads frames
            shape = shape[0], math.prod(shape[1:])
        if len(shape) != 2:
            continue
        outputs, inputs = shape
        if "_attention." in layer:
            features = config.attention_features(side)
            filled = features + -features % LANES
            if layer.endswith(".out"):
                inputs = inputs // features * filled
            else:
                outputs = outputs // features * filled
        sizes[layer] = outputs, inputs
    return sizes


def block_shape(outputs: int, inputs: int) -> tuple[int, int, int, int]:
    """The shape of a stored matrix: panels of 32 outputs, in each groups of 4 inputs; zeros fill it up."""
    return -(-outputs // PANEL), -(-inputs // GROUP), PANEL, GROUP


def stored_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
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


def stored_types(config: TransformerConfig) -> dict[str, str]:
    """The type of each tensor of an int8 folder, by name, as safetensors names it."""
    blocks = {f"{layer}.weight" for layer in packed_sizes(config)}
    return {name: "I8" if name in blocks else "F32" for name in stored_shapes(config)}
