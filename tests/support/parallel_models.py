"""Random non-autoregressive networks of all architectures, and what they give without padding or batch."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nartk.architectures import architecture
from nartk.architectures.blockwise import BlockwiseConfig
from nartk.architectures.ctc import CtcConfig
from nartk.architectures.dag import DagConfig
from nartk.architectures.nat import NatConfig
from nartk.architectures.settings import JOINT
from nartk.models.blockwise import Blockwise
from nartk.models.ctc import CtcNat
from nartk.models.da_transformer import DaTransformer
from nartk.models.nar import ParallelDecoding
from nartk.models.nat import MASK, Nat
from nartk.protocols.parallel import Canvas
from nartk.protocols.passes import FloatArray
from support.random_transformers import shape_of
from support.transformers_small import EOS, random_config, stir, vocabulary

KINDS = ("ctc", "nat", "blockwise", "dag")


def random_parallel(kind: str, seed: int) -> ParallelDecoding:
    """A network of a random shape, all options of its kind among them."""
    rng = random.Random(f"{kind} {seed}")
    torch.manual_seed(seed)
    shape = shape_of(random_config(rng)) | {
        "decoder_positions": rng.choice(["sinusoidal", "learned", "none"]),
        "max_source_len": 40,
        "max_target_len": 70,
    }
    # A norm of small embeddings would magnify what fp32 itself rounds away.
    shape["scale_embedding"] = shape["norm_embedding"] or rng.random() < 0.7
    if shape["share_embeddings"] not in JOINT:
        shape["src_vocab"] += rng.randint(0, 9)
    if kind == "ctc":
        options = {"upsample": rng.randint(1, 4), "decoder_input": rng.choice(["source", "memory"])}
        network: ParallelDecoding = CtcNat(CtcConfig(**shape, **options))
    elif kind == "nat":
        options = {
            "decoder_input": ("mask", "uniform-copy", "soft-copy")[seed % 3],
            "copy_temperature": rng.choice([0.1, 0.3, 0.9]),
            "length_difference": rng.choice([3, 20, 128]),
        }
        network = Nat(NatConfig(**shape, **options))
    elif kind == "blockwise":
        network = Blockwise(BlockwiseConfig(**shape, block=rng.randint(1, 30)))
    else:
        upsampling = ("source", "predict", "fixed")[seed % 3]
        options = {
            "decoder_input": rng.choice(["mask", "uniform-copy"]),
            "upsampling": upsampling,
            "upsample_scale": rng.choice(["37", "1~64"])
            if upsampling == "fixed"
            else rng.choice(["2.5", "1~3"]),
            "link_features": ("feature:position", "feature", "position")[seed // 3 % 3],
            "link_heads": rng.choice([each for each in (1, 2, 3, 4) if shape["d_model"] % each == 0]),
            "length_difference": rng.choice([3, 20]),
            "max_transition_length": rng.choice([99999, 1, 5]),
        }
        network = DaTransformer(DagConfig(**shape, **options))
    return stir(network.eval()).requires_grad_(False)


def engine_of(network: ParallelDecoding, *, type: str = "fp32", threads: int = 1) -> Any:
    kinds = {CtcNat: "ctc", Nat: "nat", Blockwise: "blockwise", DaTransformer: "dag"}
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    vocab = vocabulary(network.config.tgt_vocab)
    engine = architecture(kinds[network.__class__]).engine
    return engine(network.config, arrays, vocab, type=type, threads=threads)


def random_sources(network: ParallelDecoding, rng: random.Random, count: int) -> list[list[int]]:
    sizes = [0, 1, 39, *(rng.randint(0, 39) for _ in range(count))][:count]
    return [[*(rng.randrange(4, network.config.src_vocab) for _ in range(size)), EOS] for size in sizes]


def random_words(network: ParallelDecoding, rng: random.Random, length: int, share: float) -> list[int]:
    """A canvas of words and masks, eos last."""
    words = network.config.tgt_vocab
    return [*(MASK if rng.random() < share else rng.randrange(4, words) for _ in range(length - 1)), EOS]


def canvas_of(memory: Sequence[int], rows: Sequence[Sequence[int]]) -> Canvas:
    flat = [word for row in rows for word in row]
    lengths = [len(row) for row in rows]
    return Canvas(*(np.array(values, np.int32) for values in (memory, lengths, flat)))


def in_fp64(network: ParallelDecoding) -> Any:
    """The network as it would be without rounding."""
    return copy.deepcopy(network).double()


def network_log_probs(network: Any, source: list[int], words: list[int]) -> FloatArray:
    """[T,V] of one canvas, which frames have none of, by the network alone, without padding or batch."""
    src_tokens = torch.tensor([source])
    encoded = network.encode(src_tokens)
    canvas = torch.tensor([words])
    if isinstance(network, CtcNat):
        x = network.embed_vectors(network.frames(encoded))
    elif isinstance(network, Nat):
        x = network.inputs(canvas, torch.tensor([len(words)]), encoded)
    else:
        x = network.embed_words(canvas)
    hidden = network.fill(x, torch.ones(x.shape[:2], dtype=torch.bool), encoded.memory, encoded.mask)
    return network.output(hidden)[0].log_softmax(-1).numpy()
