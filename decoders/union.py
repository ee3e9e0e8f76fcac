"""Drafts from several drafters that need no training, verified together as one tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from nartk.decoders.drafters.aligned_text import spelling
from nartk.decoders.drafters.ngram_cache import NgramCache
from nartk.decoders.drafters.source_copy import SourceCopy
from nartk.decoders.drafters.token_recycling import TokenRecycling
from nartk.decoders.drafters.union import Union
from nartk.decoders.loop.drafter import Drafter
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.errors import UsageError
from nartk.passes import CopiesSource, PassScorer
from nartk.registry import option, register_decoder

_MAX_NGRAM = 4  # tokens
_TREE = (4, 3, 2)  # candidates at each level, of token recycling
_CANDIDATES = 8  # of token recycling, after each word
_RECYCLED = 6  # levels: what was ranked after a word elsewhere hardly ever follows further on

_DRAFTERS: dict[str, Callable[[Any, int], Drafter]] = {
    "source": lambda scorer, longest: SourceCopy(
        scorer.source_to_target, spelling(scorer.vocab), max_draft=longest
    ),
    "ngram": lambda scorer, longest: NgramCache(
        scorer.source_to_target, max_ngram=_MAX_NGRAM, max_draft=longest
    ),
    "recycling": lambda scorer, longest: TokenRecycling(
        len(scorer.vocab),
        start_token=scorer.start_token,
        eos=scorer.vocab.eos,
        k=_CANDIDATES,
        max_draft=min(longest, _RECYCLED),
        shape=_TREE,
    ),
}


@register_decoder("union")
class UnionOfDrafts(AdaptiveDrafts):
    """Drafts with the source, an n-gram cache and token recycling at once; equal to greedy search."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer, CopiesSource)
    drafters: str = option(
        "source,ngram,recycling", f"whose drafts are verified, the best first: some of {', '.join(_DRAFTERS)}"
    )
    max_draft: int = option(50, "longest draft of each, tokens; 0: none", low=0)
    nodes: int = option(96, "most tokens verified at once of all drafts, the first drafter's first", low=1)

    def __post_init__(self) -> None:
        names = self.drafters.split(",")
        if len({*names} & {*_DRAFTERS}) < len(names):
            raise UsageError(
                f"--drafters is {self.drafters!r}", fix=f"name some of {','.join(_DRAFTERS)}, each once"
            )

    def make_drafter(self, scorer: Any) -> Union:
        drafters = [_DRAFTERS[name](scorer, self.max_draft) for name in self.drafters.split(",")]
        return Union(drafters, words=len(scorer.vocab), max_draft=self.max_draft, nodes=self.nodes)
