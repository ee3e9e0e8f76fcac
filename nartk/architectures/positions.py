"""Tables of positions and distances, computed without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]


@lru_cache(maxsize=8)
def sinusoids(length: int, features: int, first: int = 2) -> FloatArray:
    """Sines then cosines, [length, features], as tensor2tensor and fairseq lay them out.

    It is kept: not to be written to. Row 0 is position `first`, by default 2: fairseq counts positions from
    the padding id (1) plus 1, and its models are ours. In fp64, rounded at the end: at a thousand positions
    an fp32 angle is off by 1e-4, and not alike everywhere.
    """
    half = features // 2
    frequencies = np.exp(np.arange(half) * -(math.log(10000) / max(half - 1, 1)))
    angles = np.arange(first, length + first)[:, None] * frequencies
    table = np.zeros((length, features), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table


def interleaved_sinusoids(positions: Sequence[int] | npt.NDArray[np.int64], features: int) -> FloatArray:
    """The sine and cosine of each frequency side by side, [len(positions), features] of an even number.

    Of positions from 0 (Vaswani et al. 2017, section 3.5), or of distances, a query's position less its key's
    (Dai et al. 2019, section 3.3). In fp64, rounded at the end.
    """
    angles = np.asarray(positions)[:, None] * 10000.0 ** (-np.arange(0, features, 2) / features)
    return np.stack([np.sin(angles), np.cos(angles)], 2).reshape(len(positions), features).astype(np.float32)


def relative_buckets(
    distances: npt.NDArray[np.int64], buckets: int, most: int, *, causal: bool
) -> npt.NDArray[np.int64]:
    """The bucket of each distance, of a key's position less its query's (Raffel et al. 2020, section 2.1).

    Half of the buckets are for one distance each, the others for ranges that grow by a factor, up to `most`
    tokens; what is farther falls into the last. Without `causal`, each direction has half of all.
    The arithmetic is fp32, as T5's: where it is rounded decides at the borders.
    """
    own = buckets if causal else buckets // 2
    exact = own // 2
    away = np.maximum(-distances, 0) if causal else np.abs(distances)
    share = np.log(np.maximum(away, 1) / exact).astype(np.float32) / np.float32(math.log(most / exact))
    ranges = exact + (share * np.float32(own - exact)).astype(np.int64)
    found = np.where(away < exact, away, np.minimum(ranges, own - 1))
    return found if causal else found + own * (distances > 0)
