"""Measures what passes of a model take, by how many tokens they score: the measured `PassCosts`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nartk.checkpoints.costs import Tuned
from nartk.errors import StrategyMismatchError
from nartk.protocols.passes import ROOT, IntArray, Pass, PassCosts, PassScorer, Source, Want

if TYPE_CHECKING:
    from nartk.serving.model import Model

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
SOURCES = 20  # of the first sentences, that are measured with
_CONTEXT = 15  # tokens that an output has when it is measured, at most
_REPEATS = 3  # passes of a size in a row, of which the first finds cold caches and does not count
_SHARE = 0.25  # quantile of the times: other programs only make passes slower


def measured(scorer: PassScorer, sources: Sequence[Source], *, rounds: int = 20) -> PassCosts:
    """Times passes over the output of one source after the other, and their encoding.

    Of one thread the thread's own time counts, of several the time on the wall.

    Args:
        rounds: Passes of each size, twice as many; sizes are interleaved.

    Raises:
        StrategyMismatchError: The model has positions for too few tokens.
    """
    before = min(_CONTEXT, scorer.limits.target // 4)
    sizes = tuple(size for size in TOKENS if before + size <= scorer.limits.target)
    if len(sizes) < 2:
        raise StrategyMismatchError(
            f"the model has {scorer.limits.target} positions, too few to time passes of several sizes",
            fix="use it unmeasured: its costs are predicted",
        )
    clock = time.thread_time if getattr(scorer, "threads", 0) == 1 else time.perf_counter
    rng = random.Random(1)
    found: list[list[float]] = [[] for _ in sizes]
    encoded: list[float] = []
    for turn in range(rounds):
        source = sources[turn % len(sources)]
        begun = clock()
        memory = scorer.encode([source])
        encoded.append((clock() - begun) / len(source))
        context = scorer.open(1)
        try:
            if before:
                first = _chain(scorer, rng, memory, context, 0, before)
                scorer.commit(scorer.run(first, Want()), np.arange(before, dtype=np.int32))
            for times, tokens in zip(found, sizes, strict=True):
                work = _chain(scorer, rng, memory, context, before, tokens)
                times += _timed(scorer, work, clock)
        finally:
            scorer.close(context)
            scorer.free(memory)
    each_size = np.quantile(found, _SHARE, axis=1) * 1e6
    ordered = np.minimum.accumulate(each_size[::-1])[::-1]  # nothing takes longer than what is larger
    return PassCosts(sizes, tuple(ordered.tolist()), float(np.quantile(encoded, _SHARE)) * 1e6)


def tuned(model: Model, lines: Sequence[str], *, rounds: int = 20) -> Tuned:
    """Measures the costs of a model with sentences.

    Raises:
        StrategyMismatchError: It does not output one word after the other.
    """
    scorer = model.passes
    if not isinstance(scorer, PassScorer):
        raise StrategyMismatchError(
            f"a {model.checkpoint.architecture} is not autoregressive and verifies no drafts",
            fix="tune an autoregressive model",
        )
    sources = [model.encode(line, truncate=True) for line in lines]
    costs = measured(scorer, sources, rounds=rounds)
    times = [round(each, 2) for each in costs.times]
    return Tuned(**model.cost_setting, tokens=[*costs.tokens], times=times, encoding=round(costs.encoding, 2))


def _timed(scorer: PassScorer, work: Pass, clock: Callable[[], float]) -> list[float]:
    """The seconds of a pass, several times, and of giving its cells back."""
    seconds = []
    for _ in range(_REPEATS):
        begun = clock()
        scores = scorer.run(work, Want())
        scores.best.tolist()  # where a device computes, this waits for it
        scorer.commit(scores, [])
        seconds.append(clock() - begun)
    return seconds[1:]


def _chain(
    scorer: PassScorer, rng: random.Random, memory: IntArray, context: IntArray, position: int, count: int
) -> Pass:
    """A pass over a chain of random words from a position on."""
    words = [rng.randrange(scorer.limits.words) for _ in range(count)]
    first = np.arange(count, dtype=np.int32)
    return Pass(
        np.array(words, np.int32),
        first + np.int32(position),
        np.repeat(memory, count).astype(np.int32),
        np.repeat(context, count).astype(np.int32),
        np.where(first > 0, first - 1, ROOT).astype(np.int32),
    )
