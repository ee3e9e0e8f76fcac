"""What drafts with non-autoregressive models: the options in common, and which drafter takes which model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from nartk.architectures import architectures
from nartk.decoders.loop.drafter import DrafterOptions
from nartk.errors import StrategyMismatchError
from nartk.registry import DRAFTERS, option, protocols, speaks


@dataclass(frozen=True, kw_only=True)
class ParallelDrafts(DrafterOptions):
    """Base of what declares a drafter that a non-autoregressive model serves."""

    of_model: ClassVar[bool] = True

    block_size: int = option(25, "longest draft, tokens; no more than a blockwise model has learnt", low=1)
    tree: int = option(
        0, "tokens that are drafted beside the best draft, where it may go on otherwise; 0: none", low=0
    )


def declared_for(scorer: Any) -> type[ParallelDrafts]:
    """The drafter that is made of such a model's scorer.

    Raises:
        StrategyMismatchError: There is none.
    """
    for declared in _parallel():
        if speaks(declared, scorer):
            return declared
    raise StrategyMismatchError(
        "--drafter names a model that cannot draft", fix=f"name a model of one of these: {drafting()}"
    )


def drafting() -> str:
    """The architectures whose models draft, for messages."""
    needs = {protocol for declared in _parallel() for protocol in protocols(declared)}
    return ", ".join(name for name, each in architectures().items() if needs & {*each.protocols})


def _parallel() -> Iterator[type[ParallelDrafts]]:
    return (each for each in DRAFTERS.every() if issubclass(each, ParallelDrafts))
