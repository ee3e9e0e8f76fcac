"""Drafts that the user gives: what another system, a person or an earlier run has output."""

from __future__ import annotations

from nartk.decoders.drafters.aligned_text import AlignedText, Spelling, aligned_position
from nartk.decoders.loop.drafter import Draft, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.decoders.loop.trees import merged
from nartk.protocols.hypothesis import Request


class GivenDrafts(PlainDrafter):
    """Proposes the rest of each draft, from the position on that the output has reached in it.

    A draft need not be the output: after a mismatch the aligned rule of `SourceCopy` finds the position.
    Several drafts make a tree: no fewer tokens are accepted than of any of them. First comes the one whose
    suffix and alignment speak most, of equal ones the first.

    Args:
        max_draft: Longest draft, tokens; 0: no bound.
        nodes: Most tokens of all drafts; 0: the best draft alone, without this bound.
    """

    def __init__(self, spelt: Spelling, *, max_draft: int = 0, nodes: int = 256) -> None:
        self.spelt, self.max_draft, self.nodes = spelt, max_draft, nodes
        self.words = len(spelt.begins) - 1

    def begin(self, request: Request) -> list[AlignedText]:
        known = ([word if 0 <= word < self.words else -1 for word in draft] for draft in request.drafts)
        return list(map(AlignedText, known))

    def propose(self, row: Row, budget: int) -> Draft:
        output = row.tokens
        ranked: list[tuple[int, AlignedText]] = []
        for text in row.state:
            position, worth = 0, 0
            if output:
                text.match(output)
                position, worth = aligned_position(text, self.spelt, output)
            text.move(position, output)
            if position < len(text.words):
                ranked.append((worth, text))
        ranked.sort(key=lambda pair: -pair[0])  # stable
        drafts = [
            Draft(text.following(text.cursor, self.max_draft if self.max_draft else len(text.words)))
            for _, text in ranked
        ]
        if not drafts:
            return Draft()
        if not self.nodes:
            return drafts[0]
        if len(drafts) == 1:
            return Draft(drafts[0].tokens[: self.nodes])
        return merged(drafts, most=self.nodes)
