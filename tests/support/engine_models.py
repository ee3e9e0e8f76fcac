"""Small random Transformers on the engine, and the bits of what they decode."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from nartk.engine import LEFT_OUT
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import PassScorer
from nartk.registry import make_strategy
from support.transformers_small import random_config, random_model, vocabulary

TYPES = ("fp32", "bf16", "int8")
Bits = list[tuple[tuple[int, ...], tuple[float, ...] | None]]


def on_engine(model: Transformer, *, type: str = "fp32", threads: int = 1) -> PassScorer:
    """The scorer of a model."""
    if os.environ.get(LEFT_OUT) == "1":
        pytest.skip(f"{LEFT_OUT}=1 leaves the engine out")
    from support.scorers import TransformerEngine

    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    words = vocabulary(model.config.tgt_vocab)
    return TransformerEngine(model.config, arrays, words, type=type, threads=threads)


def random_network(rng: random.Random) -> Transformer:
    """A random model of a random shape."""
    return random_model(random_config(rng), rng.getrandbits(30))


def decode(
    strategy: Any, scorer: PassScorer, requests: Sequence[Request], *, batch_size: int
) -> list[Result]:
    """The results of requests in their order; all cells are given back."""
    found = list(strategy.run(scorer, requests, batch_size=batch_size))
    assert scorer.cells_in_use == 0
    return sorted(found, key=lambda result: result.index)


def alone(scorer: PassScorer, requests: Sequence[Request]) -> Bits:
    """Greedy search, a sentence at a time: the reference."""
    return bits_of(decode(make_strategy("greedy", {}), scorer, requests, batch_size=1))


def bits_of(results: Sequence[Result]) -> Bits:
    """Tokens and log-probabilities; Python compares the floats by value, and none is NaN or zero-signed."""
    return [(r.hypotheses[0].tokens, r.hypotheses[0].positional_scores) for r in results]
