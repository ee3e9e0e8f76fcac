"""Families of text models in folders of Hugging Face: their settings, and names of weights."""

from __future__ import annotations

from functools import partial

from nartk.architectures.settings import both
from nartk.checkpoints.hugging_face.settings import SIZES, Family, Settings, activation_of, refusal
from nartk.files import JsonObject

BIAS = "final_logits_bias"
_LONGEST = 100_000  # tokens, of models whose positions have no table


def _of_fairseq(values: Settings, *, norm_first: bool, positions: str, norm_embedding: bool) -> JsonObject:
    """The configuration of a family whose settings are fairseq's."""
    longest = values["max_position_embeddings"]
    return {
        **{ours: values[theirs] for ours, theirs in SIZES.items()},
        "src_vocab": values["vocab_size"],
        "tgt_vocab": values["vocab_size"],
        "pad": values["pad_token_id"],
        "d_model": values["d_model"],
        "encoder_norm_first": norm_first,
        "decoder_norm_first": norm_first,
        "activation": activation_of("activation_function", values),
        "encoder_positions": positions,
        "decoder_positions": positions,
        "max_source_len": longest,
        "max_target_len": longest,
        "scale_embedding": values["scale_embedding"],
        "norm_embedding": norm_embedding,
    }


def _of_marian(values: Settings) -> JsonObject:
    found = _of_fairseq(values, norm_first=False, positions="learned", norm_embedding=False)
    target = values["decoder_vocab_size"]
    if not values["share_encoder_decoder_embeddings"] and target:
        found["tgt_vocab"] = target
    return found


def _of_m2m(values: Settings) -> JsonObject:
    if values["pad_token_id"] != 1:  # positions begin behind it
        raise refusal("pad_token_id", values["pad_token_id"], "known is 1")
    return _of_fairseq(values, norm_first=True, positions="sinusoidal", norm_embedding=False)


def _of_t5(values: Settings, *, scales: bool) -> JsonObject:
    """The configuration of a T5.

    Args:
        scales: True if a model with one matrix for all words scales the output layer's inputs.
    """
    gate, _, activation = values["feed_forward_proj"].rpartition("-")
    if gate not in ("", "gated"):
        raise refusal(
            "feed_forward_proj", values["feed_forward_proj"], "known are ACTIVATION and gated-ACTIVATION"
        )
    if values["feed_forward_proj"] == "gated-gelu":
        activation = "gelu_new"
    # What the file has of these overrides what follows from the setting.
    derived = {"dense_act_fn": activation, "is_gated_act": bool(gate), "scale_decoder_outputs": scales}
    derived |= {name: values[name] for name in derived if values.get(name) is not None}
    layers, own = values["num_layers"], values["num_decoder_layers"]
    return {
        "src_vocab": values["vocab_size"],
        "tgt_vocab": values["vocab_size"],
        "pad": values["pad_token_id"],
        "d_model": values["d_model"],
        "encoder_layers": layers,
        "decoder_layers": layers if own is None else own,
        **both(ffn=values["d_ff"], heads=values["num_heads"]),
        "head_features": values["d_kv"],
        "scale_attention": False,
        "activation": activation_of("dense_act_fn", derived),
        "gated_ffn": derived["is_gated_act"],
        "norm": "rms",
        "norm_eps": float(values["layer_norm_epsilon"]),
        "bias": False,
        "encoder_positions": "relative",
        "decoder_positions": "relative",
        "relative_buckets": values["relative_attention_num_buckets"],
        "relative_distance": values["relative_attention_max_distance"],
        "max_source_len": _LONGEST,
        "max_target_len": _LONGEST,
        "scale_embedding": False,
        "scale_output": derived["scale_decoder_outputs"],
    }


_FAIRSEQ: JsonObject = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    **both(layers=12, ffn_dim=4096, attention_heads=16),
    "activation_function": "gelu",
    "d_model": 1024,
    "scale_embedding": False,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}
