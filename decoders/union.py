"""Drafts from several drafters that need no other model, verified together as one tree."""

from __future__ import annotations

from nartk.decoders.drafters.union import Union
from nartk.decoders.loop.drafter import of_verifier
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.errors import UsageError, named
from nartk.protocols.passes import CopiesSource, PassScorer
from nartk.registry import option, register_decoder


@register_decoder("union")
class UnionOfDrafts(AdaptiveDrafts):
    """Drafts with the source, an n-gram cache and token recycling at once; equal to greedy search."""

    needs = (PassScorer, CopiesSource)

    drafters: str = option(
        "source,ngram,recycling",
        f"whose drafts are verified, the best first: some of {', '.join(of_verifier())}",
    )
    max_draft: int = option(50, "longest draft of each, tokens; 0: none", low=0)
    nodes: int = option(
        96,
        "most tokens verified at once of all drafts, the first drafter's first; so many cost a CPU more than "
        "they save",
        low=1,
    )

    def __post_init__(self) -> None:
        names, known = self.drafters.split(","), of_verifier()
        if len({*names} & known.keys()) < len(names):
            raise UsageError(
                f"{named('drafters')} is {self.drafters!r}", fix=f"name some of {','.join(known)}, each once"
            )

    def make_drafter(self, scorer: PassScorer) -> Union:
        declared = [of_verifier()[name].beside_others(self.max_draft) for name in self.drafters.split(",")]
        drafters = [each.make_drafter(scorer) for each in declared]
        return Union(drafters, words=len(scorer.vocab), max_draft=self.max_draft, nodes=self.nodes)
