"""The int8 model folder: how matrices lie in it, so that the engine maps them as they are.

A matrix [m,k] of words or of a layer is stored as ``NAME.weight``, whole numbers of [-127, 127], and
``NAME.scales`` [m] fp32: a weight is its number times its output's scale. The outputs or inputs of attention
are filled up with zeros, so that each head has a multiple of 16 features; a bias is filled up alike. All else
is stored as fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nartk.architectures.transformer import TransformerConfig

INT8 = "int8"  # what config.json says
LAYOUT = 1  # of what is described here, in config.json
LANES = 16  # floats of the engine's vectors
PANEL = 32  # outputs that lie beside each other
GROUP = 4  # inputs of an output that lie beside each other


def packed_sizes(config: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each layer, heads filled up, and words and features of each matrix of words.

    Matrices of words that are those of another name have that name alone.
    """
    shared = config.shared_weights()
    sizes: dict[str, tuple[int, int]] = {}
    for name, shape in config.weight_shapes().items():
        layer = name.removesuffix(".weight")
        side = layer.partition("_")[0]
        by_position = layer.endswith(("_embedding.positions", "_relative"))
        if len(shape) != 2 or name in shared or by_position or side not in ("encoder", "decoder", "output"):
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
