"""Drafts with the source itself (Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022, arXiv:2205.10350).

Where the output resembles the input, the rest of the input is the draft. After a mismatch the drafter looks
for the position that the output has reached in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nartk.decoders.drafters.aligned_text import (
    AlignedText,
    Spelling,
    aligned_position,
    spelling,
    unique_position,
)
from nartk.decoders.loop.drafter import Draft, Drafter, DrafterOptions, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import CopiesSource, IntArray, copied_words
from nartk.registry import option, register_drafter


@register_drafter("source")
class SourceDrafts(DrafterOptions):
    """The rest of the source, from the position on that the output has reached."""

    needs: ClassVar[type | tuple[type, ...]] = (CopiesSource,)

    anchor: str = option(
        "aligned",
        "how to find the output's position in the source: by its longest recurring suffix and what was "
        "copied before, or only by a suffix of 1 to 3 tokens that occurs once",
        choices=("aligned", "unique"),
    )
    max_draft: int = option(0, "longest draft, tokens; 0: no bound", low=0)

    def make_drafter(self, scorer: Any) -> Drafter:
        spelt = spelling(scorer.vocab) if self.anchor == "aligned" else None
        return SourceCopy(scorer.source_to_target, spelt, max_draft=self.max_draft)


class SourceCopy(PlainDrafter):
    """Proposes the source from the position on that the output has reached.

    Without `spelt`, the unique rule: the position is after the shortest suffix of the output that occurs once
    in the source. Where there is none, nothing is drafted. With it, the aligned rule of `aligned_position`.

    The aligned rule never takes more passes than the unique rule. Suppose that before some pass the unique
    rule has u tokens, and the aligned rule a >= u. A unique rule without a draft gains one token, and no rule
    gains fewer. With a draft, its suffix occurs once, and so does the suffix with copied tokens after it: if
    a lies among the tokens that it will copy, the aligned rule drafts the rest of them, else it is ahead
    already.

    Args:
        source_to_target: Same as in `CopiesSource`.
        max_draft: Longest draft, tokens; 0: no bound.
    """

    def __init__(
        self, source_to_target: IntArray, spelt: Spelling | None = None, *, max_draft: int = 0
    ) -> None:
        self.targets = source_to_target.tolist()
        self.spelt, self.max_draft = spelt, max_draft

    def begin(self, request: Request) -> AlignedText:
        """A request's source, which an output copies."""
        return AlignedText([self.targets[word] for word in copied_words(request.source)])

    def propose(self, row: Row, budget: int) -> Draft:
        return Draft(self.following(row.state, row.tokens, budget))

    def following(self, text: AlignedText, output: Sequence[int], budget: int) -> list[int]:
        """At most so many words that may follow an output, whose position in the text it moves."""
        position: int | None = 0
        if output:
            text.match(output)
            if self.spelt is None:
                position = unique_position(text)
            else:
                position, _ = aligned_position(text, self.spelt, output)
        text.move(0 if position is None else position, output)
        if position is None:
            return []
        return text.following(position, min(budget, self.max_draft) if self.max_draft else budget)
