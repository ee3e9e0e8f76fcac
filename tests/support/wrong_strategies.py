"""Strategies that promise greedy search's output and are wrong on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from nartk import registry
from nartk.decoders.greedy import Greedy
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, Result
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import Batching, Ended, Run
from nartk.registry import register_decoder


@pytest.fixture
def own_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies that a test registers are gone after it."""
    registry.strategies()
    monkeypatch.setattr(registry.DECODERS, "classes", dict(registry.DECODERS.classes))


class Changing:
    """A run whose results are changed."""

    def __init__(self, inner: Run, change: Callable[[Hypothesis], Hypothesis]) -> None:
        self.inner, self.change = inner, change

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self) -> list[Ended]:
        return [(request, self._changed(result)) for request, result in self.inner.step()]

    def _changed(self, result: Result) -> Result:
        (hypothesis,) = result.hypotheses
        return dataclasses.replace(result, hypotheses=(self.change(hypothesis),))


def wrong_strategy(name: str, change: Callable[[Hypothesis], Hypothesis]) -> None:
    """Registers greedy search whose results are changed."""

    class Wrong(Greedy):
        promise = Promise(Guarantee.IDENTICAL, "it says")

        def begin(self, scorer: PassScorer, batching: Batching) -> Any:
            return Changing(super().begin(scorer, batching), change)

    register_decoder(name)(Wrong)


def swapping(word: int, other: int) -> Callable[[Hypothesis], Hypothesis]:
    """A change that puts one word in the place of another."""

    def swap(hypothesis: Hypothesis) -> Hypothesis:
        tokens = tuple(other if token == word else token for token in hypothesis.tokens)
        return dataclasses.replace(hypothesis, tokens=tokens)

    return swap
