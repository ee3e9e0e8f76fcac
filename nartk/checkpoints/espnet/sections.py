"""ESPnet's YAML, and the parts of a configuration as nartk's settings: all else is refused by its name.

Defaults are those of ESPnet's classes, of version 202511. What only trains (dropout, SpecAugment, layers that
are left out at random) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nartk.errors import CheckpointError, UnsupportedCheckpointError, requiring
from nartk.files import JsonObject, read_file

MOST_YAML = 5_000_000  # bytes
_MOST_DEPTH = 20
_MOST_VALUES = 120_000  # twice the longest list of words that ESPnet has published
_MOST_CHARACTERS = 1000  # of one value: the time to read a number in base 60 grows with its square
_MOST_RATE = 10**9  # Hz
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)k")


def read_yaml(path: Path, extra: str = "espnet") -> JsonObject:
    """The object in a file of YAML, which has no aliases: none are written, and few bytes of them are many.

    Args:
        extra: Name of nartk's extra that brings PyYAML.

    Raises:
        CheckpointError: It is too large, or no YAML of an object.
        MissingDependencyError: PyYAML is not installed.
    """
    with requiring(f"reading {path.name!r} needs {{name}}, which is not installed", extra):
        import yaml
    where = str(path)
    raw = read_file(path, most=MOST_YAML)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(raw, Loader=loader)):
            if count > _MOST_VALUES:
                raise CheckpointError(f"holds more than {_MOST_VALUES} values", where=where)
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > _MOST_CHARACTERS:
                raise CheckpointError(
                    f"has a value of {len(event.value)} characters, more than {_MOST_CHARACTERS}", where=where
                )
            if isinstance(event, yaml.AliasEvent):
                raise CheckpointError("has an alias, which nobody writes there", where=where)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_DEPTH:
                raise CheckpointError(f"is nested more than {_MOST_DEPTH} deep", where=where)
        found = yaml.load(raw, Loader=loader)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, AttributeError) as error:
        raise CheckpointError(f"no YAML: {' '.join(str(error).split())[:120]}", where=where) from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise CheckpointError("holds no settings by name", where=where)
    return found


@dataclass(frozen=True)
class Section:
    """A part of a configuration.

    Attributes:
        name: Its key, such as ``encoder_conf``.
        sizes: Names of nartk's settings, by ESPnet's, each with ESPnet's default.
        only: Values that nartk knows, by name, the default first if it is one of these, else None before it.
        trains: Names that change nothing but training.
    """

    name: str
    sizes: Mapping[str, tuple[str, int]]
    only: Mapping[str, tuple[object, ...]]
    trains: frozenset[str]

    def read(self, values: JsonObject, where: str) -> dict[str, int]:
        """The sizes under nartk's names.

        Raises:
            UnsupportedCheckpointError: A setting is not known, or has a value that is not.
            CheckpointError: A size is no whole number.
        """
        found = {}
        for key in values:
            if key not in self.sizes and key not in self.only and key not in self.trains:
                raise refused(f"{self.name}.{key}", values[key], where)
        for key, (default, *known) in self.only.items():
            value = values.get(key, default)
            if not any(value == each and type(value) is type(each) for each in known or [default]):
                raise refused(f"{self.name}.{key}", value, where, known or [default])
        for key, (ours, size) in self.sizes.items():
            value = values.get(key, size)
            if type(value) is not int or value < 1:
                raise CheckpointError(f"{self.name}.{key} is {shortened(value)}, not 1 or more", where=where)
            found[ours] = value
        return found


def refused(
    name: str, value: object, where: str, known: list[object] | None = None
) -> UnsupportedCheckpointError:
    """The error of a setting that nartk does not have."""
    fix = "nartk has no such setting" if known is None else f"nartk knows {', '.join(map(repr, known))}"
    return UnsupportedCheckpointError(f"{name} is {shortened(value)}", fix=fix, where=where)


def shortened(value: object) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_inside(name: str) -> bool:
    """Tells whether a name that a manifest gives is of a file in its own folder, on every system."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not set(name) & set("\\:\0")


