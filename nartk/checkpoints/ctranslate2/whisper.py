"""Whisper in folders of CTranslate2, as faster-whisper's models are.

Such a folder is read as the one of transformers that it was made of: sizes come from the tensors, ids from
the vocabulary, and the tensors get transformers' names. What transformers' ``generation_config.json`` says
and the folder does not is as OpenAI's models have it.
"""

from __future__ import annotations

from typing import Any

from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.ctranslate2.binary import BinaryTensors
from nartk.checkpoints.hugging_face.speech import read_speech
from nartk.checkpoints.hugging_face.tensors import Files
from nartk.checkpoints.names import BINARY, CONFIG, GENERATION_CONFIG
from nartk.checkpoints.tensors import Array, Tensors
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import DescribedFolder, Folder, JsonObject
from nartk.processors.ctranslate2 import read_vocabulary

NETWORK = "WhisperSpec"
_MULTILINGUAL = 51_865  # words of the smallest model of several languages; those of English have one less
_LATEST_START = 50  # steps of 0.02 s: the first time of an output is 1 s at most
# CTranslate2's names of layers, by transformers'; of fused ones, with the rows that each has.
_LAYERS = {
    "self_attn.q_proj": ("self_attention/linear_0", 0, 3),
    "self_attn.k_proj": ("self_attention/linear_0", 1, 3),
    "self_attn.v_proj": ("self_attention/linear_0", 2, 3),
    "self_attn.out_proj": ("self_attention/linear_1", 0, 1),
    "self_attn_layer_norm": ("self_attention/layer_norm", 0, 1),
    "encoder_attn.q_proj": ("attention/linear_0", 0, 1),
    "encoder_attn.k_proj": ("attention/linear_1", 0, 2),
    "encoder_attn.v_proj": ("attention/linear_1", 1, 2),
    "encoder_attn.out_proj": ("attention/linear_2", 0, 1),
    "encoder_attn_layer_norm": ("attention/layer_norm", 0, 1),
    "fc1": ("ffn/linear_0", 0, 1),
    "fc2": ("ffn/linear_1", 0, 1),
    "final_layer_norm": ("ffn/layer_norm", 0, 1),
}
# Words that generation_config.json names by their ids.
_NAMED = {
    "decoder_start_token_id": "<|startoftranscript|>",
    "eos_token_id": "<|endoftext|>",
    "no_timestamps_token_id": "<|notimestamps|>",
}
_NORMS = {"gamma": "weight", "beta": "bias"}
# Numbers of the network, with what they are in every Whisper; None: any number, which changes no output.
_ATTRIBUTES = {
    "activation": 3,  # GELU
    "alibi": 0,
    "alignment_heads": None,
    "alignment_layer": None,
    "num_heads": None,
    "pre_norm": 1,
    "scale_embeddings": 0,
    "start_from_zero_embedding": 0,
}


class _Renamed(Tensors):
    """The tensors of a file under transformers' names, each with the rows of one of theirs."""

    def __init__(self, file: BinaryTensors) -> None:
        self._file = file
        self.shapes, self.types = {}, {}
        self._rows: dict[str, tuple[str, int]] = {}  # name in the file, and the first row, by name
        for name in file.names:
            own = file.original(name)
            shape = file.shapes[own]
            if shape == ():
                continue
            for renamed, index, parts in _transformers_names(name):
                rows = shape[0] // parts
                self.shapes[renamed], self.types[renamed] = (rows, *shape[1:]), file.types[own]
                self._rows[renamed] = own, index * rows

    def __getitem__(self, name: str) -> Array:
        own, first = self._rows[name]
        return self._file[own][first : first + self.shapes[name][0]]

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    def digest(self) -> str:
        return self._file.digest()


def _transformers_names(name: str) -> list[tuple[str, int, int]]:
    """The names of transformers' for a tensor, with its part of the rows and their number; or its own."""
    *path, last = name.split("/")
    suffix = _NORMS.get(last, last)
    if len(path) > 2 and path[1].startswith("layer_"):
        layer, part = f"{path[0]}.layers.{path[1].removeprefix('layer_')}", "/".join(path[2:])
        found = [(each, i, count) for each, (own, i, count) in _LAYERS.items() if own == part]
        if found:
            return [(f"{layer}.{each}.{suffix}", i, count) for each, i, count in found]
    where = {"position_encodings": "embed_positions", "embeddings": "embed_tokens"}
    if path == ["decoder", "projection"]:
        return [(f"proj_out.{last}", 0, 1)]
    named = ".".join(where.get(each, each) for each in path)
    return [(f"{named}.{'weight' if last == 'encodings' else suffix}", 0, 1)]


