"""When tokens were spoken, by what a model of speech knows of its positions.

A position of an encoder is `subsampling` frames of its source, each `FeatureSource.shift` milliseconds after
the one before. Symbols: S positions, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nartk.passes import FeatureSource, FloatArray, IntArray

_Times = npt.NDArray[np.float64]


def position_seconds(source: FeatureSource, subsampling: int) -> float:
    """The time from one position of an encoder to the next, seconds."""
    return source.shift * subsampling / 1000.0


def cif_times(
    alpha: FloatArray, count: int, seconds: float, *, threshold: float = 1.0, margin: float = 0.0
) -> _Times:
    """When each token of a continuous integrate-and-fire model begins and ends -> [N,2] seconds.

    A token takes from the running sum of the weights what lies between n and n + 1 thresholds; within a
    position, that sum grows evenly. What is left of the last token when weights end, ends with them.

    Args:
        alpha: [S] weights.
        count: N.
        seconds: Of a position.
        margin: Share of a token's weight at either end that is left out, in [0, 0.5): with a little, small
            weights of silence move no token.
    """
    sums = np.concatenate([[0.0], np.cumsum(alpha, dtype=np.float64)])
    first: _Times = np.arange(count) * np.float64(threshold)
    begins = _crossings(sums, first + margin * threshold, "right")
    ends = _crossings(sums, first + (1.0 - margin) * threshold, "left")
    return np.stack([np.minimum(begins, ends), ends], 1) * seconds


def _crossings(sums: _Times, levels: _Times, side: str) -> _Times:
    """The positions [N] at which sums [S+1], which never fall, reach levels [N].

    Where the sums stay at a level, it is where they come to it (``left``) or go on from it (``right``).
    Levels above the last sum are reached where that is.
    """
    at = np.searchsorted(sums, np.minimum(levels, sums[-1]), side=side)  # type: ignore[call-overload]
    at = at.clip(1, len(sums) - 1)
    grown = sums[at] - sums[at - 1]
    share = (np.minimum(levels, sums[-1]) - sums[at - 1]) / np.where(grown > 0.0, grown, 1.0)
    return at - 1 + share.clip(0.0, 1.0)


def ctc_times(labels: Sequence[int] | IntArray, blank: int, seconds: float) -> _Times:
    """When the run of each token of labels [S] begins and ends -> [N,2] seconds.

    Runs of a label are one token, and blanks none. The labels are the likeliest of each position, or the
    likeliest alignment of a text (`nartk.models.ctc_alignment`).

    Args:
        seconds: Of a position.
    """
    found = np.asarray(labels)
    changes = np.flatnonzero(np.diff(found)) + 1
    begins = np.concatenate([[0], changes])[: len(found)]  # of no labels there is no run
    ends = np.concatenate([changes, [len(found)]])[: len(found)]
    spoken = found[begins] != blank
    return np.stack([begins[spoken], ends[spoken]], 1) * float(seconds)
