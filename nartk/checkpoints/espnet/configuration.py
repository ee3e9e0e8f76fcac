"""The configuration of one of ESPnet's models as nartk's: its network, features and words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nartk.checkpoints.espnet import owsm
from nartk.checkpoints.espnet.sections import (
    CONFORMER,
    DECODER,
    E_BRANCHFORMER,
    FRONTEND,
    Section,
    part,
    refused,
    sample_rate,
    shortened,
)
from nartk.data.audio.features import ESPNET, STORED
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import JsonObject

PAD = -1  # a word that ESPnet's dictionary has not
_BLANK, _UNK, _END, _SPACE = "<blank>", "<unk>", "<sos/eos>", "<space>"
_MOST_TOKENS = 1_000_000
_NORM_EPS, _BATCH_NORM_EPS = 1e-12, 1e-5  # of ESPnet's LayerNorm, and of torch's BatchNorm1d
_SUBSAMPLINGS = {"conv2d": 4, "conv2d8": 8}
# With the name of the attention's type, nartk's block, and whether intermediate CTC reads normed layers.
_ENCODERS: dict[str, tuple[Section, str, str, bool]] = {
    "conformer": (CONFORMER, "selfattention_layer_type", "conformer", True),
    "e_branchformer": (E_BRANCHFORMER, "attention_layer_type", "e-branchformer", False),
}
_CTC_ENCODERS = {owsm.ENCODER: (owsm.CTC_ENCODER, *_ENCODERS["e_branchformer"][1:])}
_RECOGNIZERS: dict[str, tuple[object, ...]] = {
    "model": ("espnet", None),
    "preencoder": (None,),
    "postencoder": (None,),
    "encoder": tuple(_ENCODERS),
    "decoder": ("transformer", None),
    "frontend": ("default", None),
    "normalize": ("global_mvn", "utterance_mvn", None),
    "token_type": ("bpe", "char", "word"),
}
_POSITIONS = {("rel_pos", "rel_selfattn"): "transformer-xl", ("abs_pos", "selfattn"): "sinusoidal"}
# What model_conf says of decoding; all else there is of training.
_SYMBOLS = {"sym_space": _SPACE, "sym_blank": _BLANK, "sym_sos": _END, "sym_eos": _END}


def require_known(values: JsonObject, where: str) -> None:
    """Raises UnsupportedCheckpointError unless a configuration is of a model that is read."""
    if "token_list" not in values or "encoder" not in values:
        raise UnsupportedCheckpointError("no configuration of ESPnet's speech recognition", where=where)
    reads_prompts = is_owsm(values)
    for name, known in (owsm.KNOWN if reads_prompts else _RECOGNIZERS).items():
        if values.get(name) not in [*known]:  # a list: the value may be of any type
            raise refused(name, values.get(name), where, [*known])
    model = part(values, "model_conf", where)
    for name, symbol in (owsm.SYMBOLS if reads_prompts else _SYMBOLS).items():
        if model.get(name, symbol) != symbol:
            raise refused(f"model_conf.{name}", model[name], where, [symbol])
    if not reads_prompts and ctc_weight(values, where) == 0:
        raise UnsupportedCheckpointError(
            "model_conf.ctc_weight is 0, of a model without CTC", fix="nartk's has a CTC head", where=where
        )


def is_owsm(values: JsonObject) -> bool:
    """Tells whether a configuration is of OWSM-CTC, which reads words beside sound."""
    return values.get("model") == owsm.MODEL


def ctc_weight(values: JsonObject, where: str) -> float:
    """The share of CTC in training; at 1 a model has no decoder."""
    found = part(values, "model_conf", where).get("ctc_weight", 0.5)
    if type(found) not in (int, float) or not 0 <= found <= 1:
        raise CheckpointError(f"model_conf.ctc_weight is {shortened(found)}, not in [0, 1]", where=where)
    return float(found)


def network_of(values: JsonObject, features: int, where: str) -> tuple[str, JsonObject]:
    """The architecture and its settings, but for words, of a model that reads frames of so many features."""
    reads_prompts = is_owsm(values)
    section, attention, block, normed = (_CTC_ENCODERS if reads_prompts else _ENCODERS)[values["encoder"]]
    given = part(values, "encoder_conf", where)
    settings: JsonObject = {
        **section.read(given, where),
        "encoder_block": block,
        "encoder_positions": _positions(given, attention, where),
        "subsampling": _SUBSAMPLINGS[given.get("input_layer", section.only["input_layer"][0])],
        "input_features": features,
        "norm_eps": _NORM_EPS,
        "batch_norm_eps": _BATCH_NORM_EPS,
        **_intermediate(given, normed, where),
    }
    if reads_prompts:
        settings |= owsm.prompt_of(values, settings["encoder_layers"], where)
        learn = owsm.transcript_layers(values, where)
        return "owsm_ctc", {**settings, "transcript_ctc": min(learn, _count(settings["intermediate_ctc"]))}
    if ctc_weight(values, where) == 1 or values.get("decoder") is None:
        return "owsm_ctc", settings
    settings |= DECODER.read(part(values, "decoder_conf", where), where)
    # ESPnet computes sines and cosines side by side, of positions from 0.
    settings |= {"decoder_positions": "learned", "share_embeddings": "none", "output_bias": True}
    return "conformer", settings


def _count(layers: str) -> int:
    return len(layers.split(",")) if layers else 0


def _positions(given: JsonObject, attention: str, where: str) -> str:
    pair = given.get("pos_enc_layer_type", "rel_pos"), given.get(attention, "rel_selfattn")
    if pair not in _POSITIONS:
        raise refused(f"encoder_conf.{attention} beside {pair[0]}", pair[1], where)
    return _POSITIONS[pair]


def _intermediate(given: JsonObject, normed: bool, where: str) -> JsonObject:
    layers = given.get("interctc_layer_idx")
    layers = [] if layers is None else layers
    if not isinstance(layers, list) or not all(type(each) is int for each in layers):
        raise CheckpointError(f"encoder_conf.interctc_layer_idx is {shortened(layers)}", where=where)
    conditioned = given.get("interctc_use_conditioning", False)
    if type(conditioned) is not bool:
        raise CheckpointError(
            f"encoder_conf.interctc_use_conditioning is {shortened(conditioned)}", where=where
        )
    return {
        "intermediate_ctc": ",".join(map(str, sorted(layers))),
        "self_conditioning": conditioned,
        "intermediate_norm": normed,
    }


def features_of(values: JsonObject, where: str) -> JsonObject:
    """Settings of the features, as `nartk.data.audio.features.FeatureSettings` has them."""
    size = values.get("input_size")
    if size is not None:
        if type(size) is not int or size < 1:
            raise CheckpointError(f"input_size is {shortened(size)}, not 1 or more", where=where)
        return {"features": STORED, "bins": size}
    if values.get("frontend") is None:
        raise CheckpointError("neither input_size nor frontend is given", where=where)
    given = part(values, "frontend_conf", where)
    found: dict[str, Any] = {**FRONTEND.read(given, where)}
    beamformer = part(given, "frontend_conf", where)
    for name in ("use_wpe", "use_beamformer"):
        if beamformer.get(name, False) is not False:
            raise refused(f"frontend_conf.frontend_conf.{name}", beamformer[name], where, [False])
    rate, transform = sample_rate(given.get("fs", 16000), where), found["transform"]
    window = given.get("win_length")
    window = transform if window is None else window
    if type(window) is not int or not 1 <= window <= transform:
        raise CheckpointError(
            f"frontend_conf.win_length is {shortened(window)}, not 1 to {transform}", where=where
        )
    if found["hop"] > rate:
        raise CheckpointError(
            f"frontend_conf.hop_length is {shortened(found['hop'])}, more than a second", where=where
        )
    return {
        "features": ESPNET,
        "sample_rate": rate,
        "bins": found["bins"],
        "shift_ms": _milliseconds(found["hop"], rate),
        "window_ms": _milliseconds(window, rate),
        "transform": transform,
    }


def _milliseconds(samples: int, rate: int) -> float:
    """The time of samples, of which as many become when it is cut to whole ones."""
    found = samples * 1000 / rate
    while int(rate * found / 1000) < samples:
        found = math.nextafter(found, math.inf)
    return found


def tokens_of(values: JsonObject, where: str) -> list[str]:
    """ESPnet's words by id; raises CheckpointError where they are not as its programs lay them out."""
    found = values["token_list"]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CheckpointError(
            f"token_list is {shortened(found)}, no list of words",
            fix="use the config.yaml that training wrote in its folder",
            where=where,
        )
    if not 3 < len(found) <= _MOST_TOKENS:
        raise CheckpointError(f"token_list has {len(found)} words, not 4 to {_MOST_TOKENS}", where=where)
    if found[0] != _BLANK:
        raise UnsupportedCheckpointError(
            f"the first word of token_list is {shortened(found[0])}", fix=f"nartk knows {_BLANK}", where=where
        )
    for word in owsm.NEEDED if is_owsm(values) else (_UNK, _END):
        if found.count(word) != 1:
            raise UnsupportedCheckpointError(f"token_list has {found.count(word)} of {word!r}", where=where)
    return found


def words_of(tokens: Sequence[str], values: JsonObject) -> tuple[list[str], list[int]]:
    """The words by nartk's ids, and the id in ESPnet's list of each; `PAD` of the one that is not there.

    Special symbols are where those of a non-autoregressive model are: blank, padding, end, unknown.
    """
    token_type = values["token_type"]
    end, unknown = owsm.ENDS if is_owsm(values) else (_END, _UNK)
    ends = tokens.index(end), tokens.index(unknown)
    order = [0, PAD, *ends, *(i for i in range(1, len(tokens)) if i not in ends)]
    spelled: Mapping[str, str] = {_SPACE: " "} if token_type == "char" else {}
    words = ["<pad>" if i == PAD else spelled.get(tokens[i], tokens[i]) for i in order]
    return words, order
