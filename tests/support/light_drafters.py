"""Small random light drafters, and the same network of torch's own modules."""

from __future__ import annotations

import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nartk
from nartk import engine
from nartk.architectures import architecture
from nartk.architectures.light_drafter import LightDrafterConfig
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import WORD_COUNTS
from nartk.checkpoints.saving import save_checkpoint
from nartk.models.reference import DTYPES
from nartk.models.transformer import Transformer
from support.random_transformers import vocabulary
from support.transformers_small import stir

FOUND = architecture("light_drafter")


def random_light_config(rng: random.Random, verifier: Any, **fixed: Any) -> LightDrafterConfig:
    """Of any width and one or two layers, over what this verifier encodes."""
    heads = rng.choice([1, 2, 3])
    settings = {
        "tgt_vocab": verifier.tgt_vocab,
        "pad": verifier.pad,
        "d_model": verifier.d_model,
        "max_source_len": verifier.max_source_len,
        "max_target_len": verifier.max_target_len,
        "decoder_features": heads * rng.choice([8, 16, 20]),
        "decoder_heads": heads,
        "decoder_layers": rng.choice([1, 2]),
        "decoder_ffn": rng.choice([17, 48]),
        "share_embeddings": rng.choice(["decoder", "none"]),
    }
    return LightDrafterConfig(**settings | fixed)


def random_network(config: LightDrafterConfig, seed: int) -> Transformer:
    """In evaluation, no two weights alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return stir(FOUND.network(config).eval()).requires_grad_(False)


def light_on_engine(network: Transformer, *, type: str = "fp32", threads: int = 1) -> Any:
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    words = vocabulary(network.config.tgt_vocab)
    return FOUND.engine(network.config, arrays, words, type=type, threads=threads)


def light_in_torch(network: Transformer, *, type: str = "fp32") -> Any:
    return FOUND.scorer(network, vocabulary(network.config.tgt_vocab), dtype=DTYPES[type])


def random_light(rng: random.Random, verifier: Any, *, type: str, on_torch: bool) -> Any:
    """The scorer of a random drafter for this verifier's configuration."""
    network = random_network(random_light_config(rng, verifier), rng.getrandbits(30))
    serve = light_in_torch if on_torch or not engine.available() else light_on_engine
    return serve(network, type=type)


def write_drafter(
    folder: Path, verifier: Path, seed: int = 3, word_counts: Path | None = None, **fixed: Any
) -> Path:
    """A random drafter for the model of a folder."""
    checkpoint = load_checkpoint(verifier)
    config = random_light_config(
        random.Random(seed),
        nartk.load(verifier).config,
        **{"drafts_for": checkpoint.fingerprint, "share_embeddings": "decoder"} | fixed,
    )
    network = random_network(config, seed)
    save_checkpoint(
        folder,
        architecture="light_drafter",
        settings=asdict(config),
        tensors=network.state_dict(),
        source_vocab=None,
        target_vocab=checkpoint.target_vocab,
        input={"name": "encoded"},
        others=None if word_counts is None else {WORD_COUNTS: word_counts},
        card="# A drafter for tests\n",
    )
    return folder


class TorchTwin(nn.Module):
    """A light drafter of `torch.nn.TransformerDecoderLayer`s, with the weights of ours, in fp64."""

    def __init__(self, config: LightDrafterConfig, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        wide = {name: weight.double() for name, weight in weights.items()}
        width, heads = config.decoder_features, config.decoder_heads
        self.words, self.output = wide["decoder_embedding.words.weight"], wide["output.weight"]
        self.layers = nn.ModuleList()
        for i in range(config.decoder_layers):
            layer = nn.TransformerDecoderLayer(
                width, heads, config.decoder_ffn, dropout=0.0, batch_first=True, norm_first=True
            )
            layer.multihead_attn = nn.MultiheadAttention(
                width, heads, kdim=config.d_model, vdim=config.d_model, batch_first=True
            )
            self.layers.append(layer.double())
            _fill(layer, {k.removeprefix(f"decoder_layers.{i}."): v for k, v in wide.items()}, config)
        self.norm = nn.LayerNorm(width).double()
        self.norm.load_state_dict({key: wide[f"decoder_norm.{key}"] for key in ("weight", "bias")})
        self.eval().requires_grad_(False)

    def forward(self, memory: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities [T,V] behind each of tokens [T], over a memory [S,D]."""
        width, size = self.config.decoder_features, len(tokens)
        x = math.sqrt(width) * self.words[tokens] + _sinusoids(size, width)
        ahead = torch.ones(size, size, dtype=torch.bool).triu(1)
        x = x[None]
        for layer in self.layers:
            x = layer(x, memory[None].double(), tgt_mask=ahead)
        return (self.norm(x)[0] @ self.output.T).log_softmax(-1)


def _fill(layer: nn.TransformerDecoderLayer, ours: dict[str, Tensor], config: LightDrafterConfig) -> None:
    width = config.decoder_features
    split = ours["cross_attention.kv.weight"].split(width)
    theirs = {
        "self_attn.in_proj_weight": ours["self_attention.qkv.weight"],
        "self_attn.in_proj_bias": ours["self_attention.qkv.bias"],
        "multihead_attn.in_proj_bias": torch.cat(
            [ours["cross_attention.q.bias"], ours["cross_attention.kv.bias"]]
        ),
    }
    if layer.multihead_attn.in_proj_weight is None:
        theirs |= {
            "multihead_attn.q_proj_weight": ours["cross_attention.q.weight"],
            "multihead_attn.k_proj_weight": split[0],
            "multihead_attn.v_proj_weight": split[1],
        }
    else:
        theirs["multihead_attn.in_proj_weight"] = torch.cat([ours["cross_attention.q.weight"], *split])
    for our, name in (
        ("self_attention.out", "self_attn.out_proj"),
        ("cross_attention.out", "multihead_attn.out_proj"),
        ("ffn.up", "linear1"),
        ("ffn.down", "linear2"),
        ("self_norm", "norm1"),
        ("cross_norm", "norm2"),
        ("ffn_norm", "norm3"),
    ):
        theirs |= {f"{name}.{key}": ours[f"{our}.{key}"] for key in ("weight", "bias")}
    layer.load_state_dict(theirs)


def _sinusoids(count: int, width: int) -> Tensor:
    """fairseq's: sines, then cosines, of frequencies that fall from 1 to 1/10000."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(2, count + 2, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
