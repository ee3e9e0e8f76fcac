"""Drafts with what followed the same words before, in this sentence or in others of the run."""

from __future__ import annotations

from typing import Any, ClassVar

from nartk.decoders.drafters.ngram_cache import NgramCache
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.passes import CopiesSource, PassScorer
from nartk.registry import option, register_decoder


@register_decoder("ngram")
class NgramDrafts(AdaptiveDrafts):
    """Drafts with what followed the same words before, in this sentence or others; equal to greedy search."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer, CopiesSource)
    max_ngram: int = option(4, "longest suffix of the output that is looked up, tokens", low=1)
    max_draft: int = option(10, "longest draft, tokens; 0: none", low=0)

    def make_drafter(self, scorer: Any) -> NgramCache:
        return NgramCache(scorer.source_to_target, max_ngram=self.max_ngram, max_draft=self.max_draft)
