"""Layers of a model that draft for it, of which tests see the scorers that were made."""

from __future__ import annotations

import random
from typing import Any

from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.protocols.passes import PassScorer
from nartk.protocols.views import SUBLAYERS
from support.small_passes import Near, random_small


class KeptLayers(OwnLayers):
    """Makes one view of each scorer."""

    views: dict[int, Any]

    def __init__(self, layers: int | None = None, skip: tuple[str, ...] = ()) -> None:
        super().__init__(layers, skip)
        object.__setattr__(self, "views", {})

    def of(self, scorer: object) -> PassScorer:
        if id(scorer) not in self.views:
            self.views[id(scorer)] = self.made(scorer)
        found: PassScorer = self.views[id(scorer)]
        return found

    def made(self, scorer: Any) -> Any:
        return super().of(scorer)

    @property
    def cells_in_use(self) -> int:
        return sum(each.cells_in_use for each in self.views.values())

    @property
    def memories_in_use(self) -> int:
        return sum(each.memories_in_use for each in self.views.values())


class LayersOfTable(KeptLayers):
    """Those of a table of scores: a table near it, over the same encoded sources."""

    def __init__(self, seed: int) -> None:
        super().__init__(1)
        object.__setattr__(self, "seed", seed)

    def made(self, scorer: Any) -> Near:
        found = random_small(random.Random(self.seed), scorer)
        found.sources = scorer.sources
        return found


def random_skip(rng: random.Random, layers: int) -> tuple[str, ...]:
    """Names of one to three sublayers of so many layers."""
    names = [f"decoder.{i}.{each}" for i in range(layers) for each in SUBLAYERS]
    return tuple(rng.sample(names, rng.randint(1, min(3, len(names)))))


def random_layers(rng: random.Random, layers: int) -> KeptLayers:
    """Some of so many layers: the first, or all without some sublayers, or the first without some."""
    count = rng.choice([None, *range(1, layers + 1)])
    is_whole = count is None or count == layers
    skip = random_skip(rng, layers if count is None else count) if is_whole or rng.random() < 0.3 else ()
    return KeptLayers(count, skip)
