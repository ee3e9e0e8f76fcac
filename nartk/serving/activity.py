"""Detects speech in a recording, by its levels and by how sure the model is of its words.

A recording whose loudest moment is hardly above its noise floor is steady: silence, noise or hum. One whose
loudest is not far above it holds speech if the model is sure of its words. What rises far above the floor is
speech in any case, so that clean speech loses nothing. A moment is as loud as all its frames but one: a click
of 5 ms, which at most three frames of 25 ms hold, is left out. The thresholds are fitted on spoken digits of
the Free Spoken Digit Dataset that train, with noise down to 12 dB under the loudest sample, that of a word's
log-probability on numbers that validate, with noise up to their own level, and on noise and hum made for it
(`recipes/asr/varied.py`).

Symbols: T frames, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from nartk.protocols.passes import FloatArray

# Of frames [T,F] as the model reads them -> [T] dB, NaN of padding, without what fills up; None: not known.
Levels: TypeAlias = Callable[[FloatArray], FloatArray | None]
STEADY_DB, CLEAR_DB = 3.0, 12.0  # of the loudest moment over the floor
UNSURE = -0.9  # mean log-probability of a word, nats
_BLOCK = 3000  # frames
_MOMENT, _BUT = 5, 1  # frames of a moment, and how many of them may be softer
_QUIET = 10  # percentile of the moments' levels


def contrast(levels: FloatArray) -> float:
    """The loudest moment's level over the noise floor, dB, by the levels [T] of frames, T at least 1."""
    size = min(_MOMENT, len(levels))
    frames = np.lib.stride_tricks.sliding_window_view(levels.astype(np.float64), size)
    moments = np.sort(frames, 1)[:, min(_BUT, size - 1)]
    return float(moments.max() - np.percentile(moments, _QUIET))


def levels_of(frames: FloatArray, levels: Levels) -> FloatArray | None:
    """The levels of frames [T,F], of which no more are in memory at a time than a model reads."""
    parts = [levels(frames[begin : begin + _BLOCK]) for begin in range(0, len(frames), _BLOCK)]
    known = [each for each in parts if each is not None]
    return np.concatenate([np.zeros(0, np.float32), *known]) if len(known) == len(parts) else None


def is_speech(levels: FloatArray | None, log_probs: Sequence[float] | FloatArray | None = None) -> bool:
    """Tells whether frames of levels [T] hold speech.

    Args:
        levels: None: they are not known, and it is taken for speech.
        log_probs: [N] of the words that the model outputs, nats; None or none: only levels tell.
    """
    if levels is None:
        return True
    levels = levels[~np.isnan(levels)]
    if not len(levels):
        return False
    found = contrast(levels)
    unsure = log_probs is not None and len(log_probs) > 0 and float(np.mean(log_probs)) < UNSURE
    return found >= (CLEAR_DB if unsure else STEADY_DB)
