"""Drafts from several drafters that need no training, verified together as one tree.

Symbols: B rows, T output positions, N tokens fed in all, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nartk.decoders.learning import Learning
from nartk.decoders.recycling import TokenRecycling
from nartk.decoders.tensor_copy import SourceCopy, spelling
from nartk.decoders.tensor_loop import Draft, Drafter, Fed
from nartk.decoders.tensor_ngram import NgramCache
from nartk.decoders.tree import DraftTree
from nartk.errors import UsageError
from nartk.hypothesis import Request
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer, Source

_MAX_NGRAM = 4  # tokens
_TREE = "4x3x2"  # of token recycling
_RECYCLED = 6  # tokens: what was ranked after a word elsewhere hardly ever stands further on

_DRAFTERS: dict[str, Callable[[Seq2SeqScorer, int], Drafter]] = {
    "source": lambda scorer, longest: SourceCopy(
        scorer.source_to_target, spelling(scorer.vocab).to(scorer.device), longest
    ),
    "ngram": lambda scorer, longest: NgramCache(
        scorer.source_to_target, len(scorer.vocab), _MAX_NGRAM, longest
    ),
    "recycling": lambda scorer, longest: _recycling(min(longest, _RECYCLED)).new_drafter(scorer),
}


def _recycling(longest: int) -> Any:
    strategy: Any = TokenRecycling
    return strategy(max_draft=longest, tree=_TREE)


@register_decoder("union")
class UnionOfDrafts(Learning):
    """Drafts with the source, an n-gram cache and token recycling at once; equal to greedy search."""

    promise = "identical to greedy"

    drafters: str = option(
        "source,ngram,recycling", f"whose drafts are verified, the best first: some of {', '.join(_DRAFTERS)}"
    )
    max_draft: int = option(50, "longest draft of each, tokens; 0: none", low=0)
    nodes: int = option(96, "most tokens fed at once of all drafts, the first drafter's first", low=1)

    def __post_init__(self) -> None:
        names = self.drafters.split(",")
        if len({*names} & {*_DRAFTERS}) < len(names):
            raise UsageError(
                f"--drafters is {self.drafters!r}", fix=f"name some of {','.join(_DRAFTERS)}, each once"
            )

    def new_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        drafters = [_DRAFTERS[name](scorer, self.max_draft) for name in self.drafters.split(",")]
        return UnionDrafter(drafters, len(scorer.vocab), self.max_draft, self.nodes)


@dataclass(frozen=True)
class _States:
    """The state of each drafter."""

    each: tuple[Any, ...]


@dataclass(frozen=True)
class UnionDrafter(Drafter):
    """Proposes what each of several drafters does, as one tree.

    Args:
        drafters: The first one's draft is the first path.
        words: V.
        longest: Most levels.
        nodes: Most tokens at once.
    """

    drafters: Sequence[Drafter]
    words: int
    longest: int
    nodes: int

    def start(self, source: Source, requests: Sequence[Request]) -> _States:
        return _States(tuple(drafter.start(source, requests) for drafter in self.drafters))

    def draft(
        self, state: _States, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _States]:
        found = [
            drafter.draft(own, outputs, lengths, budget)
            for drafter, own in zip(self.drafters, state.each, strict=True)
        ]
        drafts, states = zip(*found, strict=True)
        return DraftTree.unite(drafts, self.words, self.longest, most=self.nodes), _States(states)

    def observe(self, state: _States, logits: Tensor, fed: Fed) -> _States:
        return self._each(state, lambda drafter, own: drafter.observe(own, logits, fed))

    def pause(self, state: _States, lengths: Tensor) -> _States:
        return self._each(state, lambda drafter, own: drafter.pause(own, lengths))

    def select(self, state: _States, rows: Tensor) -> _States:
        return self._each(state, lambda drafter, own: drafter.select(own, rows))

    def join(self, first: _States, second: _States) -> _States:
        triples = zip(self.drafters, first.each, second.each, strict=True)
        return _States(tuple(drafter.join(one, two) for drafter, one, two in triples))

    def _each(self, state: _States, change: Callable[[Drafter, Any], Any]) -> _States:
        pairs = zip(self.drafters, state.each, strict=True)
        return _States(tuple(change(drafter, own) for drafter, own in pairs))
