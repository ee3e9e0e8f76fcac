"""Reads the settings of a config.json of Hugging Face, and refuses those that nartk does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from nartk.checkpoints.generation import HONOURED, IRRELEVANT, NEUTRAL
from nartk.checkpoints.names import CONFIG
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import Folder, JsonObject

Settings: TypeAlias = Mapping[str, Any]

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
        architectures: Those `architectures` of config.json that have an encoder and a decoder of words.
        read: The settings that are read, with transformers' defaults; a type where it has none.
        aliases: Other names of these, which transformers lets override them.
        config: Makes the values of `TransformerConfig` from them, except those that the weights tell.
        names: The file's names of the layers, `{i}` the index of one; `a|b` are rows below each other.
        skipped: Rows at the top of position tables that stand for no position.
        computes_positions: True if a file without position tables means sinusoids.
        has_bias: True if the output words may have one.
        ties_words: True if the words' matrices are tied whatever the settings are.
        unused: Tensors that older versions of transformers wrote, and none reads.
        irrelevant: Settings that change no output, beside those of all families.
        start: Default of the start token where the files have none: a setting, and its default.
    """

    architectures: tuple[str, ...]
    read: Settings
    aliases: Mapping[str, str]
    config: Callable[[Settings], JsonObject]
    names: Mapping[str, str]
    skipped: int = 0
    computes_positions: bool = False
    has_bias: bool = True
    ties_words: bool = False
    unused: frozenset[str] = frozenset()
    irrelevant: frozenset[str] = frozenset()
    start: tuple[str, int] | None = None


# BART's names of the sizes of encoder and decoder, by nartk's.
SIZES = {
    f"{side}_{ours}": f"{side}_{theirs}"
    for side in ("encoder", "decoder")
    for ours, theirs in (("layers", "layers"), ("ffn", "ffn_dim"), ("heads", "attention_heads"))
}


def read_family(folder: Folder, family: Family, tell: Callable[[str], None]) -> tuple[JsonObject, JsonObject]:
    """The settings of a folder's config.json, as `read_settings` has them, and the family's configuration."""
    try:
        settings = read_settings(folder.json(CONFIG), family, tell)
        return settings, family.config(settings)
    except (CheckpointError, UnsupportedCheckpointError) as error:
        error.where = str(folder / CONFIG)
        raise


def activation_of(setting: str, values: Settings) -> str:
    name = values[setting]
    if name not in _ACTIVATIONS:
        raise refusal(setting, name, f"known are {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]


def refusal(setting: str, value: object, fix: str, *, why: str = "") -> UnsupportedCheckpointError:
    why = f", {why}" if why else ""
    return UnsupportedCheckpointError(f"the setting {setting!r} is {value!r}{why}", fix=fix)


def read_settings(config: Settings, family: Family, tell: Callable[[str], None]) -> JsonObject:
    """The settings of a config.json that are read, by name.

    Args:
        tell: Receives a line on unknown settings: somebody's own, as transformers takes them.

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
        elif name not in _OTHERS | family.irrelevant and value not in (None, False, 0, "", [], {}):
            if name in _CHANGING:
                why = "which changes what the model outputs and is not supported"
                raise refusal(name, value, WITHOUT, why=why)
            tell(f"{CONFIG}: the setting {name!r} is {value!r}, which is not known and is passed over")
    listed = config.get("architectures")
    names = map(str, listed if isinstance(listed, list) else [listed])
    if listed and set(family.architectures).isdisjoint(names):
        raise refusal("architectures", listed, f"known are {', '.join(family.architectures)}")
    return values
