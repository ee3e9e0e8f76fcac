"""Durations, pitch and energy of phonemes, by the times at which each begins in a recording.

Symbols: N phonemes, T frames of the spectrogram, F mel bins, S samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nartk.data.audio.pitch import HIGHEST, LOWEST, fundamental, interpolated
from nartk.data.audio.spectra import mel_and_energy
from nartk.data.audio.targets import Utterance
from nartk.errors import InputFileError
from nartk.protocols.passes import FloatArray, IntArray
from nartk.protocols.spectrograms import MelSettings


def durations_of(begins: Sequence[float] | FloatArray, frames: int, settings: MelSettings) -> IntArray:
    """Frames [N] of each phoneme, T together: each begins at the frame whose middle is nearest to its time.

    The first begins with the sound, and none ends before it begins.

    Args:
        begins: [N] seconds, ascending, at least one.
        frames: T.
    """
    starts = np.rint(np.asarray(begins, np.float64) * settings.sample_rate / settings.hop)
    starts = np.clip(starts, 0, frames).astype(np.int64)
    starts[0] = 0
    return np.diff(np.append(starts, frames))


def means_of(values: FloatArray, durations: IntArray) -> FloatArray:
    """The mean [N] of a phoneme's values [T]; one without frames has that of the frame where it lies."""
    ends = np.cumsum(durations)
    begins = np.minimum(ends - durations, len(values) - 1)
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    counts = np.maximum(durations, 1)
    found: FloatArray = ((sums[begins + counts] - sums[begins]) / counts).astype(np.float32)
    return found


def speech_of(
    samples: FloatArray,
    begins: Sequence[float] | FloatArray,
    settings: MelSettings,
    *,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
) -> Utterance:
    """The speech of N phonemes in a recording [S] of the settings' rate.

    Args:
        begins: [N] times at which each begins, s.
        lowest, highest: Bounds of the pitch, Hz.

    Raises:
        InputFileError: At most one frame is voiced.
    """
    mel, energy = mel_and_energy(samples, settings)
    durations = durations_of(begins, len(mel), settings)
    pitch = fundamental(samples, settings.sample_rate, settings.hop, lowest=lowest, highest=highest)
    if np.count_nonzero(pitch) < 2:
        raise InputFileError("the recording has no pitch", fix="leave it out, or give another pitch range")
    return Utterance(
        mel,
        durations,
        np.log1p(means_of(interpolated(pitch), durations)),
        np.log1p(means_of(energy, durations)),
    )
