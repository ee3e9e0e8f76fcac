"""Random Transformers of odd shapes, with every option of the configuration, for the tests of scorers."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nartk.architectures.settings import FINAL_NORMS, JOINT, POSITIONS
from nartk.architectures.transformer import TransformerConfig
from nartk.models.transformer import Transformer
from nartk.vocab import Vocab

EOS = 2
FIRST_WORD = 4


def vocabulary(size: int) -> Vocab:
    """So many words, specials included."""
    return Vocab.from_words([f"w{i}" for i in range(size - FIRST_WORD)])


def random_options(rng: random.Random) -> dict[str, Any]:
    """What Marian, BART and T5 have beside the published Transformer; about half of it as published."""
    options: dict[str, Any] = {
        "activation": rng.choice(["relu", "gelu", "gelu_tanh", "silu"]),
        "gated_ffn": True,
        "norm": "rms",
        "norm_eps": rng.choice([1e-4, 1e-3]),
        "bias": False,
        "head_features": rng.choice([1, 8, 16, 19, 32]),
        "scale_attention": False,
        "encoder_positions": "relative",
        "output_bias": True,
        "scale_output": True,
    }
    ranges = {"relative_buckets": rng.choice([4, 8, 9]), "relative_distance": rng.choice([5, 13, 40])}
    return ranges | {name: value for name, value in options.items() if rng.random() < 0.5}


def recurrent(settings: dict[str, Any]) -> dict[str, Any]:
    """Gives a third of all settings that may have one a recurrent decoder, without drawing a number."""
    chosen = zlib.crc32(repr(sorted(settings.items())).encode()) % 3 == 0
    if chosen and settings["decoder_positions"] != "relative":
        return {"decoder_recurrence": "ssru", **settings}
    return settings


def shape_of(config: TransformerConfig) -> dict[str, Any]:
    """Its settings, without what only decoders that predict the next word have."""
    return {name: value for name, value in asdict(config).items() if name != "decoder_recurrence"}


def random_config(rng: random.Random, **fixed: Any) -> TransformerConfig:
    """Any shape; `fixed` settings are as given."""
    heads = rng.choice([(1, 1), (2, 3), (3, 1), (4, 2), (2, 2), (5, 3)])
    share = rng.choice(["all", "decoder", "inputs", "none"])
    words = rng.choice([5, rng.randint(6, 40), rng.randint(40, 150), 700])
    settings: dict[str, Any] = {
        "src_vocab": words if share in JOINT else rng.randint(6, 90),
        "tgt_vocab": words,
        "pad": rng.choice([0, 1]),
        "d_model": math.lcm(*heads) * rng.choice([1, 3, 5, 7, 8, 17]),
        "encoder_layers": rng.choice([0, 1, 2]),
        "decoder_layers": rng.choice([1, 2, 3]),
        "encoder_ffn": rng.choice([1, 17, 64, 130]),
        "decoder_ffn": rng.choice([1, 33, 50, 257]),
        "encoder_heads": heads[0],
        "decoder_heads": heads[1],
        "encoder_norm_first": rng.random() < 0.5,
        "decoder_norm_first": rng.random() < 0.5,
        "encoder_final_norm": FINAL_NORMS[words % 3],
        "decoder_final_norm": FINAL_NORMS[words // 3 % 3],
        "encoder_positions": rng.choice(POSITIONS),
        "decoder_positions": rng.choice([*POSITIONS, "relative"]),
        "max_source_len": rng.randint(9, 40),
        "max_target_len": rng.randint(20, 40),
        "share_embeddings": share,
        "scale_embedding": rng.random() < 0.5,
        "norm_embedding": rng.random() < 0.5,
    }
    return TransformerConfig(**recurrent(settings | random_options(rng) | fixed))


def random_model(config: TransformerConfig, seed: int) -> Transformer:
    """In evaluation, of weights that let the next word depend on all that was read."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config).eval().requires_grad_(False)
        for name, weight in in_order(model):
            magnify(name, weight, config, by=2.0)
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)  # biases, and scales of norms
    return model


def magnify(name: str, weight: Tensor, config: TransformerConfig, *, by: float) -> None:
    """Multiplies a weight of a layer or of distances, in place, but no rounding of fp32.

    Products of two projections stay as they are; as in T5, queries that are not scaled begin smaller.
    """
    if weight.dim() != 2 or not ("layers" in name or "relative" in name):
        return
    if config.gated_ffn and ".ffn." in name:
        return
    if ".q" in name and not config.scale_attention:
        by *= config.attention_features(name[: len("encoder")]) ** -0.5
    weight.mul_(by)


def in_order(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Its weights as a checkpoint names them, shared ones once; biases by distance before layers, norms last.

    The order decides which random numbers each weight is made of.
    """
    weights, shared = model.state_dict(), model.config.shared_weights()
    names = [name for name in model.config.weight_shapes() if name not in shared]
    norms = ("self_norm", "ffn_norm", "cross_norm")

    def place(name: str) -> tuple[int, int, int]:
        parts = name.split(".")
        if parts[0].endswith("_layers"):
            begin = next(i for i, each in enumerate(names) if each.startswith(parts[0]))
            return begin, int(parts[1]), norms.index(parts[2]) + 1 if parts[2] in norms else 0
        layers = parts[0].replace("_relative", "_layers")
        return next(i for i, each in enumerate(names) if each == name or each.startswith(layers)), -1, 0

    for name in sorted(names, key=place):
        yield name, weights[name]


def arrays_of(model: Transformer) -> Mapping[str, npt.NDArray[np.float32]]:
    """Its weights by name, as a checkpoint holds them."""
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def random_source(rng: random.Random, config: TransformerConfig) -> list[int]:
    """Words that end with eos."""
    size = rng.randint(0, config.max_source_len - 1)
    return [*(rng.randrange(FIRST_WORD, config.src_vocab) for _ in range(size)), EOS]
