"""Draws over tensors, for strategies whose scorers are; `nartk.decoders.sample` draws over passes.

Temperature as usual; top-k after Fan et al. 2018 (arXiv:1805.04833), top-p after Holtzman et al. 2020
(arXiv:1904.09751). Symbols: N draws, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SIGNED = 2**64
# splitmix64's increment and multipliers (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators", section 7 and its reference implementation), as signed 64-bit integers.
_GAMMA, _FIRST, _SECOND = (x - _SIGNED for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_BITS = 48  # of a uniform number: so much below 1 that no rounding takes it there


def keep_likeliest(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Logits [N,V] with minus infinity for the words that the filters leave out; top_k 0 leaves out none.

    Only values are compared, never places in a sorted order, which is not settled where words are equal.
    """
    if 0 < top_k < logits.shape[1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p < 1.0:
        ordered = logits.sort(-1, descending=True).values
        before = ordered.softmax(-1).cumsum(-1, dtype=torch.float64).roll(1, -1)
        before[:, 0] = -1.0  # the likeliest word always stays
        least = ordered.masked_fill(before >= top_p, float("inf")).amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < least, float("-inf"))
    return logits


def uniform(seed: int, *parts: Tensor) -> Tensor:
    """Numbers [N] fp64 in [0, 1), independent for each combination of seed and parts [N] int64.

    A hash, not a generator with a state, so that a number does not depend on which were drawn before.
    """
    state = torch.full_like(parts[0], (seed + 2**63) % _SIGNED - 2**63)
    for part in parts:
        state = _mix(state + part * _GAMMA + _GAMMA)
    return (state & (2**_BITS - 1)).double() / 2**_BITS


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64: every bit of the result depends on every bit of x."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """x >> bits without its sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
