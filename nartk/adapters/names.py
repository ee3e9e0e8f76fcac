"""The names that fairseq gave a Transformer's weights, and that Hugging Face kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from nartk.models.transformer import Attention, DecoderLayer, Embedding, EncoderLayer, Transformer


def fairseq_names(model: Transformer) -> dict[str, Tensor]:
    """The weights of a model as fairseq and Hugging Face name and cut them.

    Without positions and output layer, which each library keeps in its own way. Tensors share memory with
    the model's.
    """
    found: dict[str, Tensor] = {}
    for side, embedding, layers, norm in (
        ("encoder", model.encoder.embedding, model.encoder.layers, model.encoder.norm),
        ("decoder", model.decoder.embedding, model.decoder.layers, model.decoder.norm),
    ):
        found[f"{side}.embed_tokens.weight"] = embedding.words.weight
        found |= _norm(f"{side}.layernorm_embedding", embedding.norm)
        found |= _norm(f"{side}.layer_norm", norm)
        for i, layer in enumerate(layers):
            found.update(_layer(f"{side}.layers.{i}", cast("EncoderLayer | DecoderLayer", layer)))
    return {name: tensor.detach() for name, tensor in found.items()}


def position_table(embedding: Embedding, length: int) -> Tensor:
    """What is added to the words at positions 0 to length-1, [length, d_model]; zeros if nothing is."""
    if embedding.positions is not None:
        return embedding.positions.weight.detach()[:length]
    if embedding.position_type == "sinusoidal":
        return embedding.table[:length]
    return torch.zeros(length, embedding.words.embedding_dim)


def _norm(name: str, norm: nn.LayerNorm | None) -> dict[str, Tensor]:
    return {} if norm is None else {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}


def _layer(prefix: str, layer: EncoderLayer | DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    yield from _attention(f"{prefix}.self_attn", layer.self_attention)
    yield from _norm(f"{prefix}.self_attn_layer_norm", layer.self_norm).items()
    cross: Any = layer
    if hasattr(cross, "cross_attention"):
        yield from _attention(f"{prefix}.encoder_attn", cross.cross_attention)
        yield from _norm(f"{prefix}.encoder_attn_layer_norm", cross.cross_norm).items()
    for name, linear in (("fc1", layer.ffn.up), ("fc2", layer.ffn.down)):
        yield f"{prefix}.{name}.weight", linear.weight
        yield f"{prefix}.{name}.bias", linear.bias
    yield from _norm(f"{prefix}.final_layer_norm", layer.ffn_norm).items()


def projections(attention: Attention, part: str) -> list[Tensor]:
    """The weights, or the biases, of the projections to queries, keys and values, some of them in one."""
    linears = [attention.qkv] if hasattr(attention, "qkv") else [attention.q, attention.kv]
    return [getattr(linear, part) for linear in linears]


def _attention(prefix: str, attention: Attention) -> Iterator[tuple[str, Tensor]]:
    for part in ("weight", "bias"):
        for letter, piece in zip("qkv", torch.cat(projections(attention, part)).chunk(3), strict=True):
            yield f"{prefix}.{letter}_proj.{part}", piece
    yield f"{prefix}.out_proj.weight", attention.out.weight
    yield f"{prefix}.out_proj.bias", attention.out.bias
