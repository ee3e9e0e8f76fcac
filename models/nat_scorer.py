"""Serves the non-autoregressive Transformer to decoders that fill canvases.

Symbols: B rows, T places of the canvas, N lengths, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nartk.models.lengths import pool
from nartk.models.nar_scorer import NarScorer, NarState
from nartk.models.nat import MASK, Nat
from nartk.sums import tree_sum


class NatScorer(NarScorer):
    """Implements nartk.scorer.CanvasScorer for a `Nat`."""

    model: Nat
    mask = MASK

    @torch.inference_mode()
    def predict_lengths(self, state: NarState) -> Tensor:
        """[B,N] fp32: log-probability that the output has n tokens, eos included; minus infinity at 0.

        N is the model's longest target and 1. What the predictor gives to lengths outside of 1 to N - 1 goes
        to the nearest of them.
        """
        kept = self.columns(state.memory.shape[1]) < state.lengths[:, None]
        chances = self.linear(self.model.lengths, pool(state.memory, kept)).float().softmax(1)  # [B,C]
        longest, most = self.config.max_target_len, self.model.config.length_difference
        length = state.lengths[:, None] + self.columns(2 * most + 1) - most
        found = chances.new_zeros(chances.shape[0], longest + 1)
        if not self.exact:
            return found.scatter_add_(1, length.clamp(1, longest), chances).log()
        # Each length but the first and the last has one class; the others are added up apart.
        inside = (length > 1) & (length < longest)
        found.scatter_(1, torch.where(inside, length, 0), chances)
        outside = torch.stack([length <= 1, (length >= longest) & (length > 1)], 2)
        ends = tree_sum(torch.where(outside, chances[:, :, None], 0.0))  # [B,2]
        found[:, 1] += ends[:, 0]
        found[:, longest] += ends[:, 1]
        found[:, 0] = 0.0
        return found.log()

    @torch.inference_mode()
    def fill(self, canvas: Tensor, lengths: Tensor, state: NarState, places: Tensor | None = None) -> Tensor:
        """Logits [B,T,V] of a canvas [B,T] int64 of which lengths [B] places count; 0 at the others.

        With `places` [B,T] bool, the logits [N,V] of these alone, row after row.
        """
        x = self.model.inputs(canvas, lengths, state.tokens, state.lengths)
        return self.fill_inputs(x, lengths, state, places)
