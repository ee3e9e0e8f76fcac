"""Integrate-and-fire by chunks against all at once, position by position."""

from __future__ import annotations

import numpy as np
import pytest
from support.local_frames import integrated

from nartk.protocols.fires import Integrator

TAIL = 0.45


def by_chunks(encoded: np.ndarray, weights: np.ndarray, sizes: list[int]) -> tuple[np.ndarray, list[int]]:
    sums, found, at, begin = Integrator(), [], [], 0
    while begin < len(weights):
        size = sizes[len(found) % len(sizes)]
        tokens, positions = sums.accept(encoded[begin : begin + size], weights[begin : begin + size])
        found.append(tokens)
        at += (positions + begin).tolist()
        begin += size
    return np.concatenate([*found, sums.rest(TAIL)]), at


@pytest.mark.parametrize("sizes", [[1], [16], [3, 1, 7], [1000]])
def test_chunks_fire_what_the_whole_does(sizes: list[int]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        size = int(rng.integers(1, 300))
        encoded = rng.normal(size=(size, 5)).astype(np.float32)
        weights = rng.uniform(0, rng.choice([0.1, 0.5, 0.99]), size).astype(np.float32)
        found, at = by_chunks(encoded, weights, sizes)
        assert found == pytest.approx(integrated(encoded, weights, TAIL), abs=1e-5)
        sums = np.cumsum(weights.astype(np.float64))
        assert at == [int(np.argmax(sums >= k - 1e-9)) for k in range(1, int(sums[-1]) + 1)]


def test_weights_that_sum_to_whole_tokens_but_for_rounding_fire() -> None:
    """0.1 as fp32, ten times, is one token and no more is left."""
    sums = Integrator()
    tokens, at = sums.accept(np.eye(20, dtype=np.float32), np.full(20, np.float32(0.1)))
    assert at.tolist() == [9, 19]
    assert tokens.sum(1) == pytest.approx([1, 1], abs=1e-4)
    assert sums.weight == pytest.approx(0, abs=1e-4)
    assert len(sums.rest(TAIL)) == 0


def test_the_torch_reference_sums_the_same() -> None:
    torch = pytest.importorskip("torch")
    from nartk.models.cif import cif

    rng = np.random.default_rng(2)
    encoded, weights = rng.normal(size=(90, 6)).astype(np.float32), rng.uniform(0, 0.7, 90).astype(np.float32)
    found, _ = by_chunks(encoded, weights, [7])
    wanted, (count,) = cif(
        torch.from_numpy(encoded)[None], torch.from_numpy(weights)[None], tail_threshold=TAIL
    )
    assert len(found) == count
    assert found == pytest.approx(wanted[0].numpy(), abs=1e-5)
