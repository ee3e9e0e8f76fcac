"""The weights of an ESPnet model under nartk's names, with words where nartk has them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nartk.architectures.encoders import SpeechEncoder
from nartk.architectures.positions import interleaved_sinusoids
from nartk.architectures.settings import TARGET_WORDS
from nartk.checkpoints.espnet.configuration import PAD
from nartk.checkpoints.hugging_face.tensors import Files, MappedTensors
from nartk.checkpoints.tensors import Array, Tensors

MEAN, DEVIATION = "normalize.mean", "normalize.std"  # that global_mvn keeps beside the weights
LEAST_LOGIT = -1e4  # of a word that ESPnet does not have: its probability is 0
_POSITIONS = "decoder_embedding.positions.weight"
# Weights with a row for each word; but the columns of `_COLUMNS`.
_ROWS = (*TARGET_WORDS, "ctc.weight", "ctc.bias", "encoder_prompt.embedding.words.weight")
_BIASES = ("output.bias", "ctc.bias")
_COLUMNS = "condition.weight"
# What a state dict holds besides: the front end's tables, counts of batches, and positions of old versions.
_BESIDE = re.compile(r"frontend\..*|normalize\..*|.*\.num_batches_tracked|.*embed.*\.pe|pos_enc\.pe")
_UNREAD = re.compile(r"prompt_(encoder|proj)\..*")  # of a model whose layers read no prompt
_FRONT, _PROJECTION = "encoder_prompt.front.", "prompt_proj"
_READ = re.compile(r"(encoder_layers\.\d+\.cross_attention\.kv)\.(weight|bias)")

_FFN = {"up": "w_1", "down": "w_2"}
_LAYER = {
    **{f"ffn1.{ours}": f"feed_forward_macaron.{theirs}" for ours, theirs in _FFN.items()},
    **{f"ffn2.{ours}": f"feed_forward.{theirs}" for ours, theirs in _FFN.items()},
    **{f"ffn.{ours}": f"feed_forward.{theirs}" for ours, theirs in _FFN.items()},
    "ffn1_norm": "norm_ff_macaron",
    "ffn2_norm": "norm_ff",
    "final_norm": "norm_final",
    "conv_norm": "norm_conv",
    "conv.up": "conv_module.pointwise_conv1",
    "conv.depthwise": "conv_module.depthwise_conv",
    "conv.norm": "conv_module.norm",
    "conv.down": "conv_module.pointwise_conv2",
    "cgmlp_norm": "norm_mlp",
    "cgmlp.up": "cgmlp.channel_proj1.0",
    "cgmlp.norm": "cgmlp.csgu.norm",
    "cgmlp.depthwise": "cgmlp.csgu.conv",
    "cgmlp.down": "cgmlp.channel_proj2",
    "merge.depthwise": "depthwise_conv_fusion",
    "merge.out": "merge_proj",
}
_NORMS = {
    "encoder": {"self_norm": "norm_mha", "cross_norm": "norm_cross_attn"},
    "decoder": {"self_norm": "norm1", "cross_norm": "norm2", "ffn_norm": "norm3"},
    "prompt": {"self_norm": "norm1", "ffn_norm": "norm2"},
}
_ATTENTION = {
    "qkv": ("linear_q", "linear_k", "linear_v"),
    "q": ("linear_q",),
    "kv": ("linear_k", "linear_v"),
    "out": ("linear_out",),
    "positions": ("linear_pos",),
}
_WHOLE = {
    "encoder_norm": "encoder.after_norm",
    "condition": "encoder.conditioning_layer",
    "ctc": "ctc.ctc_lo",
    "decoder_embedding.words": "decoder.embed.0",
    "decoder_norm": "decoder.after_norm",
    "output": "decoder.output_layer",
    "encoder_prompt.embedding.words": "embed",
    "encoder_prompt.front": "embed_proj",
    "encoder_prompt.norm": "prompt_encoder.after_norm",
}


class EspnetTensors(Tensors):
    """The weights of a model of V words, of which ESPnet's file has V - 1.

    Args:
        config: Configuration of an encoder of speech, with nartk's words.
        stored: The tensors of the file.
        order: Id in ESPnet's list of each of nartk's words, or `PAD`.

    Raises:
        CheckpointError: A tensor is missing, left over, or of another shape or type.
    """

    def __init__(self, config: SpeechEncoder, stored: Files, order: Sequence[int]) -> None:
        self.shapes = config.weight_shapes()
        self._order, self._stored = order, stored
        features = config.source_features  # of words beside the frames
        # Factors of what projects words in front of the frames: ESPnet scales by the square root of the
        # encoder's features behind that, nartk by that of the words' before it.
        self._factors = {"weight": math.sqrt(config.d_model / features), "bias": math.sqrt(config.d_model)}
        # Features to which ESPnet projects a prompt before layers read it; 0: it does not.
        self._projected = config.d_model if features != config.d_model and config.prompted_layers else 0
        theirs = {name: self._their_shape(name) for name in self.shapes if name != _POSITIONS}
        parts = {name: _names(name, config) for name in theirs}
        for name, names in parts.items():
            rows, *rest = theirs[name]
            shape = (rows // len(names), *rest)
            if names[0] in stored.shapes and stored.shapes[names[0]] == (*shape, 1):
                shape = (*shape, 1)  # a convolution of one position
            stored.require(names, shape)
        if self._projected:
            stored.require([f"{_PROJECTION}.weight"], (self._projected, features))
            stored.require([f"{_PROJECTION}.bias"], (self._projected,))
        known = {each for names in parts.values() for each in names}
        if self._projected:
            known |= {f"{_PROJECTION}.weight", f"{_PROJECTION}.bias"}
        elif not config.prompted_layers:
            known |= {name for name in stored.shapes if _UNREAD.fullmatch(name)}
        stored.refuse_others(known | {name for name in stored.shapes if _BESIDE.fullmatch(name)})
        tables: Mapping[str, Array] = {}
        if _POSITIONS in self.shapes:
            count, features = self.shapes[_POSITIONS]
            tables = {_POSITIONS: interleaved_sinusoids(np.arange(count), features)}
        self._mapped = MappedTensors(stored, theirs, parts, {}, tables)
        self.types = dict(self._mapped.types)

    def __getitem__(self, name: str) -> Array:
        found = self._mapped[name]
        if name.startswith(_FRONT):
            return (found * self._factors[name.removeprefix(_FRONT)]).astype(np.float32)
        if self._projected and (part := _READ.fullmatch(name)):
            return self._read_through(part[1], part[2])
        if name == _COLUMNS:
            return np.ascontiguousarray(reordered(found.T, self._order, 0.0).T)
        if name not in _ROWS:
            return found
        return reordered(found, self._order, LEAST_LOGIT if name in _BIASES else 0.0)

    @property
    def nbytes(self) -> int:
        return self._mapped.nbytes

    def digest(self) -> str:
        return self._mapped.digest()

    def _read_through(self, layer: str, suffix: str) -> Array:
        """Multiplies a layer's keys and values by ESPnet's projection of the prompt before them."""
        weight = self._mapped[f"{layer}.weight"].astype(np.float64)
        found = weight @ self._stored[f"{_PROJECTION}.{suffix}"].astype(np.float64)
        if suffix == "bias":
            found = found + self._mapped[f"{layer}.bias"]
        return found.astype(np.float32)

    def _their_shape(self, name: str) -> tuple[int, ...]:
        """The shape without the word that ESPnet does not have."""
        first, *rest = self.shapes[name]
        if self._projected and (found := _READ.fullmatch(name)) and found[2] == "weight":
            return (first, self._projected)
        if name == _COLUMNS:
            return (first, rest[0] - 1)
        return (first - 1, *rest) if name in _ROWS else (first, *rest)


def reordered(rows: Array, order: Sequence[int], missing: float) -> Array:
    """Rows [V,...] in an order of their numbers, with a number in place of those that are `PAD`."""
    found = np.full((len(order), *rows.shape[1:]), missing, np.float32)
    kept = np.array(order) != PAD
    found[kept] = rows[np.array(order)[kept]]
    return found


def _names(name: str, config: SpeechEncoder) -> list[str]:
    """ESPnet's names of a weight of ours."""
    module, _, suffix = name.rpartition(".")
    if module in _WHOLE:
        return [f"{_WHOLE[module]}.{suffix}"]
    if found := re.fullmatch(r"encoder_subsample\.conv\.(\d+)", module):
        return [f"encoder.embed.conv.{2 * int(found[1])}.{suffix}"]
    if module == "encoder_subsample.out":
        # With two convolutions the linear layer and the positions behind it are one sequence.
        return [f"encoder.embed.out.{'0.' if config.convolutions == 2 else ''}{suffix}"]
    side, index, rest = _layer(name)
    if side == "prompt":
        return [f"prompt_encoder.encoders.{index}.{each}" for each in _in_layer(side, rest, "")]
    return [f"{side}.{side}s.{index}.{each}" for each in _in_layer(side, rest, config.encoder_block)]


def _layer(name: str) -> tuple[str, str, str]:
    """The side, the number and the rest of a name such as ``encoder_layers.0.ffn1.up.bias``."""
    top, index, rest = name.removeprefix("encoder_prompt.").split(".", 2)
    return ("prompt" if top == "layers" else top.removesuffix("_layers")), index, rest


def _in_layer(side: str, rest: str, block: str) -> Iterator[str]:
    module, _, suffix = rest.rpartition(".")
    owner, _, last = module.partition(".")
    own = "attn" if side == "encoder" and block == "e-branchformer" else "self_attn"
    attention = {
        "self_attention": own,
        "cross_attention": "src_attn" if side == "decoder" else "cross_attn",
    }
    if module in attention:  # of the scores' biases
        yield f"{attention[module]}.pos_{suffix}"
    elif owner in attention:
        yield from (f"{attention[owner]}.{each}.{suffix}" for each in _ATTENTION[last])
    else:
        yield f"{({**_LAYER, **_NORMS[side]})[module]}.{suffix}"
