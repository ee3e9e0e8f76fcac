"""Predicts what passes of a model take on the engine, from its size and a table of measured models.

The table, ``costs.json``, is what `scripts/costs` wrote: for each instruction set, type and number of threads
the times of passes of random Transformers of some sizes. What decides is how many weights a token is
multiplied with, so that times are read off on a logarithmic scale of these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nartk.files import JsonObject
from nartk.protocols.passes import PassCosts

if TYPE_CHECKING:
    from nartk.architectures.settings import Config
    from nartk.protocols.views import Computed

FILE = Path(__file__).with_name("costs.json")
HALVES = "fp16"  # in the table: fp32 whose weights lie as fp16
_LIKE = "avx2"  # what instruction sets that were not measured are taken for
_FRAMES = 4  # of speech, that are a position of the encoder
# Of the decoder, but computed of the source, once: keys and values of cross-attention.
_OF_SOURCE = "cross_attention.kv"
_WORDS = "output.weight"  # a row for each word


@lru_cache(maxsize=1)
def _table() -> JsonObject:
    table: JsonObject = json.loads(FILE.read_text(encoding="utf-8"))
    return table


# By the sublayer's name in `nartk.protocols.views`, how names of its weights go on.
_OF_SUBLAYER = {"self": ("self_attention.", "recurrence."), "cross": ("cross_attention.",), "ffn": ("ffn.",)}


def weights_left_out(computed: Computed, layers: int) -> tuple[str, ...]:
    """Beginnings of the names of the decoder's weights that a view does not compute with.

    Args:
        computed: Sublayers of the view.
        layers: Number of the decoder's layers.
    """
    found = []
    for i in range(layers):
        kept = computed[i] if i < len(computed) else frozenset[str]()
        gone = (parts for name, parts in _OF_SUBLAYER.items() if name not in kept)
        found += [f"decoder_layers.{i}.{part}" for part in chain.from_iterable(gone)]
    return tuple(found)


def weights_read(config: Config, left_out: tuple[str, ...] = ()) -> tuple[int, int]:
    """Counts the weights that multiply a token in the decoder and the output layer, and in the encoder.

    Args:
        left_out: Beginnings of names of weights that do not.
    """
    decoder = encoder = 0
    for name, shape in config.weight_shapes().items():
        if len(shape) < 2 or "embedding" in name or name.startswith(left_out):
            continue
        if name.startswith(("decoder", "output")) and _OF_SOURCE not in name:
            decoder += math.prod(shape)
        else:
            encoder += math.prod(shape)
    return decoder, encoder


def _measured(tables: Sequence[JsonObject], isa: str, type: str, threads: int) -> list[JsonObject]:
    """The tables of the nearest instruction set and type: bf16 that is not multiplied computes as fp32."""
    for wanted in ((isa, type), (isa, "fp32"), (_LIKE, type), (_LIKE, "fp32")):
        found = [
            each for each in tables if (each["isa"], each["type"]) == wanted and each["threads"] <= threads
        ]
        if found:
            return found
    raise AssertionError(f"the table has no {_LIKE}")


def predicted(
    config: Config,
    *,
    isa: str,
    type: str,
    threads: int,
    words: int | None = None,
    left_out: tuple[str, ...] = (),
) -> PassCosts:
    """Predicts the times of a model's passes.

    Args:
        words: Number of the words whose scores are computed; None: all.
        isa: The engine's instruction set.
        type: fp32, bf16, int8, or `HALVES`.
        threads: Most threads of a pass; of those measured, the nearest below counts.
        left_out: Same as in `weights_read`.
    """
    table = _table()
    decoder, encoder = weights_read(config, left_out)
    if words is not None and (shape := config.weight_shapes().get(_WORDS)) is not None:
        decoder -= max(shape[0] - words, 0) * shape[1]
    found = max(_measured(table["measured"], isa, type, threads), key=lambda each: int(each["threads"]))
    sizes, times = np.log(found["weights"]), np.log(found["times"])  # [sizes], [sizes, tokens]
    size = max(decoder or encoder, 1)  # of an encoder alone, as if its layers were a decoder's
    at = math.log(size)
    beyond = max(at - float(sizes[-1]), 0.0)  # in proportion to the weights
    of_size = np.exp([np.interp(at, sizes, each) + beyond for each in times.T])
    tokens: list[int] = table["tokens"]
    slope = (of_size[-1] - of_size[-2]) / (tokens[-1] - tokens[-2])  # microseconds a token
    encoding = slope * encoder / size / (_FRAMES if hasattr(config, "input_features") else 1)
    return PassCosts(tuple(tokens), tuple(of_size.tolist()), float(encoding))
