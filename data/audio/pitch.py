"""Fundamental frequency of speech by autocorrelation, in NumPy.

Source: Boersma 1993, "Accurate short-term analysis of the fundamental frequency": the autocorrelation of a
window divided by the window's own, whose highest peak between two lags is the period. No path over frames is
searched: a candidate an octave up costs `_OCTAVE`, so that of equal peaks the shortest period is taken.
Symbols: N samples, T frames, W samples of a window, L lags.
"""

from __future__ import annotations

import numpy as np

from nartk.data.audio.spectra import hann
from nartk.errors import UsageError
from nartk.protocols.passes import FloatArray

LOWEST, HIGHEST = 65.0, 500.0  # Hz, of voices
_PERIODS = 3  # of the lowest frequency in a window
_VOICED = 0.5  # correlation of a frame with itself a period later, of voiced ones at least
_SILENT = 0.02  # of the loudest sample, which the samples of a silent frame do not exceed
_OCTAVE = 0.02  # correlation that each octave of a longer period costs
_TOGETHER = 1000  # frames computed at a time


def fundamental(
    samples: FloatArray, rate: int, hop: int, *, lowest: float = LOWEST, highest: float = HIGHEST
) -> FloatArray:
    """The fundamental frequency [1 + N // hop] of a sound [N] around each hop-th sample, Hz; 0: unvoiced.

    Raises:
        UsageError: The bounds are no frequencies of the sound, or not ascending.
    """
    if not 20 <= lowest < highest <= rate / 4:
        raise UsageError(
            f"the pitch is {lowest:g} to {highest:g} Hz", fix=f"give bounds between 20 and {rate / 4:g}"
        )
    window = int(_PERIODS * rate / lowest) // 2 * 2
    count = 1 + len(samples) // hop
    loudest = float(np.abs(samples).max(initial=0.0))
    padded = np.pad(samples.astype(np.float32), (window // 2, window // 2 + hop))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][:count]
    size = 1 << int(np.ceil(np.log2(2 * window)))
    shape = hann(window)
    own = _correlation(shape[None], size)[0]
    lags = np.arange(int(rate / highest), int(np.ceil(rate / lowest)) + 1)
    cost = _OCTAVE * np.log2(lags * highest / rate)
    found = np.zeros(count, np.float32)
    for begin in range(0, count, _TOGETHER):
        part = frames[begin : begin + _TOGETHER]
        centred = (part - part.mean(1, keepdims=True)) * shape
        near = slice(lags[0] - 1, lags[-1] + 2)
        whole = _correlation(centred, size)
        power = np.maximum(whole[:, :1], np.float32(1e-12))
        scores = whole[:, near] / power / (own[near] / own[0])  # [t, L + 2]
        middle = scores[:, 1:-1]
        peaks = (middle >= scores[:, :-2]) & (middle > scores[:, 2:])
        best = np.where(peaks, middle - cost, -np.inf).argmax(1)
        rows = np.arange(len(part))
        before, at, after = (scores[rows, best + step] for step in (0, 1, 2))
        bend = before - 2 * at + after
        is_peak = peaks[rows, best]  # else the shift may be anything
        shift = np.where(is_peak, (before - after) / np.where(is_peak, 2 * bend, 1), 0)
        loud = np.abs(part).max(1) > _SILENT * loudest
        voiced = is_peak & (at > _VOICED) & loud
        found[begin : begin + len(part)] = np.where(voiced, rate / (lags[best] + shift), 0)
    return found


def interpolated(pitch: FloatArray) -> FloatArray:
    """Frequencies [T] with a line over unvoiced frames, between the voiced ones beside; ends are held.

    Raises:
        UsageError: No frame is voiced.
    """
    voiced = np.flatnonzero(pitch)
    if not len(voiced):
        raise UsageError("no frame is voiced", fix="give speech")
    return np.interp(np.arange(len(pitch)), voiced, pitch[voiced]).astype(np.float32)


def _correlation(frames: FloatArray, size: int) -> FloatArray:
    """The autocorrelation [t, size] of frames [t, W], of which lags below `size` - W count."""
    spectrum = np.fft.rfft(frames, size)
    power = spectrum.real**2 + spectrum.imag**2
    found: FloatArray = np.fft.irfft(power, size).astype(np.float32, copy=False)
    return found
