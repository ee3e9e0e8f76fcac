"""Model folders of Hugging Face, read as they are: no transformers, and for safetensors no torch.

Every setting of ``config.json`` is read, known to change no output, or refused by name. Weights have the
names of `TransformerConfig.weight_shapes`; each is made of the file's when it is asked for, in fp32 whatever
the file holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk import __version__
from nartk.architectures.transformer import SOURCE_WORDS, TARGET_WORDS, TransformerConfig, both
from nartk.checkpoints.checkpoint import (
    ADAPTER,
    CONFIG,
    FLOATS,
    MOST_CARD,
    WEIGHTS,
    Checkpoint,
    StoredTensors,
    Tensors,
    assemble,
    fact_card,
    pack_floats,
    read_config,
    read_json,
    save_files,
)
from nartk.checkpoints.generation import (
    GENERATION_CONFIG,
    HONOURED,
    IRRELEVANT,
    KEY,
    NEUTRAL,
    ending_words,
    read_generation,
)
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError, requiring_torch
from nartk.files import read_file, sha256
from nartk.processors.hugging_face import hugging_face_processors

PICKLED = "pytorch_model.bin"
_MOST_INDEX = 10_000_000  # bytes of an index of shards
_LONGEST = 100_000  # tokens, of models whose positions have no table
_WORDS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
_BIAS = "final_logits_bias"
_TORCH_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}

_Array = npt.NDArray[Any]
_Settings = Mapping[str, Any]

# Names of transformers' activations. Their tanh approximations of GELU differ by rounding.
_ACTIVATIONS = {
    "relu": "relu",
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(
        ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"
    ),
    **dict.fromkeys(("silu", "swish"), "silu"),
}
# Settings that change no output: of training, of classifiers, of what transformers returns, and what it wrote
# or read before version 4.
_IRRELEVANT = """
    _attn_implementation_autoset _commit_hash _name_or_path _num_labels activation_dropout add_bias_logits
    add_final_layer_norm architectures attention_dropout attn_implementation chunk_size_feed_forward
    classif_dropout classifier_dropout decoder_layerdrop do_blenderbot_90_layernorm dropout dropout_rate dtype
    encoder_layerdrop extra_pos_embeddings finetuning_task force_bos_token_to_be_generated
    gradient_checkpointing id2label init_std initializer_factor label2id model_type n_positions name_or_path
    normalize_before normalize_embedding num_labels output_attentions output_hidden_states output_past prefix
    problem_type replacing_rate return_dict save_step static_position_embeddings student_decoder_layers
    student_encoder_layers task_specific_params tokenizer_class torch_dtype torchscript transformers_version
    use_bfloat16 use_cache
