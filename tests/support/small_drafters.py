"""Small autoregressive models that draft in tests: near the verifier."""

from __future__ import annotations

import copy

import torch

from nartk.models.transformer import Transformer


def shaken(model: Transformer, seed: int, amount: float) -> Transformer:
    """A copy whose weights are off by a share `amount` of their spread."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            spread = float(weight.std()) if weight.numel() > 1 else 0.0
            weight += amount * spread * torch.randn(weight.shape, generator=generator)
    return other
