"""Drafts for beam search: what each hypothesis may go on with."""

from __future__ import annotations

import numpy as np

from nartk.decoders.drafters.aligned_text import AlignedText, spelling
from nartk.decoders.drafters.source_copy import SourceCopy
from nartk.decoders.drafters.token_recycling import AdjacencyMatrix
from nartk.decoders.loop.drafter import Draft
from nartk.decoders.search.beam_rows import Beam
from nartk.errors import StrategyMismatchError, named
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import ROOT, CopiesSource, IntArray, PassScorer

_REMEMBERED = 2  # successors of a word
# By name, whether a draft copies the source, and whether it has the words that were best before.
DRAFTS = {"none": (False, False), "source": (True, False), "recycling": (False, True), "both": (True, True)}


class BeamDrafter:
    """Proposes a chain for every hypothesis, and beside its first token another one.

    The chain is the source from the position on that the hypothesis has reached; where there is none, the
    best successors. The other token is the best successor of the hypothesis' last that does not begin the
    chain.

    Args:
        copy: Copies the source, or None.
        adjacency: The words known to follow each, or None.
        eos: After which nothing is drafted.
        max_draft: Longest chain, tokens.
    """

    def __init__(
        self,
        copy: SourceCopy | None,
        adjacency: AdjacencyMatrix | None,
        *,
        eos: int,
        max_draft: int,
    ) -> None:
        self.copy, self.adjacency, self.max_draft = copy, adjacency, max_draft
        self.eos = eos

    def start(self, request: Request) -> AlignedText | None:
        """The state of a sentence's first hypothesis; those that come from it get copies."""
        return None if self.copy is None else self.copy.begin(request)

    def draft(self, beam: Beam) -> Draft:
        """Drafts what may follow a hypothesis."""
        chain: list[int] = []
        if self.copy is not None:
            chain = self.copy.following(beam.state, beam.tokens, self.max_draft)
        if self.adjacency is None:
            return Draft(self._without_eos(chain))
        if not chain:
            chain = self._best_after(self.adjacency, beam.last)
        others = [word for word in self.adjacency.after(beam.last) if word >= 0 and word not in chain[:1]]
        chain, others = self._without_eos(chain), self._without_eos(others[:1])
        return Draft([*chain, *others], [*range(ROOT, len(chain) - 1), *[ROOT] * len(others)])

    def observe(self, beam: Beam, best: IntArray) -> None:
        """Sees the best words [C] after a hypothesis."""
        if self.adjacency is not None:
            self.adjacency.record(np.array([beam.last], np.int32), best[None, :_REMEMBERED])

    def _best_after(self, adjacency: AdjacencyMatrix, last: int) -> list[int]:
        """The best word after a token, the best after this, and so on, as far as they are known."""
        found: list[int] = []
        while len(found) < self.max_draft and (last := adjacency.after(last)[0]) >= 0:
            found.append(last)
        return found

    def _without_eos(self, words: list[int]) -> list[int]:
        return words[: words.index(self.eos)] if self.eos in words else words


def make_beam_drafter(scorer: PassScorer, draft: str, max_draft: int) -> BeamDrafter | None:
    """The drafter that is named so in `DRAFTS`."""
    copies, remembers = DRAFTS[draft]
    if not copies and not remembers:
        return None
    copy = None
    if copies:
        if not isinstance(scorer, CopiesSource):
            raise StrategyMismatchError(
                f"{named('draft', draft)} needs a CopiesSource, this model is none", fix="leave it out"
            )
        copy = SourceCopy(scorer.source_to_target, spelling(scorer.vocab), max_draft=max_draft)
    adjacency = AdjacencyMatrix(len(scorer.vocab), _REMEMBERED) if remembers else None
    return BeamDrafter(copy, adjacency, eos=scorer.vocab.eos, max_draft=max_draft)
