"""All labellings of a few frames, summed by enumeration."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

INF = math.inf


def collapsed(labels: Sequence[int], blank: int) -> tuple[int, ...]:
    """What labels say, with the textbook's words."""
    return tuple(label for label, _ in itertools.groupby(labels) if label != blank)


def all_outputs(log_probs: np.ndarray, blank: int, silent: Sequence[int]) -> dict[tuple[int, ...], float]:
    """The log-probability of every output, summed over all its labellings."""
    length, size = log_probs.shape
    total: dict[tuple[int, ...], float] = defaultdict(lambda: -INF)
    for labels in itertools.product([v for v in range(size) if v not in silent], repeat=length):
        score = sum(log_probs[t, label] for t, label in enumerate(labels))
        output = collapsed(labels, blank)
        total[output] = np.logaddexp(total[output], score)
    return {output: score for output, score in total.items() if score > -INF}
