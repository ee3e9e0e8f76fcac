"""Decoding of glancing and vanilla models in a single pass (Qian et al. 2021, arXiv:2008.07905).

With several lengths and a model to choose among them it is noisy parallel decoding (Gu et al. 2018,
arXiv:1711.02281, section 4).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nartk.decoders.canvas import CanvasStrategy, Filled, blank, refill
from nartk.registry import register_decoder
from nartk.scorer import CanvasScorer


@register_decoder("glat")
class Glat(CanvasStrategy):
    """Takes the best word of every place at once; of several lengths the best output."""

    promise = "approximate: each word is chosen without the others"

    def write(self, scorer: CanvasScorer, state: Any, lengths: Tensor) -> Filled:
        empty = blank(scorer, lengths)
        return refill(scorer, state, lengths, empty, empty.tokens == scorer.mask, 1)
