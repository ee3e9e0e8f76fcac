"""Small random Transformers for the tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from nartk.architectures.settings import FINAL_NORMS
from nartk.architectures.transformer import TransformerConfig
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request
from nartk.vocab import Vocab
from support.random_transformers import in_order, magnify, random_options, recurrent

PAD, EOS = 1, 2

M = TypeVar("M", bound=torch.nn.Module)

SMALL = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn": 24,
    "decoder_ffn": 24,
    "encoder_heads": 2,
    "decoder_heads": 2,
}


def vocabulary(size: int) -> Vocab:
    return Vocab.from_words([f"w{i}" for i in range(size - 4)])


def random_config(rng: random.Random) -> TransformerConfig:
    """A small model of any shape, odd sizes among them."""
    heads = rng.choice([1, 2, 4])
    words = rng.randint(12, 90)
    share = rng.choice(["all", "decoder", "inputs", "none"])
    settings = {
        "src_vocab": words,
        "tgt_vocab": words,
        "d_model": heads * rng.choice([8, 9, 16, 20, 32]),
        "encoder_layers": rng.choice([1, 1, 2]),
        "decoder_layers": rng.choice([1, 1, 2]),
        "encoder_ffn": rng.choice([16, 50, 64]),
        "decoder_ffn": rng.choice([16, 50, 96]),
        "encoder_heads": heads,
        "decoder_heads": heads,
        "encoder_norm_first": rng.random() < 0.5,
        "decoder_norm_first": rng.random() < 0.5,
        "encoder_final_norm": FINAL_NORMS[words % 3],
        "decoder_final_norm": FINAL_NORMS[words // 3 % 3],
        "encoder_positions": rng.choice(["sinusoidal", "learned", "none"]),
        "decoder_positions": rng.choice(["sinusoidal", "learned"]),
        "max_source_len": 128,
        "max_target_len": 128,
        "share_embeddings": share,
        "norm_embedding": rng.random() < 0.3,
    }
    return TransformerConfig(**recurrent(settings | random_options(rng)))


def random_model(config: TransformerConfig, seed: int) -> Transformer:
    """Random weights that make the next word depend on all that was said, not on the last word alone."""
    torch.manual_seed(seed)
    return stir(Transformer(config).eval())


def stir(model: M) -> M:
    """Makes a model's weights, in place, such that what it says depends on everything it reads."""
    with torch.no_grad():
        for name, weight in in_order(model):
            magnify(name, weight, model.config, by=3.0)
            if name.endswith("bias"):
                weight.normal_(std=0.1)
    return model


def padded(rows: Sequence[Sequence[int]], *, left: bool = False) -> Tensor:
    """[B,S] of rows of different lengths, padded on the right, or on the left as fairseq's sources are."""
    width = max(map(len, rows))
    gaps = ([PAD] * (width - len(row)) for row in rows)
    pairs = zip(rows, gaps, strict=True)
    return torch.tensor([[*gap, *row] if left else [*row, *gap] for row, gap in pairs])


def random_requests(
    rng: random.Random, count: int, words: int, *, longest: int = 30, limits: Sequence[int] = (6,)
) -> list[Request]:
    return [
        Request(
            index,
            (*(rng.randrange(4, words) for _ in range(rng.randint(0, longest))), EOS),
            rng.choice(limits),
        )
        for index in range(count)
    ]


def check_slope(model: Any, loss: Callable[[], torch.Tensor], *, rel: float = 1e-5) -> None:
    """Gradients of a loss, there already, against its slope in a random direction of all weights."""
    step, parameters = 1e-6, list(model.parameters())
    ways = [torch.randn_like(p) for p in parameters]
    pairs = zip(parameters, ways, strict=True)
    slope = sum(float((p.grad * way).sum()) for p, way in pairs if p.grad is not None)
    found = []
    with torch.no_grad():
        for sign in (1, -2):
            for p, way in zip(parameters, ways, strict=True):
                p += sign * step * way
            found.append(loss().item())
        for p, way in zip(parameters, ways, strict=True):
            p += step * way
    assert (found[0] - found[1]) / (2 * step) == pytest.approx(slope, rel=rel)
