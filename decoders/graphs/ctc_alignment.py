"""The likeliest labelling of the frames of CTC that gives an output: when each of its words was said.

Graves et al. 2006, section 4.1, with the largest in place of the sum. Symbols: T frames, V words, U tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nartk.passes import FloatArray, IntArray


def aligned(log_probs: FloatArray, tokens: Sequence[int], blank: int) -> IntArray | None:
    """The first frame of each token's run, and the one behind its last, [U,2]; None: no labelling gives them.

    Args:
        log_probs: [T,V] of frames.
        tokens: Without eos.
    """
    count, size = len(log_probs), 2 * len(tokens) + 1
    labels = np.full(size, blank)
    labels[1::2] = tokens
    # Over the blank between two words unless they are the same.
    skips = np.zeros(size, bool)
    skips[3::2] = labels[3::2] != labels[1:-2:2]
    values = np.full(size + 2, -np.inf)  # two in front that are none
    values[2] = 0.0  # before the first frame: from here it goes to the first blank or the first word
    moves = np.zeros((count, size), np.int8)
    for t, own in enumerate(log_probs[:, labels].astype(np.float64)):
        before = np.stack([values[2:], values[1:-1], np.where(skips, values[:-2], -np.inf)])
        moves[t] = before.argmax(0)
        values[2:] = before[moves[t], np.arange(size)] + own
    state = size - 1 if values[-1] >= values[-2] or size == 1 else size - 2
    if not count or values[2 + state] == -np.inf:
        return None
    path = np.zeros(count, np.int64)
    for t in range(count - 1, -1, -1):
        path[t] = state
        state -= int(moves[t, state])
    states = 2 * np.arange(len(tokens)) + 1
    begins, ends = np.searchsorted(path, states), np.searchsorted(path, states, "right")
    return np.stack([begins, ends], 1).astype(np.int32)
