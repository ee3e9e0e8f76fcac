"""The likeliest labelling of the frames of CTC that gives an output: when each of its words was said.

Graves et al. 2006, section 4.1, with the largest in place of the sum. Symbols: T frames, V words, U tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nartk.protocols.passes import FloatArray, IntArray

BAND = 1000  # states: of outputs of fewer than five hundred tokens all


def aligned(log_probs: FloatArray, tokens: Sequence[int], blank: int, *, band: int = BAND) -> IntArray | None:
    """The first frame of each token's run, and the one behind its last, [U,2]; None: no labelling gives them.

    Args:
        log_probs: [T,V] of frames.
        tokens: Without eos.
        band: States, two a token, that are looked at after each frame, about the best one; where there are
            more, the labelling found is the likeliest of those that stay in it.
    """
    count, size = len(log_probs), 2 * len(tokens) + 1
    width = min(band, size)
    labels = np.full(size, blank)
    labels[1::2] = tokens
    # Over the blank between two words unless they are the same.
    skips = np.zeros(size, bool)
    skips[3::2] = labels[3::2] != labels[1:-2:2]
    begins = np.zeros(count + 1, np.int64)  # of the band
    moves = np.empty((count, width), np.int8)  # how many states back each came from
    values = np.full(width, -np.inf)
    values[0] = 0.0  # before the first frame: from here it goes to the first blank or the first word
    for t in range(count):
        begin = max(int(begins[t]), min(size - width, int(begins[t] + values.argmax()) - width // 2))
        begins[t + 1] = begin
        padded = np.full(width + 2, -np.inf)
        own = slice(begin, begin + width)
        old = values[max(0, begin - int(begins[t]) - 2) :]
        padded[2 - min(2, begin - int(begins[t])) :][: len(old)] = old[: width + 2]
        before = np.stack([padded[2:], padded[1:-1], np.where(skips[own], padded[:-2], -np.inf)])
        moves[t] = before.argmax(0)
        values = before[moves[t], np.arange(width)] + log_probs[t, labels[own]]
    ends = values[max(0, size - 2 - int(begins[-1])) :]
    if not count or begins[-1] + width < size or ends.max() == -np.inf:
        return None
    state = size - 1 if ends[-1] >= ends[0] else size - 2
    path = np.zeros(count, np.int64)
    for t in range(count - 1, -1, -1):
        path[t] = state
        state -= int(moves[t, state - begins[t + 1]])
    states = 2 * np.arange(len(tokens)) + 1
    runs = np.searchsorted(path, states), np.searchsorted(path, states, "right")
    return np.stack(runs, 1).astype(np.int32)
