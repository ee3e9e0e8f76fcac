"""Weights of models whose names and shapes an oracle's program has stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

Weights = Callable[[str, Mapping[str, tuple[int, ...]]], dict[str, np.ndarray]]  # of a name and shapes


def stored_state(oracle: Path, name: str, weights_of: Weights) -> dict[str, torch.Tensor]:
    """The state dict of a model, with the shapes that the oracle has."""
    with np.load(oracle) as stored:
        shapes = json.loads(str(stored[f"{name} shapes"]))
    return {key: torch.from_numpy(value) for key, value in weights_of(name, shapes).items()}
