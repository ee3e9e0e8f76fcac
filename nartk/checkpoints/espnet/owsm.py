"""The settings of ESPnet's OWSM-CTC (Peng et al. 2024, https://arxiv.org/abs/2402.12654) as nartk's.

Its configuration names a second encoder, of prompts, the layers that read what that gives, and the seconds of
sound that every source has.
"""

from __future__ import annotations

from dataclasses import replace

from nartk.architectures.settings import MOST_LAYERS
from nartk.checkpoints.espnet.sections import E_BRANCHFORMER, TRAINS, Section, part, refused, shortened
from nartk.errors import CheckpointError
from nartk.files import JsonObject
from nartk.processors.audio import MOST_FILL

MODEL = "espnet_ctc"  # what config.yaml calls it
ENCODER = "e_branchformer_ctc"
ABSENT, FRONT = "<na>", "<nolang> <asr>"  # in place of a prompt; in front of sound whose language is not told
ENDS = ("<eos>", "<unk>")  # nartk's end, and unknown words
NEEDED = (*ENDS, "<sos>", ABSENT, *FRONT.split())  # that the list of tokens has
KNOWN: dict[str, tuple[object, ...]] = {
    "model": (MODEL,),
    "encoder": (ENCODER,),
    "promptencoder": ("transformer",),
    "frontend": ("default", None),
    "normalize": ("global_mvn", "utterance_mvn", None),
    "token_type": ("bpe",),
}
SYMBOLS = {
    "sym_blank": "<blank>",
    "sym_sos": "<sos>",
    "sym_eos": ENDS[0],
    "sym_na": ABSENT,
}
_SECONDS = 30  # of a source where the configuration does not tell
_READERS = "use_cross_attention"

CTC_ENCODER = replace(
    E_BRANCHFORMER,
    only={**E_BRANCHFORMER.only, "input_layer": ("conv2d8",)},  # the only one that takes words in front
    trains=TRAINS | {_READERS},  # which `prompt_of` reads
)
PROMPT_ENCODER = Section(
    "promptencoder_conf",
    {
        "output_size": ("prompt_features", 256),
        "attention_heads": ("prompt_heads", 4),
        "linear_units": ("prompt_ffn", 2048),
        "num_blocks": ("prompt_layers", 6),
    },
    {
        "pos_enc_layer_type": ("abs_pos",),
        "positionwise_layer_type": ("linear",),
        "normalize_before": (True,),
        "concat_after": (False,),
        "qk_norm": (False,),
        "interctc_layer_idx": ([],),
    },
    TRAINS - {"interctc_layer_idx"},
)


def prompt_of(values: JsonObject, layers: int, where: str) -> JsonObject:
    """The settings of words beside the frames, of an encoder of so many layers.

    Raises:
        UnsupportedCheckpointError: nartk has no such setting.
        CheckpointError: A setting is damaged.
    """
    found: JsonObject = PROMPT_ENCODER.read(part(values, "promptencoder_conf", where), where)
    readers = _readers(part(values, "encoder_conf", where), layers, where)
    if not readers:
        found = {"prompt_features": found["prompt_features"]}
    return {
        **found,
        "words_in_front": True,
        "prompt_readers": ",".join(map(str, readers)),
        "prompt_positions": "interleaved",
    }


def _readers(given: JsonObject, layers: int, where: str) -> list[int]:
    """The layers that read prompts, from 1."""
    reads = given.get(_READERS, True)
    if layers > MOST_LAYERS:
        raise CheckpointError(
            f"encoder_conf.num_blocks is {shortened(layers)}, more than {MOST_LAYERS}", where=where
        )
    if isinstance(reads, bool):
        reads = [reads] * layers
    if not isinstance(reads, list) or len(reads) != layers or not all(each in (0, 1) for each in reads):
        raise CheckpointError(
            f"encoder_conf.{_READERS} is {shortened(reads)}, not true, false, or a list of them for "
            f"{layers} layers",
            where=where,
        )
    return [number for number, each in enumerate(reads, start=1) if each]


def transcript_layers(values: JsonObject, where: str) -> int:
    """The intermediate CTC that learn transcripts, if these are the first ones, else 0: of training alone."""
    learn = part(values, "model_conf", where).get("ctc_asr_only")
    if not isinstance(learn, list):
        return 0
    count = sum(each is True for each in learn)
    return count if learn[:count] == [True] * count and count < len(learn) else 0


def seconds_of(values: JsonObject, where: str) -> float:
    """The seconds of sound that a source is filled up to."""
    if values.get("preprocessor", "s2t_ctc") != "s2t_ctc":
        raise refused("preprocessor", values["preprocessor"], where, ["s2t_ctc"])
    found = part(values, "preprocessor_conf", where).get("speech_length", _SECONDS)
    if type(found) not in (int, float) or not MOST_FILL[0] <= found <= MOST_FILL[1]:
        raise CheckpointError(
            f"preprocessor_conf.speech_length is {shortened(found)}, not {MOST_FILL[0]} to {MOST_FILL[1]} "
            "seconds",
            where=where,
        )
    return float(found)
