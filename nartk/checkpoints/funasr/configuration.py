"""The configuration of one of FunASR's Paraformers as nartk's: its network, features and words."""

from __future__ import annotations

from collections.abc import Sequence

from nartk.checkpoints.espnet.configuration import PAD
from nartk.checkpoints.espnet.sections import Section, part, refused, shortened
from nartk.data.audio.features import FBANK
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import JsonObject
from nartk.vocab import padding_word

BLANK, START, END, UNKNOWN = SPECIALS = ("<blank>", "<s>", "</s>", "<unk>")
UNUSED = 3  # nartk's first ids, which none of FunASR's words has: no output ends but with its last fire
_MOST_TOKENS = 1_000_000
_NORM_EPS = 1e-12
_ID_SETTINGS = {"blank_id": 0, "sos": 1, "eos": 2}
_LORA = ("lora_rank", "lora_alpha", "lora_dropout")
_ENCODER = Section(
    "encoder_conf",
    {
        "output_size": ("d_model", 256),
        "attention_heads": ("encoder_heads", 4),
        "linear_units": ("encoder_ffn", 2048),
        "num_blocks": ("encoder_layers", 6),
        "kernel_size": ("encoder_memory", 11),
    },
    {
        "input_layer": ("conv2d", "pe"),
        "pos_enc_class": ("SinusoidalPositionEncoder",),
        "normalize_before": (True,),
        "concat_after": (False,),
        "positionwise_layer_type": ("linear",),
        "selfattention_layer_type": ("sanm",),
        "interctc_use_conditioning": (False,),
        "lora_list": (None,),
    },
    frozenset(
        (
            *("dropout_rate", "positional_dropout_rate", "attention_dropout_rate", *_LORA, "padding_idx"),
            *("positionwise_conv_kernel_size", "interctc_layer_idx"),
            *("tf2torch_tensor_name_prefix_torch", "tf2torch_tensor_name_prefix_tf"),
            "sanm_shfit",  # which `_shift` reads
        )
    ),
)
_DECODER = Section(
    "decoder_conf",
    {
        "attention_heads": ("decoder_heads", 4),
        "linear_units": ("decoder_ffn", 2048),
        "num_blocks": ("decoder_layers", 6),
        "att_layer_num": ("reading_layers", 6),
        "kernel_size": ("decoder_memory", 21),
    },
    {
        "input_layer": ("embed",),
        "use_output_layer": (True,),
        "wo_input_layer": (False, False, True),
        "normalize_before": (True,),
        "concat_after": (False,),
        "lora_list": (None,),
    },
    frozenset(
        (
            *("dropout_rate", "positional_dropout_rate", "self_attention_dropout_rate"),
            *("src_attention_dropout_rate", *_LORA, "pos_enc_class", "chunk_multiply_factor"),
            *("tf2torch_tensor_name_prefix_torch", "tf2torch_tensor_name_prefix_tf"),
            "sanm_shfit",
        )
    ),
)
_FRONTEND = Section(
    "frontend_conf",
    {
        "fs": ("sample_rate", 16000),
        "n_mels": ("bins", 80),
        "frame_length": ("window_ms", 25),
        "frame_shift": ("shift_ms", 10),
        "lfr_m": ("stacked_frames", 1),
        "lfr_n": ("subsampling", 1),
    },
    {
        "window": ("hamming", "hamming", "hanning", "povey"),
        "snip_edges": (True,),
        "upsacle_samples": (True,),
    },
    frozenset(("dither", "cmvn_file", "filter_length_min", "filter_length_max")),
)
# With nartk's predictor and FunASR's default of the tail. The third one has a second output, of timestamps.
_PREDICTORS = {
    "CifPredictor": ("depthwise", 0.45),
    "CifPredictorV2": ("convolution", 0.0),
    "CifPredictorV3": ("convolution", 0.0),
}
_FIRES = {"threshold": 1.0, "l_order": 1, "r_order": 1, "smooth_factor": 1.0, "noise_threshold": 0.0}
_FIRES_BESIDE = (
    *("idim", "tail_threshold", "dropout", "tail_mask", "smooth_factor2", "noise_threshold2"),
    *("upsample_times", "upsample_type", "use_cif1_cnn"),
    *("tf2torch_tensor_name_prefix_torch", "tf2torch_tensor_name_prefix_tf"),
)


