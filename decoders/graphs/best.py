"""The best of many; of equal ones the first, so that a row's result depends on the row alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_INDEX = 32  # bits of a key that hold the index


def best_of(x: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """The k largest of each row of x [N,V], best first: indices [N,min(k,V)]; fp32 tells which are equal."""
    size = x.shape[1]
    k = min(k, size)
    values = x.astype(np.float32) + np.float32(0)  # makes -0 the same as 0
    bits = values.view(np.int32).astype(np.int64)
    # IEEE 754: negative numbers fall as their bits rise. No two keys are equal, so any selection is stable.
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << _INDEX
    keys += np.arange(size - 1, -1, -1)
    largest = np.sort(np.partition(keys, size - k, axis=1)[:, size - k :], axis=1) if k else keys[:, :0]
    found: npt.NDArray[np.int64] = size - 1 - (largest[:, ::-1] & (2**_INDEX - 1))
    return found
