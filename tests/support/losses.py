"""The loss of a network on a batch as data sets have it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nartk.models.losses import Losses, Training


def losses_of(
    model: Any,
    *batch: Tensor,
    training: Training,
    update: int,
    transcript: Tensor | None = None,
    **named: Tensor | None,
) -> Losses:
    """Encodes what comes before the target, the batch's last, with `named`, and asks for the loss."""
    *sources, target = batch
    source = model.encode(*sources, **named)
    found: Losses = model.losses(source, target, training=training, update=update, transcript=transcript)
    return found
