"""Small autoregressive models over passes that draft in tests: near the verifier, or garbage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.registry import make_strategy
from support.real_passes import UNIT, RealPasses
from support.scripted_passes import EOS, PAD, TablePasses


def drafting(name: str, drafter: Any, **options: Any) -> Any:
    """The strategy `name` with a drafter."""
    return dataclasses.replace(make_strategy(name, options), auxiliary={"drafter": drafter})


class Near(TablePasses):
    """Scores as another scorer does, with some noise from another table."""

    def __init__(self, scorer: TablePasses, *, seed: int, noise: float) -> None:
        super().__init__(scorer.table)
        self.scorer, self.noise = scorer, noise
        self.other = type(scorer).__new__(type(scorer))
        vars(self.other).update(vars(scorer), table=dataclasses.replace(scorer.table, seed=seed), _keys={})

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        return self.scorer.scores(sources, paths) + self.noise * self.other.scores(sources, paths)

    def logits(self, source: Sequence[int], output: Sequence[int]) -> list[float]:
        """Of each word after an output, in plain Python."""
        unit = UNIT if isinstance(self.scorer, RealPasses) else 1
        scores, other = (
            each.table.scores_by_hand(source, [EOS, *output]) for each in (self.scorer, self.other)
        )
        return [(a + self.noise * b) / unit for a, b in zip(scores, other, strict=True)]


class Light(Near):
    """The same without an encoder: reads the words that the scorer shows as encoded."""

    encoded_features = 1

    def encode(self, sources: Sequence[Any]) -> Any:
        return super().encode([tuple(map(int, source.frames[:, 0])) for source in sources])


Rows = npt.NDArray[np.float64]
# What cannot be read is an error by name, whoever scores it; the rest only drafts badly.
UNREADABLE: dict[str, Callable[[Rows], Rows]] = {
    "NaN": lambda scores: np.full_like(scores, np.nan),
    "now and then NaN": lambda scores: np.where(scores == scores.max(1, keepdims=True), np.nan, scores),
    "infinity": lambda scores: np.full_like(scores, np.inf),
}
GARBAGE: dict[str, Callable[[Rows], Rows]] = {
    "pad": lambda scores: 99.0 * (np.arange(scores.shape[1]) == PAD) + 0.0 * scores,
    "eos": lambda scores: 99.0 * (np.arange(scores.shape[1]) == EOS) + 0.0 * scores,
    "the opposite": lambda scores: -1.0 * scores,
    "one word alone": lambda scores: np.where(np.arange(scores.shape[1]) == 4, 0.0, -np.inf) + 0.0 * scores,
    "ever the same": lambda scores: 0.0 * scores,
}


class Garbage(Near):
    """Scores otherwise than a table: see `GARBAGE` and `UNREADABLE`."""

    def __init__(self, scorer: TablePasses, kind: str) -> None:
        super().__init__(scorer, seed=0, noise=0.0)
        self.kind = kind

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        scores = np.asarray(self.scorer.scores(sources, paths), np.float64)
        return (GARBAGE | UNREADABLE)[self.kind](scores)


def random_small(rng: Any, scorer: TablePasses, kind: type[Near] = Near) -> Near:
    """One that is near a scorer, or less so."""
    return kind(scorer, seed=rng.getrandbits(60), noise=rng.choice([0.0, 0.3, 0.7, 1.5]))
