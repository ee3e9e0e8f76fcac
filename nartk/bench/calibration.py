"""Thresholds of an approximate strategy: the sweep, and the choice."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nartk.journal import Journal
from nartk.registry import options_of

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy

Value: TypeAlias = bool | int | float | str  # of an option
Setting: TypeAlias = dict[str, Any]  # of options
REFERENCE = "greedy"  # what every setting is compared with
# Thresholds that are swept where the user names none.
GRIDS: dict[str, dict[str, tuple[Value, ...]]] = {
    "bild": {"fallback": (0.1, 0.3, 0.5, 0.8), "rollback": (1.0, 2.0, 4.0, 8.0), "max_draft": (10, 30)},
    "gad": {"beta": (2, 3, 5), "tau": (0.5, 1.0, 2.0, 4.0)},
}
LEVEL = 0.95


@dataclass(frozen=True)
class TimedOutput:
    """One decoding of the sentences: its time, its outputs, and counts summed over sentences.

    Attributes:
        passes: Passes of the verifier.
        drafter_passes: Passes of the drafter.
        drafted: Drafted tokens that the verifier scored.
        greedy: Seconds of greedy search, in the same round of the same run.
    """

    seconds: float
    texts: Sequence[str]
    tokens: int
    passes: int
    drafter_passes: int
    drafted: int
    greedy: float = 0.0


# Decodes the sentences with a setting, or with greedy search where it is None.
Measure: TypeAlias = Callable[[Setting | None], TimedOutput]


@dataclass(frozen=True)
class Scored:
    """The score of some texts, and those of resamples [samples], the same resamples for all texts."""

    score: float
    resampled: np.ndarray


@dataclass(frozen=True)
class Drop:
    """Difference by which a score lies below another one.

    Attributes:
        low, high: The 95 % interval of the drop, paired bootstrap.
        bound: Upper bound of the drop with 95 % confidence (one-sided).
    """

    drop: float
    low: float
    high: float
    bound: float

    @classmethod
    def between(cls, base: Scored, other: Scored) -> Drop:
        drops = base.resampled - other.resampled
        low, high, bound = np.quantile(drops, [(1 - LEVEL) / 2, (1 + LEVEL) / 2, LEVEL]).tolist()
        return cls(base.score - other.score, low, high, bound)


@dataclass(frozen=True)
class Point:
    """A setting with its measured speed and quality.

    Attributes:
        speeds: Speed over greedy search's, by round.
        passes, drafter_passes, drafted: A TimedOutput's counts, an output token.
        score: In the metric's own units, as the drop.
        tokens_per_second: Output tokens, median of the rounds.
    """

    setting: Setting
    speeds: tuple[float, ...]
    score: float
    drop: Drop
    passes: float
    drafter_passes: float
    drafted: float
    tokens_per_second: float

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)


def settings_of(grid: Mapping[str, Sequence[Value]]) -> list[Setting]:
    """All combinations of a grid's values."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def label(setting: Setting | None) -> str:
    """A setting in words; None is greedy search."""
    if not setting:
        return REFERENCE
    return ", ".join(f"{name} {short(value)}" for name, value in setting.items())


def short(value: Value) -> str:
    """A threshold's value in few digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def sweep(
    settings: Sequence[Setting],
    measure: Measure,
    score: Callable[[Sequence[str]], Scored],
    *,
    rounds: int,
    journal: Journal | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Point]:
    """Measures greedy search, which comes first, and all settings.

    Each round decodes with greedy search and then with every setting; it begins with another setting.

    Args:
        score: Scores the texts of all sentences.
        journal: Keeps each sample. Samples that it holds are taken in place of measuring. A run that goes on
            within a round measures greedy search once more: speeds are ratios of times of one run.
        tell: Takes a line after each decoding.
    """
    held = iter([] if journal is None else [TimedOutput(**json.loads(each)) for each in journal.records()])
    samples: list[list[TimedOutput]] = [[] for _ in (None, *settings)]
    greedy = None
    for turn in range(rounds):
        for i in (0, *(1 + (turn + step) % len(settings) for step in range(len(settings)))):
            sample = next(held, None)
            if sample is None:
                if i > 0 and greedy is None:
                    greedy = measure(None).seconds
                sample = measure(settings[i - 1] if i > 0 else None)
                greedy = sample.seconds if i == 0 or greedy is None else greedy
                sample = replace(sample, greedy=greedy)
                if journal is not None:
                    journal.append(json.dumps(asdict(sample)).encode())
                speed = f"{sample.tokens / sample.seconds:.0f} tokens/s"
                tell(f"round {turn + 1} of {rounds}: {label(settings[i - 1] if i > 0 else None)}: {speed}")
            samples[i].append(sample)
    scores = [score(each[0].texts) for each in samples]
    return [
        _point(setting, each, scored, scores[0])
        for setting, each, scored in zip(({}, *settings), samples, scores, strict=True)
    ]


def _point(setting: Setting, samples: Sequence[TimedOutput], scored: Scored, reference: Scored) -> Point:
    last = samples[-1]
    tokens = max(1, last.tokens)
    return Point(
        setting=setting,
        speeds=tuple(sample.greedy / sample.seconds for sample in samples),
        score=scored.score,
        drop=Drop.between(reference, scored),
        passes=last.passes / tokens,
        drafter_passes=last.drafter_passes / tokens,
        drafted=last.drafted / tokens,
        tokens_per_second=last.tokens / statistics.median(sample.seconds for sample in samples),
    )


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other one dominates (as fast with a drop as small, and one of the two better).

    The fastest comes first; points that are equal stay together.
    """

    def rank(point: Point) -> tuple[float, float]:
        return -point.speed, point.drop.drop

    best: list[Point] = []
    for point in sorted(points, key=rank):
        if not best or point.drop.drop < best[-1].drop.drop or rank(point) == rank(best[-1]):
            best.append(point)
    return best


TRUSTS = {"bound": attrgetter("drop.bound"), "point": attrgetter("drop.drop")}  # of a point, by name


def choose(points: Sequence[Point], max_drop: float, *, trust: str = "bound") -> tuple[Point, bool]:
    """The fastest point whose drop is at most `max_drop`, and True; else the one nearest to it, and False.

    Of equally fast ones, and of equally near ones, the one with the smaller drop, or the faster, is chosen.

    Args:
        trust: Estimate of the drop that is compared: its ``bound``, or the ``point`` estimate.
    """
    trusted = TRUSTS[trust]
    fitting = [point for point in points if trusted(point) <= max_drop]
    if fitting:
        return max(fitting, key=lambda point: (point.speed, -trusted(point))), True
    return min(points, key=lambda point: (trusted(point), -point.speed)), False


def own_options(strategy: Strategy, but: Sequence[str]) -> Setting:
    """The values of a strategy's options that greedy search does not have, but for those named and models."""
    shared = options_of(REFERENCE)
    return {
        key: getattr(strategy, key)
        for key, item in options_of(strategy.name).items()
        if key not in shared and key not in but and not item.metadata["model"]
    }
