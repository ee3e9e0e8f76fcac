"""Writes int8 folders: what the engine packs of a model in int8 (see `checkpoints.quantized`)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from nartk.checkpoints.checkpoint import MADE_OF, Checkpoint, read_config
from nartk.checkpoints.names import CARD, MOST_CARD
from nartk.checkpoints.quantized import INT8, LAYOUT, block_shape, stored_shapes
from nartk.checkpoints.saving import save_files
from nartk.checkpoints.tensors import Array, pack_tensors
from nartk.engine.weights import Weights
from nartk.errors import UsageError
from nartk.files import read_file

_CARD = """
## int8
These are int8 weights, written by `nartk-convert --quantize int8`: {after:,} bytes of weights, {before:,} \
before, {full:,} in fp32. Each output of a layer has a scale of its own; the engine quantises what a layer \
reads token by token, and sums whole numbers. It decodes bit for bit as `--dtype int8` does with the model \
that it was made of (fingerprint `{fingerprint}`). With another `--dtype`, on a GPU and without the engine \
it decodes with the numbers that its weights stand for.

int8 is another model than fp32. What it costs in quality, on text of yours with references, says this \
command with the original model: `nartk-bench MODEL FILE --ref REF --metric bleu --dtype fp32,int8`.
"""


def quantize(checkpoint: Checkpoint, folder: Path) -> tuple[int, int]:
    """Writes an int8 folder of a model; the bytes of the weights before and after.

    Raises:
        UsageError: The model is int8 already.
        CheckpointError: Its weights do not fit its configuration.
        OutputError: The folder cannot be written.
    """
    if checkpoint.quantized is not None:
        raise UsageError(f"{str(checkpoint.folder)!r} is {checkpoint.quantized} already")
    config = read_config(checkpoint)
    weights = Weights(checkpoint.tensors, INT8, shared=config.shared_weights())
    weights.model(config)
    blocks: dict[str, Array] = {}
    others: dict[str, Array] = {}
    for layer, (packed, bias) in weights.packed.items():
        block = packed.weights.view(np.int8).reshape(block_shape(packed.outputs, packed.inputs))
        blocks[f"{layer}.weight"] = block
        others[f"{layer}.scales"] = packed.scales
        if bias is not None:
            others[f"{layer}.bias"] = bias
    found = blocks | others
    for name in stored_shapes(config).keys() - found.keys():
        others[name] = checkpoint.tensors[name].astype(np.float32, copy=False)
    # Blocks, all multiples of 128 bytes, come first: so each lies at a multiple of 64.
    stored = pack_tensors(blocks | dict(sorted(others.items())))
    before, after = checkpoint.tensors.nbytes, sum(map(len, stored))
    full = 4 * sum(
        int(np.prod(shape))
        for name, shape in config.weight_shapes().items()
        if name not in config.shared_weights()
    )
    card = checkpoint.folder / CARD
    text = read_file(card, most=MOST_CARD).decode("utf-8", "replace") if card.is_file() else ""
    save_files(
        folder,
        weights=stored,
        config={
            "architecture": checkpoint.architecture,
            "quantized": INT8,
            "layout": LAYOUT,
            "model": asdict(config),
            "aliases": {},
            **checkpoint.beside,
            MADE_OF: checkpoint.fingerprint,
        },
        files=checkpoint.files,
        card=text + _CARD.format(after=after, before=before, full=full, fingerprint=checkpoint.fingerprint),
    )
    return before, after
