"""Strategies that promise greedy search's output and are wrong on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nartk import registry
from nartk.decoders.greedy import Greedy
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import PassScorer
from nartk.registry import register_decoder


@pytest.fixture
def own_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies that a test registers are gone after it."""
    registry.strategies()
    monkeypatch.setattr(registry.DECODERS, "classes", dict(registry.DECODERS.classes))


def wrong_strategy(name: str, change: Callable[[Hypothesis], Hypothesis]) -> None:
    """Registers greedy search whose results are changed."""

    class Wrong(Greedy):
        promise = Promise(Guarantee.IDENTICAL, "it says")

        def run(self, scorer: PassScorer, requests: Sequence[Request], **options: Any) -> Iterator[Result]:
            for result in super().run(scorer, requests, **options):
                (hypothesis,) = result.hypotheses
                yield dataclasses.replace(result, hypotheses=(change(hypothesis),))

    register_decoder(name)(Wrong)


def swapping(word: int, other: int) -> Callable[[Hypothesis], Hypothesis]:
    """A change that puts one word in the place of another."""

    def swap(hypothesis: Hypothesis) -> Hypothesis:
        tokens = tuple(other if token == word else token for token in hypothesis.tokens)
        return dataclasses.replace(hypothesis, tokens=tokens)

    return swap