_FAIRSEQ_ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}
FAIRSEQ_NAMES = {
    "embedding.words": "embed_tokens",
    "embedding.positions": "embed_positions",
    "embedding.norm": "layernorm_embedding",
    "norm": "layer_norm",
    "self_attention.qkv": "layers.{i}.self_attn.q_proj|k_proj|v_proj",
    "self_attention.out": "layers.{i}.self_attn.out_proj",
    "self_norm": "layers.{i}.self_attn_layer_norm",
    "cross_attention.q": "layers.{i}.encoder_attn.q_proj",
    "cross_attention.kv": "layers.{i}.encoder_attn.k_proj|v_proj",
    "cross_attention.out": "layers.{i}.encoder_attn.out_proj",
    "cross_norm": "layers.{i}.encoder_attn_layer_norm",
    "ffn.up": "layers.{i}.fc1",
    "ffn.down": "layers.{i}.fc2",
    "ffn_norm": "layers.{i}.final_layer_norm",
}
_T5: JsonObject = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": int,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "dense_act_fn": str,
    "is_gated_act": bool,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_T5_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_T5_NAMES = {
    "embedding.words": "embed_tokens",
    "relative": "block.0.layer.0.SelfAttention.relative_attention_bias",
    "norm": "final_layer_norm",
    "self_attention.qkv": "block.{i}.layer.0.SelfAttention.q|k|v",
    "self_attention.out": "block.{i}.layer.0.SelfAttention.o",
    "self_norm": "block.{i}.layer.0.layer_norm",
    "cross_attention.q": "block.{i}.layer.1.EncDecAttention.q",
    "cross_attention.kv": "block.{i}.layer.1.EncDecAttention.k|v",
    "cross_attention.out": "block.{i}.layer.1.EncDecAttention.o",
    "cross_norm": "block.{i}.layer.1.layer_norm",
    "ffn.gate": "block.{i}.layer.{ffn}.DenseReluDense.wi_0",
    "ffn.up": "block.{i}.layer.{ffn}.DenseReluDense.{up}",
    "ffn.down": "block.{i}.layer.{ffn}.DenseReluDense.wo",
    "ffn_norm": "block.{i}.layer.{ffn}.layer_norm",
}
_T5_UNUSED = frozenset({"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"})
_VERSIONS = frozenset({"encoder.version", "decoder.version"})
FAMILIES = {
    "bart": Family(
        ("BartForConditionalGeneration", "BartModel"),
        _FAIRSEQ,
        _FAIRSEQ_ALIASES,
        partial(_of_fairseq, norm_first=False, positions="learned", norm_embedding=True),
        FAIRSEQ_NAMES,
        skipped=2,
        unused=_VERSIONS,
        start=("eos_token_id", 2),
    ),
    "m2m_100": Family(
        ("M2M100ForConditionalGeneration", "M2M100Model"),
        {**_FAIRSEQ, "vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
        _FAIRSEQ_ALIASES,
        _of_m2m,
        FAIRSEQ_NAMES,
        has_bias=False,
        unused=_VERSIONS | {BIAS} | {f"{side}.embed_positions.weights" for side in ("encoder", "decoder")},
        start=("eos_token_id", 2),
    ),
    "marian": Family(
        ("MarianMTModel", "MarianModel"),
        {
            **_FAIRSEQ,
            "vocab_size": 58101,
            "decoder_vocab_size": int,
            "pad_token_id": 58100,
            "share_encoder_decoder_embeddings": True,
        },
        _FAIRSEQ_ALIASES,
        _of_marian,
        FAIRSEQ_NAMES,
        computes_positions=True,
        start=("pad_token_id", 58100),
    ),
    "mbart": Family(
        ("MBartForConditionalGeneration", "MBartModel"),
        _FAIRSEQ,
        _FAIRSEQ_ALIASES,
        partial(_of_fairseq, norm_first=True, positions="learned", norm_embedding=True),
        FAIRSEQ_NAMES,
        skipped=2,
        unused=_VERSIONS,
    ),
    "mt5": Family(
        ("MT5ForConditionalGeneration", "MT5Model"),
        {
            **_T5,
            "vocab_size": 250112,
            "d_ff": 1024,
            "num_layers": 8,
            "num_heads": 6,
            "feed_forward_proj": "gated-gelu",
        },
        _T5_ALIASES,
        partial(_of_t5, scales=False),
        _T5_NAMES,
        has_bias=False,
        ties_words=True,
        unused=_T5_UNUSED,
        start=("pad_token_id", 0),
    ),
    "pegasus": Family(
        ("PegasusForConditionalGeneration", "PegasusModel"),
        {**_FAIRSEQ, "pad_token_id": 0},
        _FAIRSEQ_ALIASES,
        partial(_of_fairseq, norm_first=True, positions="learned", norm_embedding=False),
        FAIRSEQ_NAMES,
        computes_positions=True,
        start=("pad_token_id", 0),
    ),
    "t5": Family(
        ("T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"),
        {**_T5, "scale_decoder_outputs": bool},
        _T5_ALIASES,
        lambda values: _of_t5(values, scales=values["tie_word_embeddings"]),
        _T5_NAMES,
        has_bias=False,
        ties_words=True,
        unused=_T5_UNUSED,
        start=("pad_token_id", 0),
    ),
}
