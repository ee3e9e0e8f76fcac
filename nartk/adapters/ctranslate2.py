"""Puts a Transformer's weights into a CTranslate2 model folder (OpenNMT's inference engine)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nartk.adapters.names import position_table, require_one_width
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.errors import requiring
from nartk.models.layers import Embedding
from nartk.models.parts import AnyNorm
from nartk.models.transformer import DecoderModule, TextEncoderModule, Transformer
from nartk.processors.text import SentencePieceTokenizer
from nartk.serving.scorers import load_network
from nartk.vocab import Vocab

# CTranslate2's names of types.
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


def import_ctranslate2() -> Any:
    """Imports `ctranslate2`; a MissingDependencyError if it is not installed."""
    with requiring("the module {name} is not installed", "peers"):
        import ctranslate2
    return ctranslate2


def to_ctranslate2(
    model: Transformer,
    vocab: Vocab,
    folder: Path,
    *,
    source_vocab: Vocab | None = None,
    start_token: int | None = None,
    quantization: str | None = None,
) -> None:
    """Writes a model that `ctranslate2.Translator` loads; its sources are words that end with eos.

    Args:
        vocab: Dictionary of the target.
        folder: Must not exist.
        source_vocab: Dictionary of the source, if it differs from `vocab`.
        start_token: Start token of the decoder; None: eos.
        quantization: CTranslate2's name of it, such as ``int8``; None: the weights' own type.

    Raises:
        MissingDependencyError: ctranslate2 is not installed.
        UnsupportedCheckpointError: Encoder and decoder have different features.
    """
    ctranslate2 = import_ctranslate2()
    require_one_width(model.config, "CTranslate2")
    spec = _spec(model, ctranslate2.specs)
    spec.register_source_vocabulary(list((vocab if source_vocab is None else source_vocab).words))
    spec.register_target_vocabulary(list(vocab.words))
    for name in ("bos", "eos", "unk"):
        setattr(spec.config, f"{name}_token", vocab.words[getattr(vocab, name)])
    spec.config.decoder_start_token = vocab.words[vocab.eos if start_token is None else start_token]

    class Converter(ctranslate2.converters.Converter):  # type: ignore[name-defined]
        def _load(self) -> Any:
            return spec

    Converter().convert(str(folder), quantization=quantization)


def checkpoint_to_ctranslate2(checkpoint: Checkpoint, folder: Path, quantization: str | None) -> None:
    """Writes the model of a checkpoint, same as `to_ctranslate2`."""
    to_ctranslate2(
        load_network(checkpoint),
        checkpoint.target_vocab,
        folder,
        source_vocab=checkpoint.source_vocab,
        start_token=checkpoint.start_token,
        quantization=quantization,
    )


def write_folder(checkpoint: Checkpoint, folder: Path, dtype: str) -> Iterator[str]:
    """Writes a folder that `ctranslate2.Translator` loads, with the sentencepiece models of its words.

    Yields, in lines, what a reader of the folder must know.

    Args:
        folder: Exists and is empty.
        dtype: One of `TYPES`.

    Raises:
        MissingDependencyError: ctranslate2 is not installed.
    """
    folder.rmdir()  # which its own converter makes
    checkpoint_to_ctranslate2(checkpoint, folder, TYPES[dtype])
    words = []
    for side, each in (("source", checkpoint.text.tokenizer), ("target", checkpoint.output)):
        if isinstance(each, SentencePieceTokenizer):
            shutil.copyfile(each.model, folder / f"{side}.spm")
            words.append(f"pieces of {side}.spm")
        else:
            words.append("words between spaces")
    eos = checkpoint.source_vocab.words[checkpoint.source_vocab.eos]
    yield f"sources are {words[0]} and {eos}, outputs {words[1]}"
    if checkpoint.tokenization.name:
        yield "of sentences as nartk-decode --pretokenized reads them"


def _spec(model: Transformer, specs: Any) -> Any:
    config = model.config
    activations = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
    encoder, decoder = (
        make(
            getattr(config, f"{side}_layers"),
            getattr(config, f"{side}_heads"),
            pre_norm=getattr(config, f"{side}_norm_first"),
            activation=specs.Activation[activations[config.activation]],
            layernorm_embedding=config.norm_embedding,
            relative_attention_bias=getattr(config, f"{side}_positions") == "relative",
            ffn_glu=config.gated_ffn,
            rms_norm=config.norm == "rms",
        )
        for side, make in (
            ("encoder", specs.TransformerEncoderSpec),
            ("decoder", specs.TransformerDecoderSpec),
        )
    )
    stacks: tuple[tuple[Any, TextEncoderModule | DecoderModule, Sequence[Any]], ...] = (
        (encoder, model.encoder, model.encoder.layers),
        (decoder, model.decoder, model.decoder.layers),
    )
    for spec, stack, layers in stacks:
        longest = config.max_source_len if spec is encoder else config.max_target_len
        _set_embedding(spec, stack.embedding, longest)
        _set_norm(spec, "layer_norm", stack.norm)
        for to, layer in zip(spec.layer, layers, strict=True):
            _set_linears(to.self_attention, layer.self_attention.qkv, layer.self_attention.out)
            to.self_attention.queries_scale = layer.self_attention.scale
            if stack.relative is not None:
                to.self_attention.relative_attention_bias = _own(stack.relative.weight)
                to.self_attention.relative_attention_max_distance = np.int32(config.relative_distance)
            _set_norm(to.self_attention, "layer_norm", layer.self_norm)
            if spec is decoder:
                cross = layer.cross_attention
                _set_linears(to.attention, cross.q, cross.kv, cross.out)
                to.attention.queries_scale = cross.scale
                _set_norm(to.attention, "layer_norm", layer.cross_norm)
            if layer.ffn.gate is None:
                _set_linear(to.ffn.linear_0, layer.ffn.up)
            else:
                _set_linear(to.ffn.linear_0, layer.ffn.gate)
                _set_linear(to.ffn.linear_0_noact, layer.ffn.up)
            _set_linear(to.ffn.linear_1, layer.ffn.down)
            _set_norm(to.ffn, "layer_norm", layer.ffn_norm)
    _set_linear(decoder.projection, model.output)
    if config.scale_output:
        decoder.scale_outputs = config.d_model**-0.5
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_eps
    return spec


def _set_embedding(spec: Any, embedding: Embedding, longest: int) -> None:
    words = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    words.weight = _own(embedding.words.weight)
    spec.scale_embeddings = embedding.scale
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _own(position_table(embedding, longest))
    _set_norm(spec, "layernorm_embedding", embedding.norm)


def _set_linears(spec: Any, *linears: nn.Linear) -> None:
    for to, linear in zip(spec.linear, linears, strict=True):
        _set_linear(to, linear)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _own(linear.weight)
    if linear.bias is not None:
        spec.bias = _own(linear.bias)


def _set_norm(spec: Any, name: str, norm: AnyNorm | None) -> None:
    if norm is not None:
        to = getattr(spec, name)
        to.gamma = _own(norm.weight)
        if hasattr(to, "beta"):
            to.beta = _own(norm.get_parameter("bias"))


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32).cpu().contiguous()