def require_known(values: JsonObject, where: str) -> None:
    """Raises UnsupportedCheckpointError unless a configuration is of a model that is read."""
    wanted: dict[str, tuple[object, ...]] = {
        "model": ("Paraformer", "BiCifParaformer", "SeacoParaformer"),
        "encoder": ("SANMEncoder",),
        "decoder": ("ParaformerSANMDecoder",),
        "predictor": tuple(_PREDICTORS),
        "frontend": ("WavFrontend", "wav_frontend"),
        "normalize": (None,),
        "tokenizer": ("CharTokenizer",),
    }
    for name, known in wanted.items():
        if values.get(name) not in [*known]:  # a list: the value may be of any type
            raise refused(name, values.get(name), where, [*known])
    model = part(values, "model_conf", where)
    for name, id in _ID_SETTINGS.items():
        if model.get(name, id) != id:
            raise refused(f"model_conf.{name}", model[name], where, [id])


def network_of(values: JsonObject, where: str) -> JsonObject:
    """The network's settings, but for words."""
    encoder, decoder = (part(values, f"{side}_conf", where) for side in ("encoder", "decoder"))
    frontend = _FRONTEND.read(part(values, "frontend_conf", where), where)
    settings: JsonObject = {**_ENCODER.read(encoder, where), **_DECODER.read(decoder, where)}
    settings["decoder_layers"] = max(settings["decoder_layers"], settings["reading_layers"])
    shared = decoder.get("wo_input_layer", False) or part(values, "model_conf", where).get("share_embedding")
    return {
        **settings,
        "encoder_memory_shift": _shift(encoder, "encoder_conf", 0, where),
        "decoder_memory_shift": _shift(decoder, "decoder_conf", (settings["decoder_memory"] - 1) // 2, where),
        "input_features": frontend["bins"],
        "stacked_frames": frontend["stacked_frames"],
        "subsampling": frontend["subsampling"],
        "norm_eps": _NORM_EPS,
        "share_embeddings": "decoder" if shared else "none",
        **_predictor(values, settings["d_model"], where),
    }


def _shift(given: JsonObject, name: str, otherwise: int, where: str) -> int:
    """Positions by which a memory is shifted; null is `otherwise`, as in FunASR's decoder."""
    found = given.get("sanm_shfit", 0)
    if found is None:
        return otherwise
    if type(found) is not int:
        raise CheckpointError(f"{name}.sanm_shfit is {shortened(found)}, no whole number", where=where)
    return max(0, found)


def _predictor(values: JsonObject, features: int, where: str) -> JsonObject:
    predictor, tail = _PREDICTORS[values["predictor"]]
    given = part(values, "predictor_conf", where)
    for key in given:
        if key not in _FIRES and key not in _FIRES_BESIDE:
            raise refused(f"predictor_conf.{key}", given[key], where)
    for key, wanted in {**_FIRES, "idim": features}.items():
        value = given.get(key, wanted)
        if type(value) not in (int, float) or value != wanted:
            raise refused(f"predictor_conf.{key}", value, where, [wanted])
    found = given.get("tail_threshold", tail)
    if type(found) not in (int, float) or not 0 < found < 1:
        raise refused("predictor_conf.tail_threshold", found, where, ["numbers between 0 and 1"])
    return {"predictor": predictor, "tail_threshold": float(found)}


def features_of(values: JsonObject, where: str) -> JsonObject:
    """Settings of the features, as `nartk.data.audio.features.FeatureSettings` has them."""
    given = part(values, "frontend_conf", where)
    found = _FRONTEND.read(given, where)
    own = {name: found[name] for name in ("sample_rate", "bins", "window_ms", "shift_ms")}
    return {"features": FBANK, **own, "window": given.get("window", "hamming")}


def words_of(tokens: Sequence[object], where: str) -> tuple[list[str], list[int]]:
    """The words by nartk's ids, and the id in FunASR's list of each; `PAD` of those that are not there.

    Raises:
        CheckpointError: They are no list of different words.
        UnsupportedCheckpointError: Special symbols lie elsewhere than in FunASR's lists.
    """
    if not all(isinstance(each, str) for each in tokens) or not 4 < len(tokens) <= _MOST_TOKENS:
        raise CheckpointError(f"{len(tokens)} words, not strings, 5 to {_MOST_TOKENS}", where=where)
    words = [str(each) for each in tokens]
    if len({*words}) != len(words):
        raise CheckpointError("a word stands there twice", where=where)
    if tuple(words[:3]) != SPECIALS[:3] or UNKNOWN not in words:
        raise UnsupportedCheckpointError(
            f"the words begin {shortened(words[:3])}",
            fix=f"nartk knows {', '.join(SPECIALS[:3])}, and {UNKNOWN} among the others",
            where=where,
        )
    unknown = words.index(UNKNOWN)
    order = [PAD] * UNUSED + [unknown, *(i for i in range(len(words)) if i != unknown)]
    return [padding_word(at) if i == PAD else words[i] for at, i in enumerate(order)], order
