"""Drafts of non-autoregressive models: the options in common, and which drafter takes which model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nartk.architectures import architectures
from nartk.decoders.loop.drafter import DrafterOptions, PlainDrafter, State
from nartk.errors import StrategyMismatchError, named
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import ParallelScorer
from nartk.protocols.passes import IntArray, costs_of
from nartk.registry import DRAFTERS, option, protocols, speaks


@dataclass(frozen=True, kw_only=True)
class ParallelDrafts(DrafterOptions):
    """Base of what declares a drafter that a non-autoregressive model serves."""

    of_model = True

    block_size: int = option(25, "longest draft, tokens; no more than a blockwise model has learnt", low=1)


@dataclass(frozen=True, kw_only=True)
class BranchingDrafts(ParallelDrafts):
    """Base of what declares a drafter whose drafts may branch."""

    tree: int = option(
        0,
        "tokens that a DA-Transformer drafts beside the best draft, where it may go on otherwise; 0: none",
        low=0,
    )


class ReadOnce(PlainDrafter):
    """Base of drafters that read a source once: it is encoded, read and freed when its row starts.

    Args:
        longest: Most tokens of a draft.
    """

    def __init__(self, scorer: ParallelScorer, *, longest: int) -> None:
        self.scorer, self.longest = scorer, longest

    def read(self, memory: IntArray) -> list[State]:
        """The states of new rows, of encoded sources [B]."""
        raise NotImplementedError

    def tokens(self, levels: int) -> int:
        return min(levels, self.longest)

    def start_time(self, source: float) -> float:
        costs = costs_of(self.scorer)
        return costs.encoding * source + costs.run(source)

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[State]:
        own = self.scorer.encode([request.source for request in requests])
        try:
            return self.read(own)
        finally:
            self.scorer.free(own)


def declared_for(scorer: object) -> type[ParallelDrafts]:
    """The drafter that is made of such a model's scorer.

    Raises:
        StrategyMismatchError: There is none.
    """
    for declared in _parallel():
        if speaks(declared, scorer):
            return declared
    raise StrategyMismatchError(
        f"{named('drafter')} names a model that cannot draft",
        fix=f"name a model of one of these: {drafting()}",
    )


def drafting() -> str:
    """The architectures whose models draft, for messages."""
    needs = {protocol for declared in _parallel() for protocol in protocols(declared)}
    parallel = {name: each for name, each in architectures().items() if not each.autoregressive}
    return ", ".join(name for name, each in parallel.items() if needs & {*each.protocols})


def _parallel() -> Iterator[type[ParallelDrafts]]:
    return (each for each in DRAFTERS.every() if issubclass(each, ParallelDrafts))