"""
WITHOUT = "use a model without it"
# What is refused whatever its value, with the remedy.
_REFUSED = {
    "auto_map": ("code of its own", f"{WITHOUT}; nartk runs no code of a model folder"),
    "quantization_config": (
        "quantised weights",
        "name the model that it was made of; nartk quantises itself",
    ),
}
# Settings of transformers that some versions read and that change the network, where they have a value.
_CHANGING = frozenset(["add_cross_attention", "per_layer_config", "pruned_heads", "tie_encoder_decoder"])
_REQUIRED = {"is_encoder_decoder": True, "is_decoder": False}
# Others are settings of `generate`, which older folders have in config.json.
_OTHERS = frozenset([*_IRRELEVANT.split(), *_REQUIRED, *HONOURED, *IRRELEVANT, *NEUTRAL])


@dataclass(frozen=True)
class Family:
    """A `model_type` of config.json.

    Attributes:
        architectures: Of `architectures` in config.json, those with an encoder and a decoder of words.
        read: The settings that are read, with transformers' defaults; a type where it has none.
        aliases: Other names of these, which transformers lets override them.
        config: What `TransformerConfig` stores of them, but for what the weights tell.
        names: The file's names of the layers, `{i}` the index of one; `a|b` are rows below each other.
        skipped: Rows at the top of position tables that stand for no position.
        computes_positions: Whether a file without position tables means sinusoids.
        has_bias: Whether the output words may have one.
        ties_words: Whether the words' matrices are tied whatever the settings are.
        unused: Tensors that older versions of transformers wrote, and none reads.
        irrelevant: Settings that change no output, beside those of all families.
        start: What outputs begin after where the files have nothing: a setting, and its default.
    """

    architectures: tuple[str, ...]
    read: _Settings
    aliases: Mapping[str, str]
    config: Callable[[_Settings], dict[str, Any]]
    names: Mapping[str, str]
    skipped: int = 0
    computes_positions: bool = False
    has_bias: bool = True
    ties_words: bool = False
    unused: frozenset[str] = frozenset()
    irrelevant: frozenset[str] = frozenset()
    start: tuple[str, int] | None = None


def _of_fairseq(
    values: _Settings, *, norm_first: bool, positions: str, norm_embedding: bool
) -> dict[str, Any]:
    """The configuration of a family whose settings are fairseq's."""
    sides = {
        f"{side}_{ours}": values[f"{side}_{theirs}"]
        for side in ("encoder", "decoder")
        for ours, theirs in (("layers", "layers"), ("ffn", "ffn_dim"), ("heads", "attention_heads"))
    }
    longest = values["max_position_embeddings"]
    return {
        **sides,
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


def _of_marian(values: _Settings) -> dict[str, Any]:
    found = _of_fairseq(values, norm_first=False, positions="learned", norm_embedding=False)
    target = values["decoder_vocab_size"]
    if not values["share_encoder_decoder_embeddings"] and target:
        found["tgt_vocab"] = target
    return found


def _of_m2m(values: _Settings) -> dict[str, Any]:
    if values["pad_token_id"] != 1:  # positions begin behind it
        raise refusal("pad_token_id", values["pad_token_id"], "known is 1")
    return _of_fairseq(values, norm_first=True, positions="sinusoidal", norm_embedding=False)


def _of_t5(values: _Settings, *, scales: bool) -> dict[str, Any]:
    """The configuration of a T5.

    Args:
        scales: Whether a model with one matrix for all words scales what the output layer reads.
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


def activation_of(setting: str, values: _Settings) -> str:
    name = values[setting]
    if name not in _ACTIVATIONS:
        raise refusal(setting, name, f"known are {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]


def refusal(setting: str, value: object, fix: str, *, why: str = "") -> UnsupportedCheckpointError:
    why = f", {why}" if why else ""
    return UnsupportedCheckpointError(f"the setting {setting!r} is {value!r}{why}", fix=fix)


_FAIRSEQ: dict[str, Any] = {
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
_T5: dict[str, Any] = {
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
        unused=_VERSIONS | {_BIAS} | {f"{side}.embed_positions.weights" for side in ("encoder", "decoder")},
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


def read_settings(config: _Settings, family: Family, tell: Callable[[str], None]) -> dict[str, Any]:
    """The settings of a config.json that are read, by name.

    Args:
        tell: Is told in a line of settings that are not known: of somebody's own, as transformers takes them.

    Raises:
        UnsupportedCheckpointError: A setting changes the output, and is not supported.
        CheckpointError: A value is of a wrong type.
    """
    values = {name: None if isinstance(value, type) else value for name, value in family.read.items()}
    aliases = [name for name in config if name in family.aliases]  # they come last
    for name in [*(name for name in config if name not in family.aliases), *aliases]:
        value, setting = config[name], family.aliases.get(name, name)
        if name in _REFUSED:
            what, fix = _REFUSED[name]
            raise UnsupportedCheckpointError(f"{what} ({name!r})", fix=fix)
        if name in _REQUIRED and value is not _REQUIRED[name]:
            raise refusal(name, value, "name a model with an encoder and a decoder")
        if setting in values:
            default = family.read[setting]
            wanted = default if isinstance(default, type) else type(default)
            absent = value is None and isinstance(default, type)
            if not absent and type(value) is not wanted and not (wanted is float and type(value) is int):
                raise CheckpointError(f"the setting {name!r} is {value!r}, not of type {wanted.__name__}")
            values[setting] = value
        elif name not in _OTHERS | family.irrelevant and value not in (
            None,
            False,
            0,
            "",
            [],
            {},
        ):
            if name in _CHANGING:
                why = "which changes what the model outputs and is not supported"
                raise refusal(name, value, WITHOUT, why=why)
            tell(f"{CONFIG}: the setting {name!r} is {value!r}, which is not known and is passed over")
    listed = config.get("architectures")
    if listed and not set(family.architectures) & set(
        map(str, listed if isinstance(listed, list) else [listed])
    ):
        raise refusal("architectures", listed, f"known are {', '.join(family.architectures)}")
    return values


class _PickledTensors(Tensors):
    """The tensors of a file of torch's, which is read without running anything in it."""

    def __init__(self, path: Path) -> None:
        with requiring_torch(f"reading {path.name!r}"):
            from nartk.adapters.fairseq import load_tensors

        self._path, self._tensors = path, load_tensors(path)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        types = {f"torch.{name}": type for name, type in _TORCH_TYPES.items()}
        self.types = {name: types.get(str(tensor.dtype), "") for name, tensor in self._tensors.items()}

    def __getitem__(self, name: str) -> _Array:
        return self._tensors[name].float().numpy()

    @property
    def nbytes(self) -> int:
        """Of the file."""
        return self._path.stat().st_size

    def digest(self) -> str:
        """SHA-256 of the file; raises CheckpointError where a tensor holds NaN or infinity."""
        for name, tensor in self._tensors.items():
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(f"tensor {name[:80]!r} holds NaN or infinity", where=str(self._path))
        return sha256(self._path)


class Files:
    """The tensors of the files of a folder, by their names without ``model.``, which not all files have."""

    def __init__(self, folder: Path, names: Iterable[str], read: Callable[[Path], Any]) -> None:
        self.where = str(folder)
        self.files = {name: read(folder / name) for name in names}
        self._at = {
            name.removeprefix("model."): (file, name) for file in self.files.values() for name in file.shapes
        }
        self.shapes = {name: file.shapes[full] for name, (file, full) in self._at.items()}
        self.types = {name: file.types[full] for name, (file, full) in self._at.items()}

    def __getitem__(self, name: str) -> _Array:
        file, full = self._at[name]
        found: _Array = file[full]
        return found

    def are_equal(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same numbers."""
        return one == other or (
            self.shapes[one] == self.shapes[other] and np.array_equal(self[one], self[other])
        )

    def require(self, names: Collection[str], shape: tuple[int, ...]) -> None:
        """Raises CheckpointError unless there are tensors of these names, of floating point and the shape."""
        for name in names:
            if name not in self.shapes:
                raise self._error(f"tensor {name!r} is missing")
            full = self._at[name][1]
            if self.shapes[name] != shape:
                raise self._error(
                    f"tensor {full!r} has shape {[*self.shapes[name]]}, the configuration says {[*shape]}"
                )
            if self.types[name] not in FLOATS:
                raise self._error(f"tensor {full!r} has type {self.types[name]}, which is no floating point")

    def refuse_others(self, names: Collection[str]) -> None:
        """Raises CheckpointError where there is a tensor of another name."""
        extra = self.shapes.keys() - names
        if extra:
            raise self._error(f"tensor {self._at[min(extra)][1]!r} is not in the configuration")

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=self.where)


class MappedTensors(Tensors):
    """The weights of a model under nartk's names, each made of a file's when it is asked for.

    Args:
        parts: Of each weight the file's tensors, whose rows lie below each other.
        skipped: Of some weights, how many rows at the top of the file's are left out.
        tables: Weights that the file does not have.
    """

    def __init__(
        self,
        files: Files,
        shapes: Mapping[str, tuple[int, ...]],
        parts: Mapping[str, Sequence[str]],
        skipped: Mapping[str, int],
        tables: Mapping[str, _Array],
    ) -> None:
        self._files, self._parts, self._skipped, self._tables = files, parts, skipped, tables
        self.shapes = dict(shapes)
        self.types = {name: files.types[each[0]] for name, each in parts.items()}
        self.types |= dict.fromkeys(tables, "F32")

    def __getitem__(self, name: str) -> _Array:
        if name in self._tables:
            return self._tables[name]
        found = [self._files[each] for each in self._parts[name]]
        array = found[0] if len(found) == 1 else np.concatenate(found)
        return array[self._skipped.get(name, 0) :].reshape(self.shapes[name])

    def digest(self) -> str:
        """What changes when a file does; raises CheckpointError where a tensor holds NaN or infinity."""
        return " ".join(file.digest() for file in self._files.files.values())

    @property
    def nbytes(self) -> int:
        """Of the files."""
        return sum(file.nbytes for file in self._files.files.values())


# The reader of models that read no text, by their model_type.
SPEECH: dict[str, str] = {"whisper": "nartk.adapters.hf_whisper"}


def read_network(
    folder: Path, *, allow_pickle: bool = False, tell: Callable[[str], None] = warnings.warn
) -> tuple[TransformerConfig, MappedTensors]:
    """The configuration and the weights of a folder.

    Args:
        tell: As `read_settings` has it.

    Raises:
        UnsupportedCheckpointError: The family or a setting is not known.
        CheckpointError: A file is missing or corrupt, or weights are missing, left over, or of another shape
            than the settings have; or they are pickled, without `allow_pickle`.
        MissingDependencyError: They are pickled, and torch is not installed.
    """
    if os.path.isfile(folder / ADAPTER):
        raise UnsupportedCheckpointError(
            f"an adapter ({ADAPTER})",
            fix="merge it into its model, as peft's merge_and_unload does, and save that",
            where=str(folder),
        )
    config = read_json(folder / CONFIG)
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedCheckpointError(
            f"the model_type {name!r}",
            fix=f"known are {', '.join(sorted([*FAMILIES, *SPEECH]))}",
            where=str(folder / CONFIG),
        )
    family = FAMILIES[name]
    try:
        settings = read_settings(config, family, tell)
        values = family.config(settings)
    except (CheckpointError, UnsupportedCheckpointError) as error:
        error.where = str(folder / CONFIG)
        raise
    return _network(open_tensors(folder, allow_pickle=allow_pickle), family, settings, values)


def open_tensors(folder: Path, *, allow_pickle: bool) -> Files:
    """The tensors of a folder, of safetensors before pickles, of one file before several."""
    for name, read in ((WEIGHTS, StoredTensors), (PICKLED, _PickledTensors)):
        index = folder / f"{name}.index.json"
        if os.path.isfile(folder / name):
            names = {name}
        elif os.path.isfile(index):
            names = _shards(index)
        else:
            continue
        if name == PICKLED and not allow_pickle:
            raise CheckpointError(
                f"its weights are pickled ({min(names)})",
                fix="nartk-convert --allow-pickle reads them without running what they hold",
                where=str(folder),
            )
        return Files(folder, sorted(names), read)
    raise CheckpointError(
        f"holds neither {WEIGHTS} nor {PICKLED}", fix="download the whole folder again", where=str(folder)
    )


def _shards(index: Path) -> set[str]:
    """The files that an index names, all of which are there."""
    names = read_json(index, most=_MOST_INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise CheckpointError("'weight_map' does not name the files of tensors", where=str(index))
    for name in sorted(set(names.values())):
        if set(name) & set("/\\:\0") or not os.path.isfile(index.with_name(name)):
            raise CheckpointError(
                f"the file {name!r} is missing", fix="download the whole folder again", where=str(index)
            )
    return set(names.values())


def _network(
    files: Files, family: Family, settings: _Settings, values: dict[str, Any]
) -> tuple[TransformerConfig, MappedTensors]:
    """The configuration of settings, already as `values`, and weights."""
    words = dict(zip((SOURCE_WORDS, *TARGET_WORDS[:2]), _words(files, family, settings), strict=True))
    source, target, output = words.values()
    shares = {(True, True): "all", (True, False): "inputs", (False, True): "decoder", (False, False): "none"}
    values["share_embeddings"] = shares[source == target, target == output]
    values["output_bias"] = family.has_bias and _BIAS in files.shapes and bool(files[_BIAS].any())
    try:
        config = TransformerConfig.from_dict(values)
    except UsageError as error:
        raise CheckpointError(error.message, where=files.where) from error
    shapes = config.weight_shapes()
    parts: dict[str, Sequence[str]] = {}
    skipped: dict[str, int] = {}
    tables: dict[str, _Array] = {}
    for name, shape in shapes.items():
        wanted = shape
        if name in words:
            names = [words[name]]
        elif name == "output.bias":
            names, wanted = [_BIAS], (1, *shape)
        else:
            names = names_of(name, family.names, gated=config.gated_ffn)
            wanted = (shape[0] // len(names), *shape[1:])
        if name.endswith("positions.weight"):
            if family.computes_positions and names[0] not in files.shapes:
                tables[name] = _sinusoids(*shape)
                continue
            skipped[name] = family.skipped
            wanted = (shape[0] + family.skipped, *shape[1:])
        files.require(names, wanted)
        parts[name] = names
    bias = {_BIAS} if family.has_bias else set()
    files.refuse_others({*_WORDS, *bias, *family.unused, *chain.from_iterable(parts.values())})
    return config, MappedTensors(files, shapes, parts, skipped, tables)


def _words(files: Files, family: Family, settings: _Settings) -> list[str]:
    """The names of the matrices of source, target and output words; those that are equal have one.

    Matrices that are tied are in some files one tensor, of any of their names, in others several.
    """
    shared, source, target, output = _WORDS
    tied = family.ties_words or settings["tie_word_embeddings"]
    if not settings.get("share_encoder_decoder_embeddings", True):
        choices = [[source], [target, output][: 1 + tied], [output, target][: 1 + tied]]
    elif tied:
        choices = [[each, *_WORDS] for each in (source, target, output)]
    else:
        choices = [[source, shared], [target, shared], [output]]
    found: list[str] = []
    for names in choices:
        name = next((each for each in names if each in files.shapes), names[0])
        files.require([name], files.shapes.get(name, ()))
        found.append(next((each for each in found if files.are_equal(each, name)), name))
    return found


def names_of(name: str, names: Mapping[str, str], *, gated: bool) -> list[str]:
    """The file's names of a weight of ours but words, such as ``encoder_layers.0.ffn.up.bias``."""
    layer, _, suffix = name.rpartition(".")
    side, _, part = layer.partition("_")
    index = ""
    if part.startswith("layers."):
        _, index, part = part.split(".", 2)
    ffn, up = (1 if side == "encoder" else 2), ("wi_1" if gated else "wi")
    path, _, last = f"{side}.{names[part].format(i=index, ffn=ffn, up=up)}".rpartition(".")
    return [f"{path}.{each}.{suffix}" for each in last.split("|")]


def _sinusoids(count: int, features: int) -> npt.NDArray[np.float32]:
    """The positions of Marian and Pegasus, sines then cosines, [count, features]."""
    angles = np.arange(count)[:, None] * 10000.0 ** -(np.arange(0, features, 2) / features)
    return np.concatenate([np.sin(angles), np.cos(angles[:, : features // 2])], 1).astype(np.float32)


def read_hugging_face(
    folder: Path,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Reads a folder as `nartk.checkpoints.checkpoint.load_checkpoint` does one of nartk's.

    Args:
        source_lang, target_lang: Of the lines and of the outputs; None: the tokenizer's and the model's own.
        source_prefix: Put before each line.
        allow_pickle: Whether weights may be pickled; what they hold is not run.

    Raises:
        As `read_network`, and as the processors of `nartk.processors.hugging_face`.
    """
    found = read_json(folder / CONFIG).get("model_type") if os.path.isfile(folder / CONFIG) else None
    if isinstance(found, str) and found in SPEECH:
        reader = import_module(SPEECH[found])
        speech: Checkpoint = reader.read_speech(
            folder,
            source_lang=source_lang,
            target_lang=target_lang,
            source_prefix=source_prefix,
            allow_pickle=allow_pickle,
        )
        return speech
    notices: list[str] = []
    network, tensors = read_network(folder, allow_pickle=allow_pickle, tell=notices.append)
    config = read_json(folder / CONFIG)
    own = folder / GENERATION_CONFIG
    generation_config = read_json(own) if own.is_file() else None
    family = FAMILIES[config["model_type"]]
    start = partial(start_token_of, config, generation_config, family.start, folder)
    text = hugging_face_processors(
        folder,
        config["model_type"],
        ends=ending_words(config, generation_config),
        start=start,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
    )
    generation = read_generation(config, generation_config, tell=notices.append)
    # The language chosen takes the place of the model's own; decoding begins outputs with it, not the text.
    first, start_token = text.output["first_word"], text.output["start_word"]
    if first is not None:
        generation["forced_bos"] = first
    if start_token is None:
        start_token = start()
    beside = {
        "special_ids": asdict(text.specials),
        "start_token": start_token,
        "input": text.input,
        "output": {**text.output, "first_word": None},
        KEY: generation,
    }
    config_of = {"architecture": "transformer", "model": asdict(network), **beside}
    found = as_checkpoint(folder, config_of, tensors, text.files, also=(own,))
    return replace(found, notices=(*text.notices, *notices))


def as_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    tensors: MappedTensors,
    files: Mapping[str, Path],
    *,
    also: Sequence[Path],
) -> Checkpoint:
    """The checkpoint of a folder, of a configuration as nartk's has it.

    Args:
        files: Of the processors, by name.
        also: What its fingerprint covers besides, if it is there.
    """
    beside = {key: value for key, value in config.items() if key not in ("architecture", "model")}
    found = sorted(path for path in (folder / CONFIG, *also, *files.values()) if path.is_file())
    digests = [tensors.digest(), json.dumps(beside), *map(sha256, found)]
    return assemble(
        folder,
        config,
        tensors,
        files=files,
        fingerprint=hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12],
    )


def start_token_of(
    config: _Settings, generation_config: _Settings | None, default: tuple[str, int] | None, folder: Path
) -> int:
    """What outputs begin after, as `generate` has it, and where that finds nothing, what the files have.

    Args:
        config, generation_config: What the files of these names hold; None: there is no such file.
        default: A setting of the family, and its default.
    """
    given = [] if generation_config is None else [generation_config]
    for values in (*given, config):
        for key in ("decoder_start_token_id", "bos_token_id"):
            found = values.get(key)
            if isinstance(found, list) and len(found) == 1:
                (found,) = found
            if type(found) is int:
                return found
    if default is None:
        raise CheckpointError("'decoder_start_token_id' is missing", where=str(folder))
    name, fallback = default
    value = found = config.get(name)
    if isinstance(found, list) and found:
        found = found[0]
    if found is None:
        return fallback
    if type(found) is not int:
        raise CheckpointError(f"{name!r} is {value!r}, not the id of a word", where=str(folder))
    return found


def convert(
    checkpoint: Checkpoint, output: Path, *, dtype: str = "fp32", card: str | None = None
) -> TransformerConfig:
    """Writes what `read_hugging_face` has read as a native folder.

    Args:
        dtype: Type of the stored weights: fp32, bf16 or fp16.
        card: Text of ``card.md``; by default facts, and the folder's own card.

    Raises:
        CheckpointError: The vocabulary does not fit, or a number is too large for the type.
        OutputError: The folder cannot be written.
    """
    config, tensors = read_config(checkpoint), checkpoint.tensors
    shared = config.shared_weights()
    save_files(
        output,
        weights=pack_floats(tensors, [name for name in tensors if name not in shared], dtype),
        config={
            "architecture": checkpoint.architecture,
            "model": asdict(config),
            "aliases": shared,
            **checkpoint.beside,
        },
        files=checkpoint.files,
        card=_card(checkpoint.folder, config, dtype) if card is None else card,
    )
    return config


def _card(folder: Path, config: TransformerConfig, dtype: str) -> str:
    own = folder / "README.md"
    text = read_file(own, most=MOST_CARD).decode("utf-8", "replace") if own.is_file() else ""
    facts = {
        "Architecture": read_json(folder / CONFIG)["model_type"],
        "Layers": f"{config.encoder_layers} encoder, {config.decoder_layers} decoder",
        "Vocabulary": f"{config.src_vocab} source, {config.tgt_vocab} target",
        "Stored as": dtype,
        "Converted from": folder.resolve().name,
        "Converted by": f"nartk {__version__}",
        "Training data and licence": "in the card below" if text else "not stated",
    }
    return fact_card(facts) + (f"\n{text}" if text else "")