def describe_whisper(folder: Folder, file: BinaryTensors) -> DescribedFolder:
    """The folder with the config.json and generation_config.json that transformers has of the model.

    Raises:
        UnsupportedCheckpointError: The network is no Whisper of OpenAI's form.
        CheckpointError: A file is missing, corrupt, or another model's.
    """
    where = str(folder / BINARY)
    for name in file.names:
        wanted = _ATTRIBUTES.get(name.rpartition("/")[2], 0)
        is_number = file.shapes[file.original(name)] == ()
        if is_number and wanted is not None and file.attribute(name) != wanted:
            raise UnsupportedCheckpointError(
                f"{name!r} is {file.attribute(name):g}, of a Whisper {wanted}",
                fix="name another model",
                where=where,
            )
    config, generation = _settings(folder, file, read_vocabulary(folder, "vocabulary"), where)
    return DescribedFolder(folder.path, {CONFIG: config, GENERATION_CONFIG: generation})


def read_whisper(folder: Folder, file: BinaryTensors, **given: Any) -> Checkpoint:
    """Reads a folder as `nartk.checkpoints.hugging_face.speech.read_speech` does.

    Args:
        given: Its other arguments.

    Raises:
        UnsupportedCheckpointError: Same as in `describe_whisper`.
        CheckpointError: Same; or the tokenizer is another model's.
        UsageError: The model does not know a language.
    """
    described, where = describe_whisper(folder, file), str(folder / BINARY)
    generation, tensors = described.json(GENERATION_CONFIG), _Renamed(file)
    for name in [each for each in tensors if each.endswith("k_proj.bias")]:
        if tensors[name].any():
            raise UnsupportedCheckpointError(f"{name!r} is not 0", fix="name another model", where=where)
        del tensors.shapes[name], tensors.types[name]
    if not folder.has("tokenizer.json"):
        small = "openai/whisper-tiny" + ("" if generation["is_multilingual"] else ".en")
        raise CheckpointError(
            "has no tokenizer.json", fix=f"copy that of {small} into the folder", where=str(folder)
        )
    found = read_speech(described, files=Files(where, [tensors]), **given)
    for name, word in _NAMED.items():
        own = found.target_vocab.words[generation[name]]
        if own != word:
            raise CheckpointError(
                f"its word {generation[name]} is {own!r}, that of the vocabulary {word!r}",
                fix="take the tokenizer.json of this model",
                where=str(folder / "tokenizer.json"),
            )
    return found


def _settings(
    folder: Folder, file: BinaryTensors, words: list[str], where: str
) -> tuple[JsonObject, JsonObject]:
    """The config.json and generation_config.json that transformers has of the model."""
    own = folder.optional_json(CONFIG) or {}
    ids = {word: id for id, word in enumerate(words)}

    def shape(name: str, rank: int) -> tuple[int, ...]:
        found = file.shapes.get(file.original(name), ())
        if len(found) != rank:
            raise CheckpointError(f"tensor {name!r} has shape {[*found]}, of {rank} dimensions", where=where)
        return found

    def id_of(word: str) -> int:
        if word not in ids:
            raise CheckpointError(f"the vocabulary lacks {word}", where=str(folder))
        return ids[word]

    def listed(name: str) -> list[int]:
        found = own.get(name) or []
        if not isinstance(found, list) or not all(type(id) is int and id < len(words) for id in found):
            raise CheckpointError(f"{name!r} is {found!r}, not ids of words", where=str(folder / CONFIG))
        return found

    width, bins, _ = shape("encoder/conv1/weight", 3)
    rows, _ = shape("decoder/embeddings/weight", 2)
    if len(words) != rows:
        raise CheckpointError(f"the vocabulary has {len(words)} words, the model {rows}", where=str(folder))
    eos, multilingual = id_of(_NAMED["eos_token_id"]), len(words) >= _MULTILINGUAL
    longest = shape("decoder/position_encodings/encodings", 2)[0]
    config: JsonObject = {
        "model_type": "whisper",
        "vocab_size": rows,
        "num_mel_bins": bins,
        "d_model": width,
        "max_source_positions": shape("encoder/position_encodings/encodings", 2)[0],
        "max_target_positions": longest,
        "tie_word_embeddings": "decoder/projection/weight" in file.aliases,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), eos),
    }
    for side in ("encoder", "decoder"):
        layers = {name.split("/")[1] for name in file.names if name.startswith(f"{side}/layer_")}
        heads = file.attribute(f"{side}/num_heads", 0.0)
        config |= {
            f"{side}_layers": len(layers - {"layer_norm"}),
            f"{side}_ffn_dim": shape(f"{side}/layer_0/ffn/linear_0/weight", 2)[0],
            f"{side}_attention_heads": int(heads or 0),
        }
    generation: JsonObject = {
        **{name: id_of(word) for name, word in _NAMED.items()},
        "max_initial_timestamp_index": _LATEST_START,
        "max_length": longest,
        "suppress_tokens": listed("suppress_ids"),
        "begin_suppress_tokens": listed("suppress_ids_begin"),
        "is_multilingual": multilingual,
        "alignment_heads": own.get("alignment_heads"),
    }
    if multilingual:
        generation["lang_to_id"] = {words[id]: id for id in listed("lang_ids")}
        generation["task_to_id"] = {name: id_of(f"<|{name}|>") for name in ("transcribe", "translate")}
    return config, generation
