"""The weights of one of FunASR's Paraformers under nartk's names, with words where nartk has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nartk.architectures.sanm_paraformer import SanmParaformerConfig
from nartk.architectures.settings import TARGET_WORDS
from nartk.checkpoints.espnet.weights import LEAST_LOGIT, reordered
from nartk.checkpoints.funasr.configuration import UNUSED
from nartk.checkpoints.hugging_face.tensors import Files, MappedTensors
from nartk.checkpoints.tensors import Array, Tensors

OFFSET, FACTOR = "encoder_stacking.offset", "encoder_stacking.factor"  # which am.mvn has
# What a state dict holds besides: CTC, the second output of CifPredictorV3, and what reads SeACo's hotwords.
_BESIDE = re.compile(
    r"ctc\..*|predictor\.(?:upsample_cnn|blstm|self_attn|cif_output2)\..*"
    r"|(?:bias_encoder|lstm_proj|bias_embed|seaco_decoder|hotword_output_layer)\..*"
)
_WORDS_BESIDE = re.compile(r"decoder\.embed\..*")  # where they are the output's

_WHOLE = {
    "encoder_norm": "encoder.after_norm",
    "cif.conv": "predictor.cif_conv1d",
    "cif.out": "predictor.cif_output",
    "decoder_embedding.words": "decoder.embed.0",
    "decoder_norm": "decoder.after_norm",
    "output": "decoder.output_layer",
}
_ENCODER = {
    "self_attention.qkv": "self_attn.linear_q_k_v",
    "self_attention.out": "self_attn.linear_out",
    "self_attention.memory": "self_attn.fsmn_block",
    "self_norm": "norm1",
    "ffn.up": "feed_forward.w_1",
    "ffn.down": "feed_forward.w_2",
    "ffn_norm": "norm2",
}
_DECODER = {
    "ffn_norm": "norm1",
    "ffn.up": "feed_forward.w_1",
    "ffn.norm": "feed_forward.norm",
    "ffn.down": "feed_forward.w_2",
    "self_norm": "norm2",
    "memory": "self_attn.fsmn_block",
    "cross_norm": "norm3",
    "cross_attention.q": "src_attn.linear_q",
    "cross_attention.kv": "src_attn.linear_k_v",
    "cross_attention.out": "src_attn.linear_out",
}


class FunasrTensors(Tensors):
    """The weights of a model of V words, of which FunASR's file has V - 3.

    Args:
        config: Configuration with nartk's words.
        stored: The tensors of the file.
        order: Id in FunASR's list of each of nartk's words, or `PAD`.
        statistics: `OFFSET` and `FACTOR`.

    Raises:
        CheckpointError: A tensor is missing, left over, or of another shape or type.
    """

    def __init__(
        self,
        config: SanmParaformerConfig,
        stored: Files,
        order: Sequence[int],
        statistics: Mapping[str, Array],
    ) -> None:
        self.shapes, self._order = config.weight_shapes(), order
        theirs = {name: self._their_shape(name) for name in self.shapes if name not in statistics}
        parts = {name: [_name(name, config)] for name in theirs}
        for name, names in parts.items():
            stored.require(names, theirs[name])
        known = {each for names in parts.values() for each in names}
        beside = [_BESIDE] + [_WORDS_BESIDE] * (config.share_embeddings != "none")
        known |= {name for name in stored.shapes if any(each.fullmatch(name) for each in beside)}
        stored.refuse_others(known)
        self._mapped = MappedTensors(stored, theirs, parts, {}, statistics)
        self.types = dict(self._mapped.types)

    def __getitem__(self, name: str) -> Array:
        found = self._mapped[name]
        if name not in TARGET_WORDS:
            return found
        return reordered(found, self._order, LEAST_LOGIT if name.endswith(".bias") else 0.0)

    @property
    def nbytes(self) -> int:
        return self._mapped.nbytes

    def digest(self) -> str:
        return self._mapped.digest()

    def _their_shape(self, name: str) -> tuple[int, ...]:
        """The shape without the words that FunASR does not have."""
        first, *rest = self.shapes[name]
        return (first - UNUSED * (name in TARGET_WORDS), *rest)


def _name(name: str, config: SanmParaformerConfig) -> str:
    """FunASR's name of a weight of ours."""
    module, _, suffix = name.rpartition(".")
    if module == "decoder_embedding.words" and config.share_embeddings != "none":
        module = "output"
    if module in _WHOLE:
        return f"{_WHOLE[module]}.{suffix}"
    top, number, rest = module.split(".", 2)
    index = int(number)
    if top == "encoder_layers":
        at = "encoders0.0" if index == 0 else f"encoders.{index - 1}"
        return f"encoder.{at}.{_ENCODER[rest]}.{suffix}"
    reading = config.reading_layers
    if index >= config.decoder_layers:
        at = "decoders3.0"
    else:
        at = f"decoders.{index}" if index < reading else f"decoders2.{index - reading}"
    return f"decoder.{at}.{_DECODER[rest]}.{suffix}"
