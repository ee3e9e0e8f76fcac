"""Puts a Transformer's weights into a CTranslate2 model folder (OpenNMT's inference engine)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nartk.adapters.names import position_table, renamed, require_attention
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.ctranslate2.text import GATED, NAMES
from nartk.errors import UnsupportedCheckpointError, requiring
from nartk.models.transformer import Transformer
from nartk.processors.text import SentencePieceTokenizer
from nartk.processors.vocabulary import PatternTokenizer
from nartk.serving.scorers import load_network
from nartk.vocab import Vocab

# CTranslate2's names of types.
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
# Layers and projections are lists in its specifications.
_LISTED = {"layer_{i}": "layer.{i}", "attention.linear_": "attention.linear."}
_OF_NORMS = {"weight": "gamma", "bias": "beta"}


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
    require_attention(model.config, "CTranslate2")
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
        elif isinstance(each, PatternTokenizer):
            words.append("words that nothing there cuts")
        else:
            words.append("words between spaces")
    eos = checkpoint.source_vocab.words[checkpoint.source_vocab.eos]
    yield f"sources are {words[0]} and {eos}, outputs {words[1]}"
    if checkpoint.tokenization.name:
        yield "of sentences as nartk-decode --pretokenized reads them"


def _spec(model: Transformer, specs: Any) -> Any:
    config = model.config
    for side in ("encoder", "decoder"):
        if config.has_final_norm(side) and not getattr(config, f"{side}_norm_first"):
            raise UnsupportedCheckpointError(
                f"a norm behind a post-norm {side}, of which CTranslate2's specification has none"
            )
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
            no_final_norm=not config.has_final_norm(side),
        )
        for side, make in (
            ("encoder", specs.TransformerEncoderSpec),
            ("decoder", specs.TransformerDecoderSpec),
        )
    )
    spec = specs.TransformerSpec(encoder, decoder)
    weights = renamed(model, _attributes({**NAMES, **GATED} if config.gated_ffn else NAMES))
    weights |= {f"decoder.projection.{name}": each for name, each in model.output.state_dict().items()}
    for side, longest in (("encoder", config.max_source_len), ("decoder", config.max_target_len)):
        ours, to = getattr(model, side), getattr(spec, side)
        to.scale_embeddings = ours.embedding.scale
        if hasattr(to, "position_encodings"):
            to.position_encodings.encodings = _own(position_table(ours.embedding, longest))
        distances = weights.pop(f"{side}.relative.weight", None)  # of which each layer there has a copy
        for layer, own in zip(to.layer, ours.layers, strict=True):
            layer.self_attention.queries_scale = own.self_attention.scale
            if side == "decoder":
                layer.attention.queries_scale = own.cross_attention.scale
            if distances is not None:
                layer.self_attention.relative_attention_bias = _own(distances)
                layer.self_attention.relative_attention_max_distance = np.int32(config.relative_distance)
    for name, weight in weights.items():
        *path, last = name.split(".")
        at = spec
        for each in path:
            at = at[int(each)] if each.isdecimal() else getattr(at, each)
        at = at[0] if isinstance(at, list) else at  # the encoder's embeddings are one of several
        is_norm = isinstance(at, specs.common_spec.LayerNormSpec)
        setattr(at, _OF_NORMS[last] if is_norm else last, _own(weight))
    if config.scale_output:
        decoder.scale_outputs = config.d_model**-0.5
    spec.config.layer_norm_epsilon = config.norm_eps
    return spec


def _attributes(names: Mapping[str, str]) -> dict[str, str]:
    """Paths of attributes in the specification, by nartk's names of layers."""
    found = {**names, "relative": "relative"}  # of which each layer there has a copy
    del found["embedding.positions"]  # which are set apart
    for name, path in found.items():
        for old, new in _LISTED.items():
            path = path.replace(old, new)
        found[name] = path
    return found


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32).cpu().contiguous()
