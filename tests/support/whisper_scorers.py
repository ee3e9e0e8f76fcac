"""Random Whisper folders as nartk reads them, and their scorers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.engine import available
from nartk.serving.scorers import load_network
from support import whisper_models as models

SCORERS = ("torch", "engine") if available() else ("torch",)
SECONDS = 1.0  # that a model reads at once


def read_random(seed: int, folder: Path, **fields: Any) -> tuple[Any, Checkpoint, random.Random]:
    """transformers' model, what was read of its folder, and more random numbers."""
    rng = random.Random(seed)
    settings = models.random_settings(rng, seconds=SECONDS)
    model = models.random_model(settings, seed, ends=3.0, times=2.0, **fields)
    return model, load_checkpoint(models.save(model, folder)), rng


def scorer_for(name: str, checkpoint: Checkpoint, **settings: Any) -> Any:
    """The scorer of a checkpoint, in torch or on the engine."""
    made = architecture("whisper")
    settings["start_token"] = checkpoint.start_token
    if name == "engine":
        return made.engine(read_config(checkpoint), checkpoint.tensors, checkpoint.target_vocab, **settings)
    return made.scorer(load_network(checkpoint), checkpoint.target_vocab, **settings)


def frames_at_once(model: Any) -> int:
    """Frames that a model reads at once."""
    return 2 * int(model.config.max_source_positions)
