"""Outcomes of lines: in their order, with warnings, as hypotheses and as statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from nartk.errors import NartkError
from nartk.protocols.hypothesis import GUARDED, DecodeStats, Hypothesis, Result, added

Outcome: TypeAlias = Result | NartkError
T = TypeVar("T")


@dataclass(frozen=True)
class Decoded:
    """Outcome of decoding some lines, in the order of the lines.

    Attributes:
        hypotheses: Per line, best first; empty where the line failed.
        errors: Errors of the lines that failed, by line index from 0.
        stats: Statistics of the run.
        signature: Signature that reproduces the run.
    """

    hypotheses: list[tuple[Hypothesis, ...]]
    errors: dict[int, NartkError]
    stats: DecodeStats
    signature: str

    @property
    def best(self) -> list[Hypothesis]:
        """Per line what `Model.decode` gives: the best hypothesis, with its `alternatives` or its `error`."""
        return [best_of(self.errors.get(index, found)) for index, found in enumerate(self.hypotheses)]


def in_order(outcomes: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yields what comes with indices from 0 on in their order, each as soon as those before it are there."""
    early: dict[int, T] = {}
    index = 0
    for found, outcome in outcomes:
        early[found] = outcome
        while index in early:
            yield early.pop(index)
            index += 1


def warned(outcomes: Iterable[Outcome]) -> Iterator[Hypothesis]:
    """The best hypothesis of each line in their order; those that fail warn the caller's caller."""
    for number, outcome in enumerate(outcomes, start=1):
        if isinstance(outcome, NartkError):
            outcome.where = f"line {number}"
            warnings.warn(str(outcome), stacklevel=3)
        yield best_of(outcome if isinstance(outcome, NartkError) else outcome.hypotheses)


def best_of(outcome: Sequence[Hypothesis] | NartkError) -> Hypothesis:
    """The best hypothesis with the others as its alternatives; of an error, an empty one that has it."""
    if isinstance(outcome, NartkError):
        return Hypothesis(tokens=(), error=outcome)
    best, *others = outcome
    return replace(best, alternatives=tuple(others)) if others else best


def summarize(results: Sequence[Result], seconds: float) -> DecodeStats:
    """The statistics of a run that took `seconds`. Lines that are not decoded do not count.

    What a guard keeps undecoded, because it is too long, is a sentence.
    """
    decoded = [result for result in results if result.passes]
    counts, phases = added(decoded)
    guarded = [each for result in results for each in result.hypotheses[0].guarded]
    return DecodeStats(
        seconds=seconds,
        sentences=sum(each.sentences for each in results if each.passes or each.hypotheses[0].guarded),
        tokens=sum(len(result.hypotheses[0].tokens) for result in decoded),
        left_mid_batch=sum(result.left_mid_batch for result in decoded),
        sound_seconds=math.fsum(result.sound_seconds for result in results),
        **{done: sum(each.done == done for each in guarded) for done in GUARDED},
        latencies=tuple(result.seconds for result in decoded),
        **counts,
        **{f"{name}_seconds": spent for name, spent in phases.items()},
    )
