"""Which thresholds of an approximate strategy to decode with: the sweep, the choice, and where it is kept.

A model folder keeps its choices in ``calibration.json``, one for each strategy and drafter. The model's own
files, and so its fingerprint, stay as they are.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nartk.checkpoints.checkpoint import CALIBRATION as FILE
from nartk.errors import CheckpointError, UsageError
from nartk.files import Journal, read_file, write_json, writing
from nartk.protocols.guarantee import Guarantee
from nartk.registry import make_strategy, options_of

FORMAT = 1
REFERENCE = "greedy"  # what every setting is compared with
# Thresholds that are swept where the user names none.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "bild": {"fallback": (0.1, 0.3, 0.5, 0.8), "rollback": (1.0, 2.0, 4.0, 8.0), "max_draft": (10, 30)},
    "gad": {"beta": (2, 3, 5), "tau": (0.5, 1.0, 2.0, 4.0)},
}
LEVEL = 0.95
_MOST = 10_000_000  # bytes of the file
PART = 3  # one sentence in so many, the first ones, tells which settings are hopeless
PART_ROUNDS = 2
CLEARLY = 1.1  # times as fast, in each round, that a setting is on the first sentences to count as faster

Setting: TypeAlias = dict[str, Any]  # values of the thresholds


@dataclass(frozen=True)
class Sample:
    """What one decoding of some sentences took and said.

    Attributes:
        passes: Of the verifier; summed over sentences, as all counts are.
        drafter_passes: Passes of the drafter.
        drafted: Tokens of drafts that the verifier looked at.
    """

    seconds: float
    texts: Sequence[str]
    tokens: int
    passes: int
    drafter_passes: int
    drafted: int


# Decodes so many first sentences with a setting, or with greedy search where it is None.
Measure: TypeAlias = Callable[[Setting | None, int], Sample]


@dataclass(frozen=True)
class Scored:
    """The score of some texts, and those of resamples [samples], the same resamples for all texts."""

    score: float
    resampled: np.ndarray


@dataclass(frozen=True)
class Drop:
    """How far a score lies below another one.

    Attributes:
        low, high: The 95 % interval of the drop, paired bootstrap.
        bound: What the drop is not above, with 95 % confidence (one-sided).
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
    """A setting as it was measured.

    Attributes:
        speeds: How many times as fast as greedy search, of each round.
        passes, drafter_passes, drafted: As a Sample's, an output token.
        score: In the metric's own units, as the drop.
    """

    setting: Setting
    speeds: tuple[float, ...]
    score: float
    drop: Drop
    passes: float
    drafter_passes: float
    drafted: float

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)


@dataclass(frozen=True)
class Sweep:
    """All settings: greedy search's own, those measured, and those given up, with the one that beat each.

    Attributes:
        sentences: How many there were, and how many it took to give settings up; 0: none were to be.
    """

    greedy: Point
    points: list[Point]
    dropped: list[tuple[Setting, Setting]]
    sentences: tuple[int, int]


