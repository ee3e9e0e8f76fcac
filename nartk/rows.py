"""Batches of rows that come and go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def cat_rows(first: Tensor, second: Tensor, fill: float = 0) -> Tensor:
    """The rows of both [B,...]; where other dimensions differ, the smaller one is filled up at its end."""
    sizes = [max(pair) for pair in zip(first.shape[1:], second.shape[1:], strict=True)]
    return torch.cat([_filled(first, sizes, fill), _filled(second, sizes, fill)])


def _filled(x: Tensor, sizes: Sequence[int], fill: float) -> Tensor:
    missing = [size - own for size, own in zip(sizes, x.shape[1:], strict=True)]
    if not any(missing):
        return x
    return F.pad(x, [side for count in reversed(missing) for side in (0, count)], value=fill)
