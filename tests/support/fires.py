"""Continuous integrate-and-fire as it is told (Dong and Xu 2020, section 2.1), with exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def by_hand(hidden: np.ndarray, alpha: np.ndarray, threshold: float = 1.0) -> list[np.ndarray]:
    """What a row [T,D] with weights [T] fires, position by position."""
    fires, held, carried = [], Fraction(0), np.zeros(hidden.shape[1])
    for position, weight in zip(hidden.astype(np.float64), alpha, strict=True):
        left = Fraction(float(weight))
        while held + left >= Fraction(threshold):
            spent = Fraction(threshold) - held
            fires.append(carried + float(spent) * position)
            left, held, carried = left - spent, Fraction(0), np.zeros_like(carried)
        held, carried = held + left, carried + float(left) * position
    return [*fires, carried]  # the last has not fired
