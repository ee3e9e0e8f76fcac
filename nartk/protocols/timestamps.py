"""Times at which tokens were spoken, by what a model of speech knows of its positions.

A position of an encoder is `subsampling` frames of its source, each `FeatureSource.shift` milliseconds after
the one before. Symbols: S positions, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nartk.protocols.passes import FeatureSource, FloatArray, IntArray

MARGIN = 0.1  # of a fire's weight at either end, which silence may have
# Fitted on numbers of the Free Spoken Digit Dataset that validate: how far below its loudest frame a word's
# frames are at most, how far above the noise floor at least, and that floor's percentile of all frames.
LOUD_DB, ABOVE_NOISE_DB, QUIET = 30.0, 3.0, 10
LEAST_DB = 6.0  # below its loudest frame a word's frames may be, wherever the floor is
_Times = npt.NDArray[np.float64]


def position_seconds(source: FeatureSource, subsampling: int, labels: int = 1) -> float:
    """The time from one position of an encoder, or of the labels that each has, to the next, seconds."""
    return source.shift * subsampling / labels / 1000.0


def cif_times(
    alpha: FloatArray, count: int, seconds: float, *, threshold: float = 1.0, margin: float = 0.0
) -> _Times:
    """Begin and end of each token of a continuous integrate-and-fire model -> [N,2] seconds.

    A token takes from the running sum of the weights what lies between n and n + 1 thresholds; within a
    position, that sum grows evenly. What is left of the last token when weights end, ends with them. FunASR's
    `ts_prediction_lfr6_standard` differs: there a token lasts from its own fire to the next one, each 1.5
    positions earlier, and 12 at most, since its second predictor fires where a character begins.

    Args:
        alpha: [S] weights.
        count: N.
        seconds: Duration of a position.
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
    found: _Times = at - 1 + share.clip(0.0, 1.0)
    return found


def position_spans(positions: Iterable[Sequence[int] | IntArray]) -> list[FloatArray]:
    """Begin and end of positions [N] of sources, [N,2]."""
    begins = (np.asarray(each, np.float32) for each in positions)
    return [np.stack([each, each + 1], 1) for each in begins]


def frame_spans(counts: Sequence[int] | IntArray, words: Sequence[int]) -> list[FloatArray]:
    """Begin and end of each frame of sources, [N,2], in positions.

    Args:
        counts: N of each source.
        words: Frames in front of each one's sound, of words; they lie where it begins.
    """
    rows = zip(np.asarray(counts).tolist(), words, strict=True)
    return position_spans(np.maximum(np.arange(count) - front, 0) for count, front in rows)


def fire_spans(weights: Sequence[FloatArray], counts: Sequence[int] | IntArray) -> list[FloatArray]:
    """Begin and end of each fire of sources of weights [S], [N,2], in positions."""
    rows = zip(weights, np.asarray(counts).tolist(), strict=True)
    return [cif_times(alpha, count, 1.0, margin=MARGIN).astype(np.float32) for alpha, count in rows]


def word_times(times: FloatArray | _Times, levels: FloatArray, seconds: float) -> _Times:
    """Times of tokens [N,2] s as far as their sound goes, by the levels [T] of frames, dB, NaN of padding.

    A model tells where it was sure of a token, which is a part of it: CTC's spikes and a Paraformer's fires
    end 0.25 s before a digit does. A token is where its time is loudest, since a fire that comes early begins
    in the silence before its word. Between two tokens the quietest frame divides them. A token lasts from the
    first to the last frame of its part that is less than `LOUD_DB` below the loudest, and above the noise
    floor.

    Args:
        seconds: Time from one frame to the next.
    """
    if not len(times) or np.isnan(levels).all():
        return np.asarray(times, np.float64)
    levels = np.where(np.isnan(levels), np.nanmin(levels), levels)
    padded = np.pad(levels.astype(np.float64), 1, mode="edge")
    power = np.convolve(10 ** (padded / 10), np.full(3, 1 / 3), "valid")
    smooth = 10 * np.log10(power + 1e-12)
    least = float(np.percentile(smooth, QUIET)) + ABOVE_NOISE_DB
    cuts = [0]
    for one, other in pairwise(_loudest(np.asarray(times, np.float64) / seconds, smooth)):
        cuts.append(one + int(smooth[one : max(one, other) + 1].argmin()))
    found, after = [], 0
    for begin, end in pairwise([*cuts, len(smooth)]):
        part = smooth[begin : max(end, begin + 1)]
        loud = np.flatnonzero(part >= max(part.max() - LOUD_DB, min(least, part.max() - LEAST_DB)))
        found.append((max(begin + loud[0], after), max(begin + loud[-1], after) + 1))
        after = found[-1][1]
    spans: _Times = np.clip(found, [0, 1], [len(smooth) - 1, len(smooth)]) * seconds
    return spans


def _loudest(times: _Times, levels: _Times) -> list[int]:
    """The loudest frame of each time [N,2] in frames, the first of equal ones, none before the one before."""
    found = [0]
    for begin, end in times.tolist():
        first = min(int(begin), len(levels) - 1)
        part = levels[first : max(first + 1, math.ceil(end))]
        found.append(max(found[-1], first + int(part.argmax())))
    return found[1:]
