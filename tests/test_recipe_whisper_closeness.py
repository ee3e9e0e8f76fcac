"""recipes/asr/whisper_closeness.py: what differences count as, and the sounds that are read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.recipe_scripts import imported

closeness = imported("asr", "whisper_closeness.py")


def test_differences_are_those_by_hand() -> None:
    wanted = np.log([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]])
    found = np.log([[0.4, 0.4 + 1e-9, 0.2 - 1e-9], [0.1, 0.1, 0.8]])
    got = closeness.reading(3, wanted, found)
    assert got.recording == 3
    assert got.off == pytest.approx([math.log(0.5 / 0.4), math.log(0.8 / 0.6)])
    assert got.divergence[1] == pytest.approx(0.4 * math.log(2) - 0.6 * math.log(0.8 / 0.6))
    assert got.flips.tolist() == [1, 0]


def test_scores_are_means_over_words_and_resample_recordings() -> None:
    """Of a resample without the first recording, the scores are those of the second."""
    wanted, other = np.log([[0.5, 0.5 - 1e-9]] * 3), np.log([[0.4, 0.6]])
    all_readings = [
        closeness.reading(0, wanted, wanted),
        closeness.reading(1, wanted[:1], other),
        closeness.reading(1, wanted[:1], wanted[:1]),
    ]
    weights = np.array([[1, 1], [0, 2], [2, 0]], np.float64)
    for measure, whole, second in (("flips", 1 / 5, 1 / 2), ("texts", 1 / 3, 1 / 2)):
        result = closeness.score(all_readings, measure)
        assert result.score == pytest.approx(whole)
        assert result.resample(weights) == pytest.approx([whole, second, 0])


def test_readings_are_later_and_as_noisy_as_they_say() -> None:
    samples = np.sin(np.arange(16000, dtype=np.float32))
    plain, later, *noisy = closeness.readings(samples, 5)
    assert np.array_equal(plain, samples)
    assert np.array_equal(later[closeness.LATER :], samples)
    assert not later[: closeness.LATER].any()
    for each, below in zip(noisy, (20, 10), strict=True):
        ratio = np.mean((each - samples) ** 2) / np.mean(samples**2)
        assert 10 * math.log10(ratio) == pytest.approx(-below, abs=0.2)
