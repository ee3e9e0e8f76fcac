"""Mask-predict (Ghazvininejad et al. 2019, arXiv:1904.09324, section 3): fill, mask the worst, fill again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nartk.decoders.canvas import Candidate, CanvasStrategy, refill
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.parallel import CanvasScorer
from nartk.registry import WIDEST, option, register_decoder


@register_decoder("mask-predict")
class MaskPredict(CanvasStrategy):
    """Fills all places, then again and again the least likely ones; of several lengths takes the best output.

    Of N words, pass t of n (from 0) fills N (n - t) / n in, rounded down; a word that stays keeps its
    log-probability. A sentence is done when none is left to fill in, so short ones take fewer passes.
    """

    promise = Promise(Guarantee.APPROXIMATE, "each word is chosen without those of its pass")

    iterations: int = option(10, "passes at most", low=1)
    length_beam: int = option(5, "lengths that are tried, the likeliest", low=1, high=WIDEST)

    def write(self, scorer: CanvasScorer, candidates: Sequence[Candidate]) -> None:
        for t in range(self.iterations):
            worst = []
            for candidate in candidates:
                count = candidate.words * (self.iterations - t) // self.iterations
                order = np.argsort(candidate.log_probs[:-1], kind="stable")  # of equal ones the first
                worst.append((candidate, np.sort(order[:count]).tolist()))
            refill(scorer, worst, t + 1)
