"""Drafts with what followed the same words before, in this sentence or in others of the run."""

from nartk.decoders.drafters.ngram_cache import NgramDrafts
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.protocols.passes import CopiesSource, PassScorer
from nartk.registry import register_decoder


@register_decoder("ngram")
class NgramStrategy(NgramDrafts, AdaptiveDrafts):
    """Drafts with what followed the same words before, in this sentence or others; equal to greedy search."""

    needs = (PassScorer, CopiesSource)
