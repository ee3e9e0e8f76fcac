"""Sums whose bits do not depend on what is computed beside them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def tree_sum(x: Tensor) -> Tensor:
    """Sums x [B,T,...] over T -> [B,...], by halves, with additions of whole tensors alone.

    Zeros at the end change no bit of the sum, however many they are, nor do other rows. Torch's own sum adds
    in an order that depends on the shape.
    """
    width = 1 << max(x.shape[1] - 1, 0).bit_length()
    x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, width - x.shape[1]))
    while width > 1:
        width //= 2
        x = x[:, :width] + x[:, width:]
    return x[:, 0]