def settings_of(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """All combinations of a grid's values."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def sweep(
    settings: Sequence[Setting],
    measure: Measure,
    score: Callable[[Sequence[str]], Scored],
    *,
    sentences: int,
    rounds: int,
    prune: bool = True,
) -> Sweep:
    """Measures settings against greedy search.

    With `prune`, a setting is given up that is clearly dominated on the first third: another one is at least
    `CLEARLY` times as fast in each of two rounds and better with 95 % confidence.

    Args:
        score: Scores the texts of the first sentences, as many as it is given.
        rounds: How often everything is decoded; each round begins with another setting.
    """
    dropped: list[tuple[Setting, Setting]] = []
    first = -(-sentences // PART) if prune else 0
    if prune:
        _, *samples = _interleaved([None, *settings], measure, first, PART_ROUNDS)
        beaten = _beaten(samples, [score(found[0].texts) for found in samples])
        dropped = [(settings[i], settings[j]) for i, j in beaten.items()]
        settings = [setting for i, setting in enumerate(settings) if i not in beaten]
    base, *samples = _interleaved([None, *settings], measure, sentences, rounds)
    reference = score(base[0].texts)
    points = [
        _point(setting, found, base, score(found[0].texts), reference)
        for setting, found in zip(settings, samples, strict=True)
    ]
    return Sweep(_point({}, base, base, reference, reference), points, dropped, (sentences, first))


def _interleaved(
    settings: Sequence[Setting | None], measure: Measure, sentences: int, rounds: int
) -> list[list[Sample]]:
    """A sample a round of each setting."""
    found: list[list[Sample]] = [[] for _ in settings]
    for turn in range(rounds):
        for step in range(len(settings)):
            i = (turn + step) % len(settings)
            found[i].append(measure(settings[i], sentences))
    return found


def _beaten(samples: Sequence[Sequence[Sample]], scored: Sequence[Scored]) -> dict[int, int]:
    """The settings that are clearly dominated, each with the first that dominates it."""
    beaten: dict[int, int] = {}
    for i, slow in enumerate(samples):
        for j, fast in enumerate(samples):
            rounds = zip(slow, fast, strict=True)
            if (
                all(a.seconds >= CLEARLY * b.seconds for a, b in rounds)
                and Drop.between(scored[i], scored[j]).bound < 0
            ):
                beaten[i] = j
                break
    return beaten


def _point(
    setting: Setting, samples: Sequence[Sample], base: Sequence[Sample], scored: Scored, reference: Scored
) -> Point:
    last = samples[-1]
    counts = (count / max(1, last.tokens) for count in (last.passes, last.drafter_passes, last.drafted))
    return Point(
        setting,
        tuple(theirs.seconds / mine.seconds for theirs, mine in zip(base, samples, strict=True)),
        scored.score,
        Drop.between(reference, scored),
        *counts,
    )


class Remembered:
    """Takes samples from a journal while it has them; those that it lacks are measured and added.

    The machine may be faster now than when the journal was begun, or slower. So that ratios hold, greedy
    search is measured once more where samples of both times meet, and times are given as of then.

    Attributes:
        held: Samples that were in the journal.
        taken: How many of these were asked for.
    """

    def __init__(self, measure: Measure, journal: Journal) -> None:
        self.measure, self.journal = measure, journal
        self._held: defaultdict[str, deque[Sample]] = defaultdict(deque)
        for payload in journal.records():
            key, sample = json.loads(payload)
            self._held[key].append(Sample(**sample))
        self.held, self.taken = journal.count, 0
        self._greedy: dict[int, float] = {}  # seconds of greedy search as last taken, by sentences
        self._scale: dict[int, float] = {}  # what they were of one second of now, by sentences

    def __call__(self, setting: Setting | None, sentences: int) -> Sample:
        """Decodes the first sentences, or remembers it."""
        key = json.dumps([setting, sentences])
        if self._held[key]:
            self.taken += 1
            sample = self._held[key].popleft()
            if setting is None:
                self._greedy[sentences] = sample.seconds
            return sample
        if sentences not in self._scale:
            before = self._greedy.get(sentences)
            self._scale[sentences] = 1.0 if before is None else before / self.measure(None, sentences).seconds
        sample = self.measure(setting, sentences)
        sample = replace(sample, seconds=sample.seconds * self._scale[sentences])
        self.journal.append(json.dumps([key, asdict(sample)]).encode())
        return sample


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other one dominates (as fast with a drop as small, and one of the two better).

    The fastest comes first; points that are equal stay together.
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.speed, each.drop.drop)):
        if (
            not best
            or point.drop.drop < best[-1].drop.drop
            or (point.speed, point.drop.drop) == (best[-1].speed, best[-1].drop.drop)
        ):
            best.append(point)
    return best


_TRUSTED: dict[str, Callable[[Drop], float]] = {
    "bound": lambda drop: drop.bound,
    "point": lambda drop: drop.drop,
}
TRUSTS = tuple(_TRUSTED)


def choose(points: Sequence[Point], max_drop: float, *, trust: str = "bound") -> tuple[Point, bool]:
    """The fastest point whose drop is at most `max_drop`, and True; else the one nearest to it, and False.

    Of equally fast ones, and of equally near ones, the one with the smaller drop, or the faster, is chosen.

    Args:
        trust: What counts as the drop: its ``bound``, or the ``point`` estimate.
    """
    trusted = _TRUSTED[trust]
    fitting = [point for point in points if trusted(point.drop) <= max_drop]
    if fitting:
        return max(fitting, key=lambda point: (point.speed, -trusted(point.drop))), True
    return min(points, key=lambda point: (trusted(point.drop), -point.speed)), False


# The folder


@dataclass(frozen=True)
class Calibration:
    """The thresholds chosen for a strategy, a model and a drafter.

    Attributes:
        model, drafter: Fingerprints.
        thresholds: The values chosen.
        options: The strategy's other options that they were chosen with.
        evidence: What they rest on, for people to read.
    """

    strategy: str
    model: str
    drafter: str
    thresholds: dict[str, Any]
    options: dict[str, Any]
    evidence: dict[str, Any]


def read_calibrations(folder: Path) -> list[Calibration]:
    """What a model folder keeps; nothing where it has no such file.

    Raises:
        CheckpointError: The file is damaged, or of another format.
    """
    path = folder / FILE
    if not os.path.exists(path):
        return []
    raw = read_file(path, most=_MOST)
    try:
        found = json.loads(raw)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}, this version reads {FORMAT}")
        entries = [Calibration(**entry) for entry in found["calibrations"]]
        for entry in entries:
            for item in fields(entry):
                if not isinstance(getattr(entry, item.name), dict if item.type.startswith("dict") else str):
                    raise TypeError(f"{item.name!r} is {getattr(entry, item.name)!r}")
        return entries
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(folder, str(error)) from error


def _damaged(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"not what nartk-calibrate writes: {what}",
        fix="remove it, and calibrate again",
        where=str(folder / FILE),
    )


def store(folder: Path, calibration: Calibration) -> None:
    """Adds a calibration to a model folder, in place of that of the same strategy and drafter.

    Raises:
        OutputError: The folder cannot be written.
        CheckpointError: What is there is damaged.
    """
    key = (calibration.strategy, calibration.drafter)
    kept = [each for each in read_calibrations(folder) if (each.strategy, each.drafter) != key]
    entries = [finite(asdict(each)) for each in (*kept, calibration)]
    with writing(folder / FILE) as file:
        write_json(file, {"format": FORMAT, "calibrations": entries}, allow_nan=False)


def finite(value: Any) -> Any:
    """A value for JSON, which has no infinity: the text ``inf`` stands for it."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def types_of(strategy: str) -> dict[str, Callable[[Any], Any]]:
    """The type of each of a strategy's options but for other models, by name."""
    found = ((key, item) for key, item in options_of(strategy).items() if not item.metadata["model"])
    return {key: type(item.default) for key, item in found}


def own_options(strategy: Any, but: Sequence[str]) -> dict[str, Any]:
    """The values of a strategy's options that greedy search does not have, but for those named and models."""
    shared = options_of(REFERENCE)
    return {
        key: getattr(strategy, key)
        for key, item in options_of(strategy.name).items()
        if key not in shared and key not in but and not item.metadata["model"]
    }


def apply(
    folder: Path, strategy: Any, given: Mapping[str, Any], *, model: str, drafter: str
) -> tuple[dict[str, Any], str]:
    """The options that a folder's calibration sets, and in a line why it sets none, or nothing.

    It sets what the user has not given. A strategy that promises identity keeps its promise: nothing is set.

    Args:
        given: The options that the user gave.
        model, drafter: Fingerprints of the models at hand.

    Raises:
        CheckpointError: The file is damaged, or holds values that the strategy refuses.
    """
    if strategy.promised.guarantee is not Guarantee.APPROXIMATE:
        return {}, ""
    found = [
        each
        for each in read_calibrations(folder)
        if each.strategy == strategy.name and not each.thresholds.keys() <= given.keys()
    ]
    if not found:
        return {}, ""
    unfit = f"the thresholds in {folder / FILE} are not used: they are for"
    mine = [each for each in found if each.drafter == drafter]
    if not mine:
        return {}, f"{unfit} drafter {' or '.join(each.drafter for each in found)}, this one is {drafter}"
    (entry,) = mine[-1:]
    if entry.model != model:
        return {}, f"{unfit} model {entry.model}, this one is {model}"
    types = types_of(strategy.name)
    try:
        values, options = (
            {key: types[key](value) for key, value in part.items()}
            for part in (entry.thresholds, entry.options)
        )
        make_strategy(strategy.name, values | options)
    except (LookupError, TypeError, ValueError, UsageError) as error:
        raise _damaged(folder, str(error)) from error
    for key, value in options.items():
        if key in given and given[key] != value:
            return {}, f"{unfit} {key} {value}, which is now {given[key]}"
    return {key: value for key, value in (options | values).items() if key not in given}, ""
