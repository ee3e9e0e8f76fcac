"""Mask-predict (Ghazvininejad et al. 2019, arXiv:1904.09324, section 3): guess, mask the worst, guess again.

Symbols: R candidates, T places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nartk.decoders.canvas import CanvasStrategy, Filled, blank, refill
from nartk.registry import option, register_decoder
from nartk.scorer import CanvasScorer


@register_decoder("mask-predict")
class MaskPredict(CanvasStrategy):
    """Fills all places, then again and again the least likely ones; of several lengths takes the best output.

    Of N words, pass t of n (from 0) fills N (n - t) / n in, rounded down; a word that stays keeps its
    log-probability. A sentence is done when none is left to fill in, so short ones take fewer passes.
    """

    promise = "approximate: each word is chosen without those of its pass"

    iterations: int = option(10, "passes at most", low=1)
    length_beam: int = option(5, "lengths that are tried, the likeliest", low=1)

    def write(self, scorer: CanvasScorer, state: Any, lengths: Tensor) -> Filled:
        filled = blank(scorer, lengths)
        words = filled.tokens == scorer.mask
        for t in range(self.iterations):
            count = (lengths - 1) * (self.iterations - t) // self.iterations
            if int(count.max()) == 0:
                break
            worst = _lowest(filled.scores.masked_fill(~words, float("inf")), count)
            filled = refill(scorer, state, lengths, filled, worst, t + 1)
        return filled


def _lowest(scores: Tensor, count: Tensor) -> Tensor:
    """The places [R,T] bool of the count [R] lowest scores [R,T], of equal ones the first."""
    order = scores.argsort(dim=1, stable=True)
    first = torch.arange(scores.shape[1], device=scores.device) < count[:, None]
    return torch.zeros_like(first).scatter(1, order, first)
