"""Confidence intervals and significance by resampling sentences, the same way for every metric.

Sources: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
https://aclanthology.org/W04-3250; the shifted two-sided p-value from Riezler and Maxwell 2005,
https://aclanthology.org/W05-0908.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nartk.errors import LengthMismatchError, UsageError, number_of
from nartk.metrics.result import MetricResult

LEVEL = 0.95
SEED = 12345
BLOCK = 4_000_000  # weights drawn at once


@dataclass(frozen=True)
class Interval:
    """A percentile interval of bootstrap scores."""

    low: float
    high: float
    level: float
    samples: int
    seed: int


@dataclass(frozen=True)
class PairedDifference:
    """A system against a baseline on the same resamples.

    Attributes:
        baseline: Score of the baseline.
        difference: Score of the system less that of the baseline.
        interval: Interval of the difference.
        p_value: Two-sided probability of so large a difference between systems that are equally good.
    """

    baseline: float
    difference: float
    interval: Interval
    p_value: float


def _weights(sentences: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields how often each resample holds each sentence, blocks of [k, N] float64."""
    if samples < 1:
        raise UsageError(f"a bootstrap needs at least 1 sample, not {samples}", fix="ask for more")
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // sentences)
    for start in range(0, samples, block):
        picks = generator.integers(sentences, size=(min(block, samples - start), sentences))
        picks += sentences * np.arange(len(picks))[:, None]
        counts = np.bincount(picks.ravel(), minlength=picks.size)
        yield counts.reshape(picks.shape).astype(np.float64)


def _interval(scores: np.ndarray, seed: int) -> Interval:
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low, high, LEVEL, len(scores), seed)


def confidence(result: MetricResult, *, samples: int = 1000, seed: int = SEED) -> Interval:
    """The 95 % interval of a score over resampled sentences.

    Raises:
        UsageError: `samples` is not positive.
    """
    return _interval(resampled(result, samples=samples, seed=seed), seed)


def resampled(result: MetricResult, *, samples: int = 1000, seed: int = SEED) -> np.ndarray:
    """The scores of resamples [samples]. With the same seed they are those of the same sentences.

    Raises:
        UsageError: `samples` is not positive.
    """
    blocks = _weights(result.sentences, samples, seed)
    return np.concatenate([result.resample(block) for block in blocks])


def compare(
    result: MetricResult, baseline: MetricResult, *, samples: int = 1000, seed: int = SEED
) -> PairedDifference:
    """Paired bootstrap of a system against a baseline; both are scored on the same resamples.

    Raises:
        LengthMismatchError: The two were not scored on the same number of sentences.
        UsageError: `samples` is not positive.
    """
    if result.sentences != baseline.sentences:
        raise LengthMismatchError(
            f"the system has {number_of(result.sentences, 'sentence')}, "
            f"but the baseline has {baseline.sentences}",
            fix="give outputs for the same source",
        )
    blocks = _weights(result.sentences, samples, seed)
    differences = np.concatenate([result.resample(block) - baseline.resample(block) for block in blocks])
    difference = result.score - baseline.score
    extreme = int((np.abs(differences - differences.mean()) >= abs(difference)).sum())
    p_value = (extreme + 1) / (samples + 1)
    return PairedDifference(baseline.score, difference, _interval(differences, seed), p_value)
