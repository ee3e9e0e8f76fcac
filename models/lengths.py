"""Predicting how long an output is from the encoded source, as its difference from the source's length.

Symbols: B rows, S source positions, D features, C classes: the differences from -most to most.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.parts import Linear
from nartk.models.layers import init_linears
from nartk.models.nar import wide


def predictor(part: Linear) -> nn.Linear:
    """Linear layer from pooled sources [B,D] to logits [B,C] of the target's length less the source's."""
    layer = nn.Linear(part.inputs, part.outputs)
    init_linears(layer)
    return layer


def pool(memory: Tensor, kept: Tensor) -> Tensor:
    """The mean over each source, of memory [B,S,D] where `kept` [B,S] -> [B,D]; summed in fp32 or wider."""
    total = wide(memory).masked_fill(~kept[:, :, None], 0.0).sum(1)
    return (total / kept.sum(1, keepdim=True)).to(memory.dtype)


def length_loss(logits: Tensor, differences: Tensor) -> Tensor:
    """The mean cross-entropy, nats, of logits [B,C] for differences [B]; larger ones count as the largest."""
    most = logits.shape[1] // 2
    return F.cross_entropy(wide(logits), differences.clamp(-most, most) + most)