def part(values: JsonObject, name: str, where: str) -> JsonObject:
    """A part of a configuration, which may be left out; raises CheckpointError if it is no object."""
    found = values.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} is {shortened(found)}, no settings by name", where=where)
    return found


def sample_rate(value: object, where: str) -> int:
    """A sampling rate, such as 16000 or ``16k``, in Hz."""
    found: object = value
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        found = round(float(match[1]) * 1000)
    elif isinstance(value, str) and value.strip().isdecimal():
        found = int(value)
    if type(found) is not int or not 1 <= found <= _MOST_RATE:
        raise CheckpointError(f"frontend_conf.fs is {shortened(value)}, no rate such as 16k", where=where)
    return found


TRAINS = frozenset(
    (
        *("dropout_rate", "positional_dropout_rate", "attention_dropout_rate"),
        *("self_attention_dropout_rate", "src_attention_dropout_rate"),
        *("stochastic_depth_rate", "layer_drop_rate", "gradient_checkpoint_layers"),
        *("padding_idx", "max_pos_emb_len", "use_flash_attn", "positionwise_conv_kernel_size"),
        *("interctc_layer_idx", "interctc_use_conditioning"),  # which `encoder_settings` reads
    )
)
_POSITIONS: dict[str, tuple[object, ...]] = {
    "pos_enc_layer_type": ("rel_pos", "rel_pos", "abs_pos"),
    "input_layer": ("conv2d", "conv2d", "conv2d8"),
    "positionwise_layer_type": ("linear",),
    "zero_triu": (False,),
    "qk_norm": (False,),
}
CONFORMER = Section(
    "encoder_conf",
    {
        "output_size": ("d_model", 256),
        "attention_heads": ("encoder_heads", 4),
        "linear_units": ("encoder_ffn", 2048),
        "num_blocks": ("encoder_layers", 6),
        "cnn_module_kernel": ("conv_kernel", 31),
    },
    {
        **_POSITIONS,
        "selfattention_layer_type": ("rel_selfattn", "rel_selfattn", "selfattn"),
        "rel_pos_type": ("legacy", "latest"),
        "normalize_before": (True,),
        "concat_after": (False,),
        "macaron_style": (False, True),
        "activation_type": ("swish",),
        "use_cnn_module": (True,),
        "ctc_trim": (False,),
    },
    TRAINS,
)
E_BRANCHFORMER = Section(
    "encoder_conf",
    {
        "output_size": ("d_model", 256),
        "attention_heads": ("encoder_heads", 4),
        "linear_units": ("encoder_ffn", 2048),
        "num_blocks": ("encoder_layers", 12),
        "cgmlp_linear_units": ("cgmlp_features", 2048),
        "cgmlp_conv_kernel": ("conv_kernel", 31),
        "merge_conv_kernel": ("merge_kernel", 3),
    },
    {
        **_POSITIONS,
        "attention_layer_type": ("rel_selfattn", "rel_selfattn", "selfattn"),
        "rel_pos_type": ("latest",),
        "use_ffn": (False, True),
        "macaron_ffn": (False, True),
        "ffn_activation_type": ("swish",),
        "use_linear_after_conv": (False,),
        "gate_activation": ("identity",),
    },
    TRAINS,
)
DECODER = Section(
    "decoder_conf",
    {
        "attention_heads": ("decoder_heads", 4),
        "linear_units": ("decoder_ffn", 2048),
        "num_blocks": ("decoder_layers", 6),
    },
    {
        "input_layer": ("embed",),
        "use_output_layer": (True,),
        "normalize_before": (True,),
        "concat_after": (False,),
        "qk_norm": (False,),
    },
    TRAINS,
)
FRONTEND = Section(
    "frontend_conf",
    {"n_fft": ("transform", 512), "hop_length": ("hop", 128), "n_mels": ("bins", 80)},
    {
        "window": ("hann",),
        "center": (True,),
        "normalized": (False,),
        "onesided": (True,),
        "fmin": (None,),
        "fmax": (None,),
        "htk": (False,),
        "apply_stft": (True,),
    },
    frozenset(("fs", "win_length", "frontend_conf")),  # which `features_of` reads
)
