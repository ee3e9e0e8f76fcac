"""Intervals and p-values against closed forms, on a metric whose sampling distribution is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nartk.errors import LengthMismatchError, UsageError
from nartk.metrics import bootstrap
from nartk.metrics.bootstrap import compare, confidence
from nartk.metrics.result import MetricResult


def _mean(values: np.ndarray) -> MetricResult:
    """A metric that is the mean of its sentences."""

    def resample(weights: np.ndarray) -> np.ndarray:
        return weights @ values / weights.sum(axis=1)

    return MetricResult("mean", float(values.mean()), {}, "metric:mean", len(values), resample)


def test_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, size=400)
    interval = confidence(_mean(values), samples=20_000)
    half = 1.959964 * values.std() / math.sqrt(len(values))
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)
    assert (interval.level, interval.samples) == (0.95, 20_000)


def test_p_value_of_a_paired_difference_is_that_of_the_normal_law() -> None:
    generator = np.random.default_rng(1)
    baseline = generator.normal(0.0, 10.0, size=500)
    system = baseline + generator.normal(0.2, 1.0, size=500)  # the noise they share cancels
    result = compare(_mean(system), _mean(baseline), samples=20_000)
    gain = system - baseline
    z = gain.mean() / (gain.std() / math.sqrt(len(gain)))
    assert 1.5 < z < 3
    assert result.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), abs=0.005)
    assert result.difference == pytest.approx(gain.mean())


def test_a_system_does_not_differ_from_itself() -> None:
    same = _mean(np.arange(10.0))
    result = compare(same, same, samples=100)
    assert (result.difference, result.p_value, result.interval.low, result.interval.high) == (0, 1, 0, 0)


def test_the_seed_decides_and_the_blocks_do_not_lose_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _mean(np.arange(30.0))
    assert confidence(result, samples=50) == confidence(result, samples=50)
    assert confidence(result, samples=50) != confidence(result, samples=50, seed=1)
    monkeypatch.setattr(bootstrap, "BLOCK", 70)
    weights = list(bootstrap._weights(30, 51, 0))
    assert [block.shape for block in weights] == [(2, 30)] * 25 + [(1, 30)]
    assert all((block.sum(axis=1) == 30).all() for block in weights)


def test_refuses_no_samples_and_different_texts() -> None:
    result = _mean(np.arange(3.0))
    with pytest.raises(UsageError, match="at least 1 sample, not 0"):
        confidence(result, samples=0)
    with pytest.raises(LengthMismatchError, match="3 sentences, but the baseline has 4"):
        compare(result, _mean(np.arange(4.0)))
