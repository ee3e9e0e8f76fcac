"""Short-time Fourier transforms, mel bins, and the log-mel spectrograms of speech output, in NumPy.

A log-mel spectrogram here is that of fairseq's and HiFi-GAN's speech synthesis: magnitudes of windows around
each hop-th sample, the sound reflected at its ends, Slaney's mel bins, and log(max(x, 1e-5)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from nartk.data.audio.sounds import requiring_audio
from nartk.protocols.passes import FloatArray
from nartk.protocols.spectrograms import MelSettings

LEAST = 1e-5  # of a mel bin, whose logarithm is taken
_TOGETHER = 3000  # frames whose transforms are held at a time


def hann(window: int) -> FloatArray:
    """A periodic Hann window [window] float32."""
    shape: npt.NDArray[np.float64] = 0.5 - 0.5 * np.cos(2 * np.pi / window * np.arange(window))
    return shape.astype(np.float32)


def transforms(
    samples: FloatArray, window: int, hop: int, size: int | None = None
) -> npt.NDArray[np.complexfloating]:
    """Fourier transforms [T, size // 2 + 1] of Hann windows of samples [N], T = 1 + (N - size) // hop.

    Args:
        size: Samples of a transform, in whose middle the window lies; None: the window's.
    """
    size = window if size is None else size
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    before = (size - window) // 2
    return np.fft.rfft(frames * np.pad(hann(window), (before, size - window - before)))


def centred(blocks: Iterable[FloatArray], size: int, hop: int, *, last: bool) -> Iterator[FloatArray]:
    """Cuts sound in blocks [n] into stretches, whose windows lie around each hop-th sample of it.

    The sound is reflected at its ends. Whatever the blocks, stretches are the same: of `_TOGETHER` windows,
    and what is left. Together they have N // hop windows, and one more with the last.

    Args:
        size: Samples of a window.
        last: True for the window around the end of the sound too.
    """
    half = size // 2
    held: FloatArray = np.zeros(0, np.float32)  # from the beginning of the next window on
    samples = done = 0
    for block in blocks:
        held = np.concatenate([held, block])
        samples += len(block)
        if samples - len(block) <= half < samples:  # there are as many as are reflected
            held = np.pad(held, (half, 0), mode="reflect")
        while len(held) >= (_TOGETHER - 1) * hop + size:
            yield held[: (_TOGETHER - 1) * hop + size]
            held = held[_TOGETHER * hop :]
            done += _TOGETHER
    if not samples:
        return
    held = np.pad(held, (0 if samples > half else half, half), mode="reflect")
    count = samples // hop + int(last)
    for begin in range(done, count, _TOGETHER):
        end = min(begin + _TOGETHER, count) - 1 - done
        yield held[(begin - done) * hop : end * hop + size]


@cache
def mel_weights(bins: int, *, rate: int, window: int, low: float, high: float) -> FloatArray:
    """The weights [window // 2 + 1, bins] of Slaney's mel bins, each of area 1."""
    with requiring_audio():
        import kaldi_native_fbank as knf

    frames, options = knf.FrameExtractionOptions(), knf.MelBanksOptions()
    frames.samp_freq, frames.round_to_power_of_two = rate, False
    frames.frame_length_ms = 1000 * (window + 0.5) / rate  # of which whole samples are taken
    options.num_bins, options.low_freq, options.high_freq, options.is_librosa = bins, low, high, True
    banks = knf.MelBanks(options, frames, 1.0)
    return np.stack([banks.compute(row) for row in np.eye(window // 2 + 1, dtype=np.float32)])


def mel_bins(settings: MelSettings) -> FloatArray:
    """The weights [window // 2 + 1, F] of the settings' mel bins."""
    return mel_weights(
        settings.bins,
        rate=settings.sample_rate,
        window=settings.window,
        low=settings.low,
        high=settings.high,
    )


def magnitudes(samples: FloatArray, settings: MelSettings) -> Iterator[FloatArray]:
    """Magnitudes, in blocks [t, window // 2 + 1], of the frames of a sound [N]; together 1 + N // hop.

    A sound of less than half a window is reflected until it is long enough; one without samples is silence.
    """
    half = settings.window // 2
    held = np.pad(samples, half, mode="reflect") if len(samples) else np.zeros(2 * half, np.float32)
    for begin in range(0, 1 + len(samples) // settings.hop, _TOGETHER):
        end = min((begin + _TOGETHER - 1) * settings.hop + settings.window, len(held))
        found = transforms(held[begin * settings.hop : end], settings.window, settings.hop)
        yield np.abs(found).astype(np.float32, copy=False)


def log_mel(samples: FloatArray, settings: MelSettings) -> FloatArray:
    """The log-mel spectrogram [1 + N // hop, F] of a sound [N]."""
    return mel_and_energy(samples, settings)[0]


def mel_and_energy(samples: FloatArray, settings: MelSettings) -> tuple[FloatArray, FloatArray]:
    """The log-mel spectrogram [T,F] of a sound [N], and its energy [T]: the L2 norm of a frame's magnitudes.

    Raises:
        MissingDependencyError: kaldi-native-fbank is not installed.
    """
    weights = mel_bins(settings)
    blocks = [
        (np.log(np.maximum(each @ weights, np.float32(LEAST))), np.sqrt(np.square(each).sum(1)))
        for each in magnitudes(samples, settings)
    ]
    mels, energies = zip(*blocks, strict=True)
    return np.concatenate(mels), np.concatenate(energies)
