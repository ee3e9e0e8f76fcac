"""Token recycling (Luo et al. 2024, arXiv:2408.08696): the verifier's own candidates are the next drafts."""

from nartk.decoders.drafters.token_recycling import RecycledWords
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.registry import register_decoder


@register_decoder("recycling")
class Recycling(RecycledWords, AdaptiveDrafts):
    """Drafts with the words that the verifier ranked best after the same tokens; equal to greedy search."""
