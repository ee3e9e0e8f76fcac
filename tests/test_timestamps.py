"""When tokens were spoken: cases by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from nartk.models.cif import fire_shares
from nartk.protocols.passes import FeatureSource
from nartk.protocols.timestamps import cif_times, position_seconds, word_times


def weights(values: Sequence[float]) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_position_is_some_frames() -> None:
    source = FeatureSource(np.zeros((9, 80), np.float32), 10.0)
    assert position_seconds(source, 4) == pytest.approx(0.04)
    assert position_seconds(FeatureSource(source.frames, 12.5), 8) == pytest.approx(0.1)


def test_a_token_goes_from_one_threshold_to_the_next() -> None:
    found = cif_times(weights([0.5, 0.5, 0.25, 0.5, 0.5, 0.25]), 2, 0.04)
    # 1 is reached with the second position, 2 after a half of the fifth and .25, a half of it, more.
    np.testing.assert_allclose(found, [[0.0, 0.08], [0.08, 0.18]], atol=1e-9)


def test_silence_belongs_to_no_token() -> None:
    found = cif_times(weights([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0]), 2, 1.0)
    np.testing.assert_allclose(found, [[2.0, 3.0], [6.0, 8.0]])


def test_a_margin_leaves_small_weights_out() -> None:
    alpha = weights([0.02, 0.02, 0.96, 0.02, 0.02, 0.96])
    whole, inner = cif_times(alpha, 2, 1.0), cif_times(alpha, 2, 1.0, margin=0.1)
    np.testing.assert_allclose(whole, [[0.0, 3.0], [3.0, 6.0]], atol=1e-5)
    np.testing.assert_allclose(
        inner, [[2 + 0.06 / 0.96, 3 - 0.1 / 0.96], [5 + 0.06 / 0.96, 6 - 0.1 / 0.96]], atol=1e-5
    )


def test_the_tail_ends_with_the_weights() -> None:
    np.testing.assert_allclose(cif_times(weights([0.5, 0.5, 0.6]), 2, 1.0), [[0.0, 2.0], [2.0, 3.0]])
    np.testing.assert_allclose(cif_times(weights([0.1, 0.0]), 1, 1.0), [[0.0, 1.0]])
    assert cif_times(weights([0.1]), 0, 1.0).shape == (0, 2)


def test_a_position_with_several_tokens_is_divided() -> None:
    found = cif_times(weights([2.0, 0.5, 0.5]), 3, 0.1, threshold=1.0)
    np.testing.assert_allclose(found, [[0.0, 0.05], [0.05, 0.1], [0.1, 0.3]])


@pytest.mark.parametrize("threshold", [1.0, 0.7])
def test_tokens_lie_where_their_weights_do(threshold: float) -> None:
    rng = np.random.default_rng(2)
    alpha = rng.uniform(0.01, 0.8, 40).astype(np.float32)
    count = int(alpha.astype(np.float64).sum() / threshold)
    shares = fire_shares(torch.tensor(alpha[None]), torch.tensor([count]), threshold)[0].numpy()
    found = cif_times(alpha, count, 1.0, threshold=threshold)
    for (begin, end), own in zip(found, shares, strict=True):
        inside = np.flatnonzero(own > 1e-9)
        assert inside[0] <= begin + 1e-6
        assert begin < inside[0] + 1
        assert inside[-1] < end + 1e-6
        assert end <= inside[-1] + 1 + 1e-6


def test_words_last_as_long_as_their_sound() -> None:
    """By hand: two words of 20 and 30 frames with a pause of 10 between, 50 dB above the floor."""
    levels = np.full(100, 10.0, np.float32)
    levels[10:30] = levels[40:70] = 60
    levels[50] = 20  # a stop within a word
    for spikes in ([[0.12, 0.16], [0.44, 0.48]], [[0.28, 0.32], [0.66, 0.7]]):
        found = word_times(np.array(spikes), levels, 0.01)
        assert found == pytest.approx(np.array([[0.10, 0.30], [0.40, 0.70]]), abs=0.011)
    joined = np.repeat([60.0, 50.0, 60.0], [20, 1, 20])  # without a pause the quietest frame divides them
    assert word_times(np.array([[0.05, 0.06], [0.3, 0.31]]), joined, 0.01)[:, 0] == pytest.approx(
        [0, 0.2], abs=0.011
    )
    assert word_times(np.zeros((0, 2)), levels, 0.01).shape == (0, 2)
    # Padding is no sound, and words at one frame do not overlap.
    padded = np.concatenate([np.full(8, np.nan), levels, np.full(8, np.nan)])
    found = word_times(np.array([[0.3, 0.32], [0.6, 0.62]]), padded, 0.01)
    assert found == pytest.approx(np.array([[0.18, 0.38], [0.48, 0.78]]), abs=0.011)
    found = word_times(np.array([[0.2, 0.21]] * 3), levels, 0.01)
    assert (found[1:, 0] >= found[:-1, 1]).all()


def test_a_fire_that_begins_before_its_word_is_of_that_word() -> None:
    """Three words of 20 frames with pauses of 10 between; the middle of the second fire is in a pause."""
    levels = np.full(100, 10.0, np.float32)
    levels[10:30] = levels[40:60] = levels[70:90] = 60
    found = word_times(np.array([[0.1, 0.28], [0.30, 0.46], [0.62, 0.8]]), levels, 0.01)
    assert found == pytest.approx(np.array([[0.1, 0.3], [0.4, 0.6], [0.7, 0.9]]), abs=0.011)


def test_no_word_lasts_longer_than_its_recording() -> None:
    """Several words at the last frames, and more words than frames."""
    levels = np.repeat(np.array([10.0, 60.0], np.float32), [97, 3])
    for count, frames in ((3, 100), (7, 100), (5, 2)):
        found = word_times(np.array([[0.98, 0.99]] * count), levels[-frames:], 0.01)
        assert (found[:, 0] < found[:, 1]).all()
        assert found.max() == pytest.approx(0.01 * frames)
