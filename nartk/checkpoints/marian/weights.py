"""The weights of a Transformer of Marian's under nartk's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from nartk.architectures.settings import SOURCE_WORDS, TARGET_WORDS
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.marian.tensors import MarianTensors
from nartk.checkpoints.tensors import FLOATS, Array, Tensors
from nartk.errors import CheckpointError

_NEGATIVE_LOGIT = -1e4  # of rows that are no words; fp16 has it, too
_ACTIVATIONS = "_QuantMultA"  # ends the names of factors of activations, which are not read
OUTPUT_BIAS = "decoder_ff_logit_out_b"
# Marian's names of layers' weights, by nartk's; one matrix here may be several there. {i} counts from 1.
_LAYERS: dict[str, Sequence[str]] = {
    "self_attention.qkv.weight": ("self_Wq", "self_Wk", "self_Wv"),
    "self_attention.qkv.bias": ("self_bq", "self_bk", "self_bv"),
    "self_attention.out.weight": ("self_Wo",),
    "self_attention.out.bias": ("self_bo",),
    "recurrence.project.weight": ("rnn_W", "rnn_Wf"),
    "recurrence.project.bias": ("", "rnn_bf"),  # the candidates have none
    "cross_attention.q.weight": ("context_Wq",),
    "cross_attention.q.bias": ("context_bq",),
    "cross_attention.kv.weight": ("context_Wk", "context_Wv"),
    "cross_attention.kv.bias": ("context_bk", "context_bv"),
    "cross_attention.out.weight": ("context_Wo",),
    "cross_attention.out.bias": ("context_bo",),
    "ffn.up.weight": ("ffn_W1",),
    "ffn.up.bias": ("ffn_b1",),
    "ffn.down.weight": ("ffn_W2",),
    "ffn.down.bias": ("ffn_b2",),
}
_NORMS = {"self_norm": "self_Wo", "cross_norm": "context_Wo", "ffn_norm": "ffn_ffn"}


class _Parts(NamedTuple):
    """Tensors of the file that make up a weight, their rows below each other.

    Attributes:
        names: Names of the tensors; an empty one: rows of zeros, as many as the others have.
        turned: True if Marian has them as [inputs,outputs].
        rows: Rows that the file has; others follow them.
        filling: Number in those rows.
    """

    names: Sequence[str]
    turned: bool = False
    rows: int | None = None
    filling: float = 0.0


class MarianWeights(Tensors):
    """The weights of a model under nartk's names, each made of the file's when it is asked for.

    Args:
        words: Names of the matrices of words by nartk's names; and rows that the file has of them.
        tables: Weights that are computed.

    Raises:
        CheckpointError: A tensor is missing, left over, or of another shape than the configuration says.
    """

    def __init__(
        self,
        file: MarianTensors,
        config: TransformerConfig,
        words: Mapping[str, str],
        tables: Mapping[str, Array],
        where: str,
    ) -> None:
        self._file, self._tables, self._where = file, tables, where
        self.shapes = config.weight_shapes()
        self._parts = {
            name: self._parts_of(name, config, words) for name in self.shapes if name not in tables
        }
        self.types = dict.fromkeys(self.shapes, "F32")
        for name, made in self._parts.items():
            self._check(name, made)
        read = {*chain.from_iterable(made.names for made in self._parts.values())}
        for name in file.shapes:
            if name not in read and not name.endswith(_ACTIVATIONS):
                raise self._error(f"tensor {name[:80]!r} is not in the model's settings")

    def _parts_of(self, name: str, config: TransformerConfig, words: Mapping[str, str]) -> _Parts:
        if name in words:
            theirs = words[name]
            turned = theirs.endswith("_W")  # of old models
            shape = self._file.shapes.get(theirs, (0,))
            return _Parts((theirs,), turned, shape[-1] if turned else shape[0])
        if name == TARGET_WORDS[2]:
            rows = self._file.shapes.get(OUTPUT_BIAS, (0,))[-1]
            return _Parts((OUTPUT_BIAS,), rows=rows, filling=_NEGATIVE_LOGIT)
        side, _, rest = name.partition("_")
        first, _, own = rest.partition(".")
        if first == "norm":
            return _Parts((f"{side}_top_ln_{_ending(own)}",))
        number, _, layer = own.partition(".")
        prefix = f"{side}_l{int(number) + 1}_"
        norm, _, ending = layer.partition(".")
        if norm in _NORMS:
            before = getattr(config, f"{side}_norm_first")
            recurs = norm == "self_norm" and side == "decoder" and config.decoder_recurrence != "none"
            theirs = ("rnn" if before else "rnn_ffn") if recurs else _NORMS[norm]
            return _Parts((f"{prefix}{theirs}_ln_{_ending(ending)}{'_pre' if before else ''}",))
        return _Parts([each and prefix + each for each in _LAYERS[layer]], turned=layer.endswith(".weight"))

    def _check(self, name: str, made: _Parts) -> None:
        shape, count = self.shapes[name], len(made.names)
        rows = shape[0] // count if made.rows is None else made.rows
        wanted = (rows, *shape[1:])
        for theirs in filter(None, made.names):
            found = self._file.shapes.get(theirs)
            if found is None:
                raise self._error(f"tensor {theirs!r} is missing")
            expected = (1, *wanted) if len(wanted) == 1 else wanted[::-1] if made.turned else wanted
            if found != expected:
                raise self._error(f"tensor {theirs!r} has shape {[*found]}, not {[*expected]}")
            if self._file.types[theirs] not in FLOATS:
                raise self._error(f"tensor {theirs!r} has type {self._file.types[theirs]}, no floating point")

    def __getitem__(self, name: str) -> Array:
        if name in self._tables:
            return self._tables[name]
        made, shape = self._parts[name], self.shapes[name]
        rows = shape[0] // len(made.names)
        found: list[Array] = []
        for theirs in made.names:
            array = self._file[theirs] if theirs else np.zeros((rows, *shape[1:]), np.float32)
            found.append(array.T if made.turned else array.reshape(-1, *shape[1:]))
        joined = np.concatenate(found)
        if missing := shape[0] - len(joined):
            joined = np.concatenate([joined, np.full((missing, *shape[1:]), made.filling, np.float32)])
        return np.ascontiguousarray(joined, np.float32)

    def row_scales(self, name: str) -> Array | None:
        made = self._parts.get(name)
        if made is None or len(self.shapes[name]) != 2:
            return None
        multipliers = [self._file.multiplier(each) for each in made.names]
        if any(each is None for each in multipliers):
            return None
        scales = np.float32(1.0) / np.array(multipliers, np.float32)
        return np.repeat(scales, self.shapes[name][0] // len(scales))

    def digest(self) -> str | None:
        return self._file.digest()

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(message, where=self._where)


def _ending(ending: str) -> str:
    return {"weight": "scale", "bias": "bias"}[ending]


def positions(count: int, features: int) -> Array:
    """Marian's positions [count,features] from 0 on, sines then cosines, in its fp32 arithmetic."""
    half = features // 2
    step = np.float32(np.log(np.float32(10000.0))) / np.float32(max(half - 1, 1))
    rates = np.exp(np.arange(half, dtype=np.float32) * -step)
    angles = np.arange(count, dtype=np.float32)[:, None] * rates
    table = np.zeros((count, features), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


def shared_words(options: Mapping[str, object]) -> str:
    """Value of `share_embeddings` of a configuration: the matrices of words that are one."""
    every, source, output = (
        options.get(f"tied-embeddings{ending}") == "true" for ending in ("-all", "-src", "")
    )
    if every or (source and output):
        return "all"
    return "inputs" if source else "decoder" if output else "none"


def word_names(file: MarianTensors, options: Mapping[str, object]) -> dict[str, str]:
    """Names of the file's matrices of source, target and output words, by nartk's."""
    shared = shared_words(options)
    inputs = ("Wemb", "Wemb") if shared in ("all", "inputs") else ("encoder_Wemb", "decoder_Wemb")
    own = "decoder_ff_logit_out_W"
    last = inputs[1] if shared in ("all", "decoder") else own if own in file.shapes else f"{own}t"
    return dict(zip((SOURCE_WORDS, *TARGET_WORDS[:2]), (*inputs, last), strict=True))
