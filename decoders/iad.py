"""Input-guided aggressive decoding (Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022, arXiv:2205.10350)."""

from nartk.decoders.drafters.source_copy import SourceDrafts
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.protocols.passes import CopiesSource, PassScorer
from nartk.registry import register_decoder


@register_decoder("iad")
class InputGuidedAggressive(SourceDrafts, AdaptiveDrafts):
    """Drafts with the source itself; equal to greedy search token for token."""

    needs = (PassScorer, CopiesSource)
