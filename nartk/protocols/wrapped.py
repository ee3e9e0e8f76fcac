"""A scorer of passes around another one, which changes some of what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nartk.protocols.passes import IntArray, Limits, Source, costs_of
from nartk.vocab import Vocab


class WrappedPasses:
    """Base of those that implement `PassScorer` so: a subclass adds `run` and `commit`.

    Args:
        scorer: The other one.
    """

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self.vocab: Vocab = scorer.vocab
        self.limits: Limits = scorer.limits
        self.start_token: int = scorer.start_token
        self.costs = costs_of(scorer)

    def encode(self, sources: Sequence[Source]) -> IntArray:
        found: IntArray = self.scorer.encode(sources)
        return found

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.scorer.free(memory)

    def open(self, count: int) -> IntArray:
        found: IntArray = self.scorer.open(count)
        return found

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        found: IntArray = self.scorer.fork(contexts)
        return found

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self.scorer.truncate(contexts, lengths)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self.scorer.close(contexts)

    @property
    def cells_in_use(self) -> int:
        found: int = self.scorer.cells_in_use
        return found
