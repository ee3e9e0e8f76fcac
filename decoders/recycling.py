"""Token recycling (Luo et al. 2024, arXiv:2408.08696): the verifier's own candidates are the next drafts."""

from __future__ import annotations

from nartk.decoders.drafters.token_recycling import TokenRecycling
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.decoders.loop.trees import parse_shape
from nartk.passes import PassScorer
from nartk.registry import option, register_decoder


@register_decoder("recycling")
class Recycling(AdaptiveDrafts):
    """Drafts with the words that the verifier ranked best after the same tokens; equal to greedy search."""

    k: int = option(8, "candidates kept after each word; the best that the draft does not yet hold", low=1)
    max_draft: int = option(6, "longest draft, tokens; 0: none", low=0)
    tree: str = option(
        "",
        "how many of them are drafted at each level, such as 4x3x2, and the best further on: fewer passes, "
        "each of which verifies more, which costs a CPU more than it saves; '': the best alone",
    )

    def __post_init__(self) -> None:
        if self.tree:
            parse_shape(self.tree)

    def make_drafter(self, scorer: PassScorer) -> TokenRecycling:
        return TokenRecycling(
            len(scorer.vocab),
            start_token=scorer.start_token,
            eos=scorer.vocab.eos,
            k=self.k,
            max_draft=self.max_draft,
            shape=parse_shape(self.tree) if self.tree else (),
        )
