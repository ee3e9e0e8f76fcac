"""Decoding of glancing and vanilla models in a single pass (Qian et al. 2021, arXiv:2008.07905).

With several lengths and a model to choose among them it is noisy parallel decoding (Gu et al. 2018,
arXiv:1711.02281, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence

from nartk.decoders.canvas import Candidate, CanvasStrategy, refill
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.parallel import CanvasScorer
from nartk.registry import register_decoder


@register_decoder("glat")
class Glat(CanvasStrategy):
    """Takes the best word of every place at once; of several lengths the best output."""

    promise = Promise(Guarantee.APPROXIMATE, "each word is chosen without the others")

    def write(self, scorer: CanvasScorer, candidates: Sequence[Candidate]) -> None:
        refill(scorer, [(candidate, range(candidate.words)) for candidate in candidates], 1)
