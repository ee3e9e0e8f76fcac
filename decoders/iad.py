"""Input-guided aggressive decoding (Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022, arXiv:2205.10350).

Where the output resembles the input, the rest of the input is the draft.
"""

from __future__ import annotations

from typing import Any, ClassVar

from nartk.decoders.drafters.aligned_text import spelling
from nartk.decoders.drafters.source_copy import SourceCopy
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.passes import CopiesSource, PassScorer
from nartk.registry import option, register_decoder


@register_decoder("iad")
class InputGuidedAggressive(AdaptiveDrafts):
    """Drafts with the source itself; equal to greedy search token for token."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer, CopiesSource)
    anchor: str = option(
        "aligned",
        "how to find the output's position in the source: by its longest recurring suffix and what was "
        "copied before, or only by a suffix of 1 to 3 tokens that occurs once",
        choices=("aligned", "unique"),
    )
    max_draft: int = option(0, "longest draft, tokens; 0: no bound", low=0)

    def make_drafter(self, scorer: Any) -> SourceCopy:
        spelt = spelling(scorer.vocab) if self.anchor == "aligned" else None
        return SourceCopy(scorer.source_to_target, spelt, max_draft=self.max_draft)
