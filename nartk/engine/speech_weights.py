"""Turns the weights of encoders of speech into the engine's model.

Symbols: H heads of f features, d features of the model, F of a frame, c channels, k positions of a kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nartk.architectures.conformer import interleaved_sinusoids
from nartk.architectures.transformer import sinusoids
from nartk.checkpoints.quantized import LANES
from nartk.protocols.passes import FloatArray

if TYPE_CHECKING:
    from nartk.engine.weights import Weights


def hears(config: Any) -> bool:
    """Whether a model reads frames."""
    return getattr(config, "input_features", 0) > 0


def speech_encoder(weights: Weights, config: Any) -> dict[str, Any]:
    """The encoder, and what else of a model of frames is not its decoder."""
    if weights.has("encoder_conv.0.weight"):
        return _whisper(weights, config)
    scale = 1.0 if config.encoder_positions == "none" else math.sqrt(config.d_model)
    longest = config.encoded_length(config.max_source_len)
    parts: dict[str, Any] = {
        "subsampling": {
            "images": True,
            "features": config.input_features,
            "most": config.max_source_len,
            "activation": "relu",
            "convolutions": [
                (_convolution(weights, f"encoder_subsample.conv.{i}"), 2) for i in range(config.convolutions)
            ],
            "out": weights.linear("encoder_subsample.out", scale=scale, channels=config.channels),
        },
        "ctc": weights.linear("ctc"),
        "condition": weights.linear("condition") if config.self_conditioning else None,
        "condition_normed": config.intermediate_norm,
    }
    if weights.has("encoder_prompt.embedding.words.weight"):
        parts["prompt"] = _prompt(weights, config)
        longest += config.max_target_len
    if not weights.has("output.weight"):
        parts |= {"decoder": None, "output": parts["ctc"], "output_bias": None, "output_scale": 1.0}
    table: FloatArray | None = None
    if config.encoder_positions == "sinusoidal":
        table = interleaved_sinusoids(np.arange(longest), config.d_model)
    parts["encoder"] = {
        "embedding": {"words": None, "scale": 1.0, "positions": table, "count": longest, "norm": None},
        "layers": [_layer(weights, config, i) for i in range(config.encoder_layers)],
        "norm": weights.norm("encoder_norm", config),
        "relative": None,
    }
    return parts


def _convolution(weights: Weights, name: str) -> Any:
    """The first one reads frames, and is fp32 in all types."""
    return (weights.plain if name.endswith(".0") else weights).convolution(name)


def _whisper(weights: Weights, config: Any) -> dict[str, Any]:
    return {
        "subsampling": {
            "images": False,
            "features": config.input_features,
            "most": config.max_source_len,
            "activation": "gelu",
            "convolutions": [(_convolution(weights, f"encoder_conv.{i}"), i + 1) for i in range(2)],
        },
        "encoder": weights.stack("encoder", config, config.source_positions),
    }


def _prompt(weights: Weights, config: Any) -> dict[str, Any]:
    """What encodes words beside frames; its words alone stand in front of these."""
    name, count = "encoder_prompt", config.max_target_len
    return {
        "embedding": {
            "words": weights.words(f"{name}.embedding.words.weight"),
            "scale": math.sqrt(config.d_model) if config.scale_embedding else 1.0,
            "positions": sinusoids(count, config.d_model),
            "count": count,
            "norm": weights.norm(f"{name}.embedding.norm", config),
        },
        "layers": [
            weights.layer("encoder", f"{name}.layers.{i}", config) for i in range(config.prompt_layers)
        ],
        "norm": weights.norm(f"{name}.norm", config),
        "relative": None,
    }


def _layer(weights: Weights, config: Any, index: int) -> dict[str, Any]:
    name, heads = f"encoder_layers.{index}", config.encoder_heads
    made = weights.attention("encoder", name, config) | {
        "ffn_before": _half(weights, f"{name}.ffn1", config),
        "ffn": _half(weights, f"{name}.ffn2", config),
        "final_norm": weights.norm(f"{name}.final_norm", config),
        "conditioned": config.self_conditioning and index + 1 in config.intermediate_layers,
    }
    if config.encoder_positions == "transformer-xl":
        made["distances"] = weights.plain.heads_out(f"{name}.self_attention.positions", 1, heads)
        for bias, part in (("bias_u", "content"), ("bias_v", "position")):
            rows = weights.array(f"{name}.self_attention.{bias}")
            made[part] = np.pad(rows, ((0, 0), (0, -rows.shape[1] % LANES)))  # [H,f]
    if weights.has(f"{name}.conv.up.weight"):
        made["gating"] = {
            "of_gate": False,
            "up": weights.linear(f"{name}.conv.up"),
            "depthwise": _normed_depthwise(weights, f"{name}.conv", config),
            "inner": weights.norm(f"{name}.conv.norm", config) if config.conv_norm == "layer" else None,
            "down": weights.linear(f"{name}.conv.down"),
            "norm": weights.norm(f"{name}.conv_norm", config),
        }
        return made
    made["gating"] = {
        "of_gate": True,
        "up": weights.linear(f"{name}.cgmlp.up"),
        "depthwise": depthwise(weights, f"{name}.cgmlp.depthwise"),
        "inner": weights.norm(f"{name}.cgmlp.norm", config),
        "down": weights.linear(f"{name}.cgmlp.down"),
        "norm": weights.norm(f"{name}.cgmlp_norm", config),
    }
    made["merge"] = depthwise(weights, f"{name}.merge.depthwise")
    made["merge_out"] = weights.linear(f"{name}.merge.out")
    return made


def _half(weights: Weights, name: str, config: Any) -> dict[str, Any]:
    """A feed-forward network of which half is added."""
    return {
        "activation": "silu",
        "up": weights.linear(f"{name}.up"),
        "down": weights.linear(f"{name}.down", scale=0.5),
        "norm": weights.norm(f"{name}_norm", config),
    }


def depthwise(weights: Weights, name: str) -> tuple[FloatArray, FloatArray]:
    """Taps [k,c] and biases [c] of a convolution [c,1,k], c filled up."""
    return _filled(weights.array(f"{name}.weight")[:, 0].T, weights.array(f"{name}.bias"))


def _normed_depthwise(weights: Weights, name: str, config: Any) -> tuple[FloatArray, FloatArray]:
    """The Conformer's convolution, which its batch norm is a part of."""
    if config.conv_norm != "batch":
        return depthwise(weights, f"{name}.depthwise")
    taps, bias, gain, shift, mean, variance = (
        weights.array(f"{name}.{part}").astype(np.float64)
        for part in (
            *("depthwise.weight", "depthwise.bias", "norm.weight", "norm.bias"),
            *("norm.running_mean", "norm.running_var"),
        )
    )
    scale = gain / np.sqrt(variance + config.eps_of_batch_norm)
    return _filled(taps[:, 0].T * scale, (bias - mean) * scale + shift)


def _filled(taps: Any, bias: Any) -> tuple[FloatArray, FloatArray]:
    missing = -len(bias) % LANES
    return (
        np.pad(taps, ((0, 0), (0, missing))).astype(np.float32),
        np.pad(bias, (0, missing)).astype(np.float32),
    )
