"""The options of the Transformer that Marian, BART and T5 have, against the transformers library.

Its weights are mapped here by hand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.engine_models import on_engine
from support.random_transformers import vocabulary
from torch import Tensor

from nartk import _fairseq_hook
from nartk.architectures import architecture, architectures
from nartk.architectures.positions import relative_buckets
from nartk.architectures.transformer import TransformerConfig
from nartk.errors import UnsupportedCheckpointError, UsageError
from nartk.models.training import Dropout
from nartk.models.transformer import Transformer
from nartk.protocols.passes import Pass, Want

pytest.importorskip("transformers")
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.t5.modeling_t5 import T5Attention

WORDS, PAD = 40, 0
SHAPE = {
    "src_vocab": WORDS,
    "tgt_vocab": WORDS,
    "pad": PAD,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_heads": 4,
    "decoder_heads": 4,
    "encoder_ffn": 30,
    "decoder_ffn": 30,
    "scale_embedding": False,
}


def fused(weights: Mapping[str, Tensor], name: str, parts: str, ending: str) -> Tensor:
    return torch.cat([weights[f"{name}.{part}.{ending}"] for part in parts.split()])


def from_t5(model: Any, config: TransformerConfig) -> dict[str, Tensor]:
    weights = model.state_dict()
    found = {
        "encoder_embedding.words.weight": weights["shared.weight"],
        "decoder_embedding.words.weight": weights["shared.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for side in ("encoder", "decoder"):
        first = f"{side}.block.0.layer.0.SelfAttention"
        found[f"{side}_relative.weight"] = weights[f"{first}.relative_attention_bias.weight"]
        found[f"{side}_norm.weight"] = weights[f"{side}.final_layer_norm.weight"]
        for i in range(getattr(config, f"{side}_layers")):
            ours, theirs = f"{side}_layers.{i}", f"{side}.block.{i}.layer"
            last = 2 if side == "decoder" else 1
            attention = f"{theirs}.0.SelfAttention"
            found[f"{ours}.self_attention.qkv.weight"] = fused(weights, attention, "q k v", "weight")
            found[f"{ours}.self_attention.out.weight"] = weights[f"{attention}.o.weight"]
            found[f"{ours}.self_norm.weight"] = weights[f"{theirs}.0.layer_norm.weight"]
            if side == "decoder":
                attention = f"{theirs}.1.EncDecAttention"
                found[f"{ours}.cross_attention.q.weight"] = weights[f"{attention}.q.weight"]
                found[f"{ours}.cross_attention.kv.weight"] = fused(weights, attention, "k v", "weight")
                found[f"{ours}.cross_attention.out.weight"] = weights[f"{attention}.o.weight"]
                found[f"{ours}.cross_norm.weight"] = weights[f"{theirs}.1.layer_norm.weight"]
            inner = f"{theirs}.{last}.DenseReluDense"
            if config.gated_ffn:
                found[f"{ours}.ffn.gate.weight"] = weights[f"{inner}.wi_0.weight"]
            up = "wi_1" if config.gated_ffn else "wi"
            found[f"{ours}.ffn.up.weight"] = weights[f"{inner}.{up}.weight"]
            found[f"{ours}.ffn.down.weight"] = weights[f"{inner}.wo.weight"]
            found[f"{ours}.ffn_norm.weight"] = weights[f"{theirs}.{last}.layer_norm.weight"]
    return found


def from_bart(model: Any, config: TransformerConfig) -> dict[str, Tensor]:
    """Of BART and of Marian, whose position tables and embedding norms differ."""
    weights = model.state_dict()
    found = {
        "encoder_embedding.words.weight": weights["model.shared.weight"],
        "decoder_embedding.words.weight": weights["model.shared.weight"],
        "output.weight": weights["lm_head.weight"],
        "output.bias": weights["final_logits_bias"][0],
    }
    for side in ("encoder", "decoder"):
        positions = model.get_submodule(f"model.{side}.embed_positions").weight
        found[f"{side}_embedding.positions.weight"] = positions[2:] if config.norm_embedding else positions
        for ending in ("weight", "bias"):
            if config.norm_embedding:
                norm = weights[f"model.{side}.layernorm_embedding.{ending}"]
                found[f"{side}_embedding.norm.{ending}"] = norm
            for i in range(getattr(config, f"{side}_layers")):
                ours, theirs = f"{side}_layers.{i}", f"model.{side}.layers.{i}"
                names = {
                    "self_attention.out": "self_attn.out_proj",
                    "self_norm": "self_attn_layer_norm",
                    "ffn.up": "fc1",
                    "ffn.down": "fc2",
                    "ffn_norm": "final_layer_norm",
                }
                qkv = fused(weights, f"{theirs}.self_attn", "q_proj k_proj v_proj", ending)
                found[f"{ours}.self_attention.qkv.{ending}"] = qkv
                if side == "decoder":
                    names |= {
                        "cross_attention.q": "encoder_attn.q_proj",
                        "cross_attention.out": "encoder_attn.out_proj",
                        "cross_norm": "encoder_attn_layer_norm",
                    }
                    kv = fused(weights, f"{theirs}.encoder_attn", "k_proj v_proj", ending)
                    found[f"{ours}.cross_attention.kv.{ending}"] = kv
                for mine, name in names.items():
                    found[f"{ours}.{mine}.{ending}"] = weights[f"{theirs}.{name}.{ending}"]
    return found


def t5(feed_forward: str, tied: bool) -> tuple[Any, TransformerConfig]:
    theirs = T5Config(
        vocab_size=WORDS, d_model=24, d_kv=7, d_ff=30, num_layers=3, num_decoder_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=20, layer_norm_epsilon=1e-3,
        feed_forward_proj=feed_forward, tie_word_embeddings=tied, pad_token_id=PAD, eos_token_id=1,
        decoder_start_token_id=PAD,
    )  # fmt: skip
    ours = TransformerConfig(
        **SHAPE,
        norm="rms",
        norm_eps=1e-3,
        bias=False,
        head_features=7,
        scale_attention=False,
        **{f"{side}_positions": "relative" for side in ("encoder", "decoder")},
        relative_buckets=8,
        relative_distance=20,
        activation="relu" if feed_forward == "relu" else "gelu_tanh",
        gated_ffn=feed_forward != "relu",
        share_embeddings="all" if tied else "inputs",
        scale_output=tied,
    )
    return T5ForConditionalGeneration(theirs), ours


LIKE_BART = {
    "vocab_size": WORDS,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 30,
    "decoder_ffn_dim": 30,
    "max_position_embeddings": 70,
    "pad_token_id": PAD,
}
OUR_BART: dict[str, Any] = SHAPE | {
    "encoder_norm_first": False,
    "decoder_norm_first": False,
    "encoder_positions": "learned",
    "decoder_positions": "learned",
    "max_source_len": 70,
    "max_target_len": 70,
    "output_bias": True,
}


def bart() -> tuple[Any, TransformerConfig]:
    theirs = BartConfig(**LIKE_BART, activation_function="gelu")
    ours = TransformerConfig(**OUR_BART, activation="gelu", norm_embedding=True)
    return BartForConditionalGeneration(theirs), ours


def marian() -> tuple[Any, TransformerConfig]:
    theirs = MarianConfig(**LIKE_BART, activation_function="swish", scale_embedding=True)
    ours = TransformerConfig(**OUR_BART | {"scale_embedding": True}, activation="silu")
    return MarianMTModel(theirs), ours


MODELS = {
    "t5": lambda: t5("relu", True),
    "t5-1.1": lambda: t5("gated-gelu", False),
    "bart": bart,
    "marian": marian,
}


def stirred(name: str) -> tuple[Any, TransformerConfig, Transformer]:
    """A model with weights that let each word depend on all that was read, and ours with the same weights."""
    torch.manual_seed(0)
    theirs, config = MODELS[name]()
    if config.share_embeddings == "inputs":  # which the library's constructor ties
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(WORDS, config.d_model) * 0.2)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
        if "final_logits_bias" in theirs.state_dict():
            theirs.final_logits_bias.normal_()
    ours = Transformer(config)
    ours.load_state_dict((from_t5 if name.startswith("t5") else from_bart)(theirs, config))
    return theirs.eval(), config, ours.eval()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_transformers_library(name: str) -> None:
    theirs, _, ours = stirred(name)
    rng = random.Random(1)
    lengths = [60, 5, 1]
    source = torch.tensor(
        [[*(rng.randrange(2, WORDS) for _ in range(n)), *[PAD] * (60 - n)] for n in lengths]
    )
    target = torch.tensor([[rng.randrange(2, WORDS) for _ in range(50)] for _ in lengths])
    with torch.inference_mode():
        wanted = theirs(input_ids=source, attention_mask=source.ne(PAD), decoder_input_ids=target).logits
        found = ours(source, target)
    assert wanted.std() > 0.5
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_has_the_logits_of_the_transformers_library(name: str, type: str) -> None:
    """In one pass and token by token; smaller types are near."""
    theirs, _, ours = stirred(name)
    scorer = on_engine(ours, type=type)
    source, target = ([random.Random(seed).randrange(4, WORDS) for _ in range(60)] for seed in (1, 2))
    with torch.inference_mode():
        wanted = theirs(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits[0]
    (memory,) = scorer.encode([source])
    for step in (60, 1):
        (context,) = scorer.open(1)
        found = []
        for first in range(0, 60, step):
            tokens, positions, parents = (
                target[first : first + step],
                range(first, first + step),
                range(-1, step - 1),
            )
            columns = tokens, positions, [memory] * step, [context] * step, parents
            scores = scorer.run(Pass(*(np.array(each, np.int32) for each in columns)), Want())
            found.append(scores.rows(range(step)))
            scorer.commit(scores, range(step))
        away = np.abs(np.concatenate(found) - wanted.numpy())
        assert away.max() < 1e-4 if type == "fp32" else np.median(away) < 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_t5s(causal: bool) -> None:
    rng = random.Random(causal)
    distances = np.arange(-3000, 3001)
    published = [(32, 128), (64, 128), (32, 256)]  # T5's, and two at whose borders numbers are exact
    for buckets, most in published + [(b := rng.randint(4, 150), rng.randint(b, 2000)) for _ in range(60)]:
        found = relative_buckets(distances, buckets, most, causal=causal)
        wanted = T5Attention._relative_position_bucket(
            torch.from_numpy(distances), bidirectional=not causal, num_buckets=buckets, max_distance=most
        )
        np.testing.assert_array_equal(found, wanted.numpy(), err_msg=f"{buckets} {most}")


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_transformers_library(name: str) -> None:
    theirs, _, ours = stirred(name)
    ours.train()  # with its forms of operations for training, but without dropout
    for module in ours.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    source, target = torch.randint(2, WORDS, (2, 30)), torch.randint(2, WORDS, (2, 25))
    for logits in (theirs(input_ids=source, decoder_input_ids=target).logits, ours(source, target)):
        logits.logsumexp(-1).sum().backward()
    pairs = [(ours.encoder.embedding.words, theirs.get_input_embeddings())]
    for side in ("encoder", "decoder"):
        relative = getattr(ours, side).relative
        assert (relative is None) != name.startswith("t5")
        if relative is not None:
            first = getattr(theirs, side).block[0].layer[0].SelfAttention
            pairs.append((relative, first.relative_attention_bias))
    for found, right in pairs:
        torch.testing.assert_close(found.weight.grad, right.weight.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relative_buckets": 3}, "`relative_buckets` is 3, below 4"),
        ({"relative_distance": 16}, "`relative_distance` 16 is not above half of `relative_buckets` 32"),
        ({"relative_distance": 100_001}, "`relative_distance` is 100001, more than 100000"),
        ({"encoder_heads": 7}, "`d_model` 512 is no multiple of `encoder_heads` 7. Fix: set `head_features`"),
        ({"encoder_heads": 0, "head_features": 8}, "`encoder_heads` is 0, below 1"),
        ({"norm": "batch"}, "`norm` is 'batch'. Fix: choose from layer, rms"),
        ({"norm_eps": 1.0}, "`norm_eps` is 1.0, not in [0, 1)"),
        (
            {"share_embeddings": "inputs", "src_vocab": 5},
            "share embeddings, but have 5 and 0",
        ),
    ],
)
def test_what_makes_no_model_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        TransformerConfig(**settings)
    assert message in str(raised.value)


WITH_DECODERS = [name for name, each in architectures().items() if hasattr(each.config, "decoder_positions")]


@pytest.mark.parametrize(
    "name", [name for name in WITH_DECODERS if name not in ("transformer", "light_drafter")]
)
def test_parallel_decoders_have_no_relative_positions(name: str) -> None:
    with pytest.raises(UsageError, match="`decoder_positions` is 'relative'"):
        architecture(name).config(decoder_positions="relative")


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("name", MODELS)
def test_fairseq_is_no_peer_of_what_it_has_not(name: str) -> None:
    _fairseq_hook.install()
    pytest.importorskip("fairseq", reason="fairseq is not installed")
    from nartk.tasks.peer import to_fairseq

    words = vocabulary(WORDS)
    first = {"t5": "encoder_positions", "t5-1.1": "activation", "bart": "output_bias", "marian": "activation"}
    with pytest.raises(UnsupportedCheckpointError, match=f"`{first[name]}` .*, which fairseq has not"):
        to_fairseq(stirred(name)[2], words, words)
