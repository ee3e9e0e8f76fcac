"""Verification of drafts that the user gives: what another system, a person or an earlier run has output.

A draft need not be the output: after a mismatch the drafter looks, as `iad` does in the source, for the
position in each draft that the output has reached.
"""

from __future__ import annotations

from typing import ClassVar

from nartk.decoders.drafters.aligned_text import spelling
from nartk.decoders.drafters.given_drafts import GivenDrafts
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.passes import PassScorer
from nartk.registry import option, register_decoder


@register_decoder("verify")
class VerifyDrafts(AdaptiveDrafts):
    """Verifies drafts that are given with the sentences; equal to greedy search token for token."""

    reads_drafts: ClassVar[bool] = True

    max_draft: int = option(0, "longest draft verified at once, tokens; 0: no bound", low=0)
    nodes: int = option(
        256, "most tokens verified at once of all drafts; 0: the best draft alone, without this bound", low=0
    )

    def make_drafter(self, scorer: PassScorer) -> GivenDrafts:
        return GivenDrafts(spelling(scorer.vocab), max_draft=self.max_draft, nodes=self.nodes)
