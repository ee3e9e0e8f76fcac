"""Small random DA-Transformers, and sentences for them."""

from __future__ import annotations

import random
from typing import Any

import torch

from nartk.architectures.dag import DagConfig
from nartk.models.da_transformer import EOS, DaTransformer
from support import transformers_small

SMALL = {
    **transformers_small.SMALL,
    "link_heads": 2,
    "max_source_len": 64,
    "max_target_len": 128,
    "dropout": 0.0,
}


def network(words: int = 20, *, seed: int = 0, spread: float = 2.0, **settings: Any) -> DaTransformer:
    """A random network whose words and links vary with its input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DaTransformer(DagConfig(**{**SMALL, "src_vocab": words, "tgt_vocab": words, **settings}))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(spread)
    return model


def sentences(rng: random.Random, count: int, longest: int, words: int = 20) -> list[list[int]]:
    """Ids with eos, of up to `longest` words."""
    return [[*(rng.randrange(4, words) for _ in range(rng.randint(0, longest))), EOS] for _ in range(count)]
