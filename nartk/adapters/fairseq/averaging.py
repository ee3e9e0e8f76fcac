"""The mean of several checkpoints of a training run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from nartk.adapters.fairseq.checkpoint import FairseqCheckpoint, read_checkpoint
from nartk.adapters.fairseq.network import shapes
from nartk.checkpoints.tensors import require_shapes
from nartk.errors import InputFileError, UsageError
from nartk.files import JsonObject, writing

# Names that fairseq gives to what it saves.
_SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_last|_best|\.best_.+)\.pt")


def average(checkpoints: Sequence[FairseqCheckpoint]) -> JsonObject:
    """The mean of several checkpoints' weights, as the contents of a new one without optimizer state.

    Sums are kept in fp64; the mean has the type of the weights. What is no floating point number, and all
    settings, come from the last checkpoint.

    Raises:
        CheckpointError: Names or shapes of the weights differ.
    """
    last = checkpoints[-1]
    sums = {key: tensor.double() for key, tensor in last.tensors.items() if tensor.is_floating_point()}
    for other in checkpoints[:-1]:
        require_shapes(
            shapes({key: last.tensors[key] for key in sums}),
            shapes({key: tensor for key, tensor in other.tensors.items() if tensor.is_floating_point()}),
            str(other.path),
        )
        for key in sums:
            sums[key] = sums[key] + other.tensors[key].double()
    model = dict(last.tensors)
    for key, total in sums.items():
        model[key] = (total / len(checkpoints)).to(last.tensors[key].dtype)
    state = {key: value for key, value in last.state.items() if key != "last_optimizer_state"}
    return {**state, "model": model}


def last_checkpoints(folder: Path, count: int) -> list[FairseqCheckpoint]:
    """The `count` checkpoints of `folder` with the most updates, the oldest first.

    Raises:
        UsageError: There are fewer.
    """
    return _pick(_saved(folder), count, folder, "checkpoints")


def best_checkpoints(folder: Path, count: int) -> list[FairseqCheckpoint]:
    """The `count` checkpoints of `folder` with the best validation score, the best last.

    Raises:
        UsageError: There are fewer that were validated when they were saved.
    """

    def quality(checkpoint: FairseqCheckpoint) -> float:
        value = checkpoint.validation
        assert value is not None  # of those that were validated
        return value if checkpoint.higher_is_better else -value

    validated = [checkpoint for checkpoint in _saved(folder) if checkpoint.validation is not None]
    return _pick(sorted(validated, key=quality), count, folder, "validated checkpoints")


def write_checkpoint(path: Path, state: JsonObject) -> None:
    """Writes what :func:`average` gives as a fairseq checkpoint."""
    with writing(path, binary=True) as file:
        torch.save(dict(state), file)


def _saved(folder: Path) -> list[FairseqCheckpoint]:
    """The checkpoints that a training run keeps in a folder, one an update, in the order of training.

    ``checkpoint_last.pt`` and ``checkpoint_best.pt`` are copies of others, and as good as they.
    """
    if not os.path.isdir(folder):
        raise InputFileError("no such folder", fix="check the name", where=str(folder))
    found = {}
    for path in sorted(folder.iterdir()):
        if _SAVED.fullmatch(path.name):
            checkpoint = read_checkpoint(path)
            found[checkpoint.updates] = checkpoint
    return [found[updates] for updates in sorted(found)]


def _pick(
    checkpoints: list[FairseqCheckpoint], count: int, folder: Path, what: str
) -> list[FairseqCheckpoint]:
    if not 1 <= count <= len(checkpoints):
        raise UsageError(f"{count} {what} asked for, {len(checkpoints)} in {str(folder)!r}")
    return checkpoints[-count:]
