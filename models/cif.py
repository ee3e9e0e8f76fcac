"""Continuous integrate-and-fire: sums a source's positions into one embedding a token, as many as it weighs.

Dong and Xu 2020, "CIF: Continuous Integrate-and-Fire for End-to-End Speech Recognition",
https://arxiv.org/abs/1905.11235. Each position t has a weight; token n takes what of the weights lies between
n and n + 1 thresholds of their running sum. FunASR's `cif` and `cif_v1` differ: they add up in the type of
the weights or round to fp32, so that the last token of a target may be missing; a position fires once at
most, whatever it weighs; and rows have as many embeddings as the sum of the heaviest row rounds to.

Symbols: B rows, at least 1, T positions of the source, at least 1, N tokens, D features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.protocols.fires import ROUNDING


def cif(
    hidden: Tensor,
    alpha: Tensor,
    target_lengths: Tensor | None = None,
    threshold: float = 1.0,
    tail_threshold: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Sums positions into tokens: embeddings [B,N,D] of each row's tokens, zeros behind them, and lengths.

    With target lengths, as in training, the weights of a row are scaled so that it has exactly as many
    tokens. Without, it has as many as whole thresholds fit into the sum of its weights and the tail; what
    then remains after the last position is a token that is lighter than others, by the tail at most.

    Args:
        hidden: [B,T,D], any float type; sums are fp32 or wider.
        alpha: [B,T] weights, at least 0; those of padding are 0.
        target_lengths: [B], tokens of each row. Where all weights of a row are 0, its embeddings are, too.
        threshold: Weight of a token, above 0.
        tail_threshold: Weight that is added behind a source, below the threshold.

    Returns:
        Embeddings of `hidden`'s type, and lengths [B] int64; N is the largest.
    """
    if target_lengths is None:
        lengths = count_fires(alpha, threshold, tail_threshold)
    else:
        alpha, lengths = scaled(alpha, target_lengths, threshold), target_lengths.long()
    return integrate(hidden, alpha, lengths, threshold), lengths


def count_fires(alpha: Tensor, threshold: float = 1.0, tail_threshold: float = 0.0) -> Tensor:
    """Counts the whole thresholds that fit into the weights [B,T] and the tail -> [B] int64.

    A sum that lands on a whole number of thresholds, or within rounding below it, has all of them.
    """
    total = alpha.double().sum(1) + tail_threshold
    return (total / threshold + ROUNDING).floor().long()


def scaled(alpha: Tensor, target_lengths: Tensor, threshold: float = 1.0) -> Tensor:
    """Weights [B,T] fp64 in proportion to alpha [B,T] that sum to so many thresholds; 0 where all are."""
    alpha = alpha.double()
    total = alpha.sum(1, keepdim=True)
    wanted = target_lengths[:, None] * threshold
    return alpha * (wanted / torch.where(total > 0.0, total, 1.0))


def integrate(hidden: Tensor, alpha: Tensor, lengths: Tensor, threshold: float = 1.0) -> Tensor:
    """The embeddings of the first `lengths` [B] tokens of rows -> [B,N,D], zeros behind them.

    Args:
        hidden: [B,T,D], `alpha` [B,T] as `cif` has them, the latter scaled where lengths are given.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    shares = fire_shares(alpha, lengths, threshold, dtype=wide)
    with torch.autocast(hidden.device.type, enabled=False):
        return (shares @ hidden.to(wide)).to(hidden.dtype)


def fire_shares(
    alpha: Tensor, lengths: Tensor, threshold: float = 1.0, *, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Splits each position's weight [B,T] among the first `lengths` [B] tokens -> [B,N,T].

    The running sum of the weights is fp64, so that rounding neither adds a token nor loses one.
    """
    ends = alpha.double().cumsum(1)
    begins = F.pad(ends[:, :-1], (1, 0))
    with torch.no_grad():
        first, last = (begins / threshold).floor().long(), (ends / threshold).floor().long()
        span = int((last - first).max()) + 1  # tokens that a position takes part in, at most
        tokens = first[:, :, None] + torch.arange(span, device=alpha.device)  # [B,T,span]
        count = int(lengths.max())
    shares = torch.minimum(ends[:, :, None], (tokens + 1) * threshold)
    shares = (shares - torch.maximum(begins[:, :, None], tokens * threshold)).clamp(min=0.0)
    tokens = torch.where(tokens < lengths[:, None, None], tokens, count)
    found = shares.new_zeros(*alpha.shape, count + 1, dtype=dtype)  # the last is for what no token has
    return found.scatter(2, tokens, shares.to(dtype))[:, :, :count].transpose(1, 2)  # [B,T,N+1] -> [B,N,T]


def quantity_loss(alpha: Tensor, target_lengths: Tensor, threshold: float = 1.0) -> Tensor:
    """Distance of the sums of weights [B,T] from the target lengths [B]: absolute, in tokens, summed.

    The mean absolute error of Gao et al. 2022, section 3.4, whose mean is the caller's.
    """
    wide = torch.promote_types(alpha.dtype, torch.float32)
    return (alpha.to(wide).sum(1) / threshold - target_lengths).abs().sum()
