"""Verification of drafts that the user gives: what another system, a person or an earlier run has output."""

from __future__ import annotations

from nartk.decoders.drafters.aligned_text import spelling
from nartk.decoders.drafters.given_drafts import GivenDrafts
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.protocols.passes import PassScorer
from nartk.registry import option, register_decoder


@register_decoder("verify")
class VerifyDrafts(AdaptiveDrafts):
    """Verifies drafts that are given with the sentences; equal to greedy search token for token."""

    reads_drafts = True

    max_draft: int = option(0, "longest draft verified at once, tokens; 0: no bound", low=0)
    nodes: int = option(
        256, "most tokens verified at once of all drafts; 0: the best draft alone, without this bound", low=0
    )

    def make_drafter(self, scorer: PassScorer) -> GivenDrafts:
        return GivenDrafts(spelling(scorer.vocab), max_draft=self.max_draft, nodes=self.nodes)
