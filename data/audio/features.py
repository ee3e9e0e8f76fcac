"""Features of sound: Kaldi's log-mel filterbank, and the log-mel spectrograms of Whisper and of ESPnet.

None needs torch. The filterbank is kaldi-native-fbank's, which is that of Kaldi's ``compute-fbank-feats``
without dither: samples in the scale of 16-bit numbers, frames that lie inside the sound alone
(``--snip-edges``), pre-emphasis 0.97, the mean of each window taken off, mel bins from 20 Hz to half the
sample rate, the logarithm of power.

Whisper's is that of Radford et al. 2022 (https://arxiv.org/abs/2212.04356, section 2.2) as its program and
transformers' ``WhisperFeatureExtractor`` compute it: windows of 400 samples around each 160th, the sound
reflected at its ends, Slaney's mel bins, log10 of power, at most 8 below the loudest, then (x + 4) / 4. Sound
is filled up with silence to 30 s. The weights of the bins are kaldi-native-fbank's; its own spectrum takes
six times as long as NumPy's, and its windows lie elsewhere.

ESPnet's is that of its ``DefaultFrontend`` (Watanabe et al. 2018, https://arxiv.org/abs/1804.00015): Hann
windows around each hop-th sample, in the middle of a longer transform, the sound reflected at its ends,
Slaney's mel bins from 0 Hz, and the natural logarithm of power, at least 1e-10. Sound of less than half a
transform, which ESPnet refuses, is reflected until it is long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from nartk.data.audio.sounds import RATES, requiring_audio
from nartk.data.audio.spectra import centred, mel_weights, transforms
from nartk.errors import InputTooLongError, UsageError, named
from nartk.protocols.passes import FloatArray

WINDOWS = ("povey", "hamming", "hanning")
FULL_SCALE = 32768.0  # of Kaldi's samples, which are 16-bit numbers
FBANK, WHISPER, ESPNET, STORED = FEATURES = ("fbank", "whisper", "espnet", "stored")
_WHISPER = {"sample_rate": 16000, "shift_ms": 10.0, "window_ms": 25.0}  # all that it knows
_MOST_TRANSFORM = 65_536  # samples
_LEAST_POWER = 1e-10  # of a bin of ESPnet's
_PIECE = 160_000  # samples given to kaldi-native-fbank at a time, which makes a Python number of each


@dataclass(frozen=True)
class FeatureSettings:
    """Settings of the features.

    Attributes:
        features: ``fbank``, ``whisper``, ``espnet``, or ``stored``, which are read as they are.
        sample_rate: Sampling rate of the sound, Hz.
        bins: F, features a frame.
        shift_ms: Hop, time from one frame to the next.
        window_ms: Length of a frame's window.
        window: Its shape, of the filterbank alone.
        transform: Samples of a Fourier transform, of ESPnet's features alone; 0: those of the window.
        seconds: Length to which sound is padded, and its maximum, for Whisper's features alone.

    Raises:
        UsageError: One is of a wrong type or out of bounds.
    """

    features: str = FBANK
    sample_rate: int = 16000
    bins: int = 80
    shift_ms: float = 10.0
    window_ms: float = 25.0
    window: str = WINDOWS[0]
    transform: int = 0
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, type_ = getattr(self, field.name), type(field.default)
            if not (type(value) is type_ or (type_ is float and type(value) is int)):
                raise UsageError(f"`{field.name}` is {value!r}", fix=f"give a {type_.__name__}")
        for name, choices in (("features", FEATURES), ("window", WINDOWS)):
            if getattr(self, name) not in choices:
                raise UsageError(
                    f"`{name}` is {getattr(self, name)!r}", fix=f"choose from {', '.join(choices)}"
                )
        if self.sample_rate not in RATES:
            raise UsageError(
                f"`sample_rate` is {self.sample_rate}", fix=f"give {RATES[0]} to {RATES[-1]}, in Hz"
            )
        for name, most in (("bins", 4096), ("shift_ms", 1000), ("window_ms", 1000), ("seconds", 3600)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"`{name}` is {getattr(self, name)}", fix=f"give 1 to {most}")
        for name, value in _WHISPER.items():
            if self.features == WHISPER and getattr(self, name) != value:
                raise UsageError(f"`{name}` is {getattr(self, name)}, Whisper's is {value}")

        if self.transform and (self.features != ESPNET or self.transform < self.window_samples):
            raise UsageError(
                f"`transform` is {self.transform}",
                fix=f"give 0, or with features {ESPNET!r} no less than "
                f"the window's {self.window_samples} samples",
            )
        if self.transform > _MOST_TRANSFORM:
            raise UsageError(f"`transform` is {self.transform}", fix=f"give 0 to {_MOST_TRANSFORM}")

    @property
    def window_samples(self) -> int:
        """Samples of a frame."""
        return int(self.sample_rate * self.window_ms / 1000)

    @property
    def shift_samples(self) -> int:
        """Samples from one frame to the next."""
        return int(self.sample_rate * self.shift_ms / 1000)

    @property
    def transform_samples(self) -> int:
        """Samples of a Fourier transform."""
        return self.transform if self.transform else self.window_samples

    @property
    def is_stored(self) -> bool:
        """True if features are read, not computed."""
        return self.features == STORED

    @property
    def is_local(self) -> bool:
        """True if a frame depends on the sound in its window alone."""
        return self.features in (FBANK, ESPNET)

    def most_samples(self, frames: int) -> int:
        """Samples of the longest sound that has so many frames."""
        if self.features == WHISPER:
            return int(min(self.seconds, frames * self.shift_ms / 1000) * self.sample_rate)
        if self.features == ESPNET:
            return frames * self.shift_samples - 1
        return self.window_samples + frames * self.shift_samples - 1

    def frames(self, samples: int) -> int:
        """Frames of a sound of so many samples."""
        if self.features == WHISPER:
            return int(self.seconds * 1000 / self.shift_ms)
        if self.features == ESPNET:
            return 1 + samples // self.shift_samples if samples else 0
        return max(0, 1 + (samples - self.window_samples) // self.shift_samples)


def compute(samples: FloatArray, settings: FeatureSettings) -> FloatArray:
    """The features [T,F] of a whole sound [N].

    Of the filterbank T is 1 + (N - window) // shift, in samples, and 0 of less than a window; of ESPnet's
    1 + N // shift; of Whisper's it is that of the settings' `seconds`.

    Raises:
        UsageError: The settings are of features that are stored.
        InputTooLongError: The sound is longer than Whisper's features may be.
        MissingDependencyError: kaldi-native-fbank is not installed.
    """
    return np.concatenate([*streamed([samples], settings)])


def streamed(blocks: Iterable[FloatArray], settings: FeatureSettings) -> Iterator[FloatArray]:
    """The features of sound in blocks [n], in blocks [t,F] of which some may be empty.

    Together they are those that `compute` gives of the whole sound, bit for bit. Memory does not grow with
    the sound, but for Whisper's features, which are one block. Raises as `compute`.
    """
    if settings.is_stored:
        raise UsageError("stored features cannot be computed from sound", fix="give stored features")
    if settings.features == WHISPER:
        yield _whisper(np.concatenate([np.zeros(0, np.float32), *blocks]), settings)
        return
    if settings.features == ESPNET:
        yield from _espnet(blocks, settings)
        return
    fbank = Fbank(settings)
    yield np.zeros((0, settings.bins), np.float32)
    for block in blocks:
        yield fbank.accept(block)


def silence(settings: FeatureSettings) -> float:
    """The power of a frame of ESPnet's features of digital silence, all bins together, dB; of others none."""
    if settings.features != ESPNET:
        return -np.inf
    return float(10 * np.log10(_LEAST_POWER * settings.bins))


def levels(features: FloatArray, settings: FeatureSettings) -> FloatArray:
    """The power [T] of each frame of computed features [T,F], all bins together, dB.

    Of Whisper's without the frames that it was filled up with: the last ones, as quiet as can be.
    """
    if settings.features == WHISPER:
        heard = np.flatnonzero((features > features.min()).any(1))
        features = features[: heard[-1] + 1 if len(heard) else 0]
        features = (4 * features - 4) * np.float32(np.log(10))
    most = features.max(1, keepdims=True)
    sums: FloatArray = most[:, 0] + np.log(np.exp(features - most).sum(1))
    return sums * np.float32(10 / np.log(10))


class Fbank:
    """Computes filterbank features of sound that comes bit by bit."""

    def __init__(self, settings: FeatureSettings) -> None:
        with requiring_audio():
            import kaldi_native_fbank as knf

        options = knf.FbankOptions()
        options.frame_opts.samp_freq = self._rate = settings.sample_rate
        options.frame_opts.frame_shift_ms = settings.shift_ms
        options.frame_opts.frame_length_ms = settings.window_ms
        options.frame_opts.window_type = settings.window
        options.frame_opts.dither = 0.0
        options.mel_opts.num_bins = self._bins = settings.bins
        self._online, self._done = knf.OnlineFbank(options), 0

    def accept(self, samples: FloatArray) -> FloatArray:
        """The frames [t,F] that are whole with the next samples [n]."""
        found = [np.zeros((0, self._bins), np.float32)]
        for start in range(0, len(samples), _PIECE):
            piece = samples[start : start + _PIECE] * np.float32(FULL_SCALE)
            self._online.accept_waveform(self._rate, piece.tolist())
            ready = range(self._done, self._online.num_frames_ready)
            frames = [self._online.get_frame(index) for index in ready]
            found.append(np.array(frames, np.float32).reshape(-1, self._bins))
            self._online.pop(len(ready))
            self._done = ready.stop
        return np.concatenate(found)


def _whisper(samples: FloatArray, settings: FeatureSettings) -> FloatArray:
    """Whisper's features [T,F] of a sound [N]."""
    most = int(settings.seconds * settings.sample_rate)
    if len(samples) > most:
        raise InputTooLongError(
            f"{len(samples) / settings.sample_rate:.1f} s of sound > {settings.seconds:g} s",
            fix=f"split the sound, or use {named('truncate', True)}",
        )
    log_mel = WhisperLogMel(settings)
    filled = np.pad(samples, (0, most - len(samples)))
    return log_mel.floored(np.concatenate([*log_mel.frames([filled])]))


class WhisperLogMel:
    """Whisper's features of sound that comes in blocks; their floor is known when all have come.

    Whatever the blocks, bits are the same: so many frames are computed at a time (`centred`).

    Attributes:
        loudest: log10 of the highest power of a bin in the frames so far.
    """

    def __init__(self, settings: FeatureSettings) -> None:
        self.settings = settings
        rate, window = settings.sample_rate, settings.window_samples
        self._weights = mel_weights(settings.bins, rate=rate, window=window, low=0, high=rate / 2)
        self.loudest = np.float32(-np.inf)

    def frames(self, blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """The logarithms of the mel bins' power, in blocks [t,F], of sound in blocks [n]."""
        shift, window = self.settings.shift_samples, self.settings.window_samples
        # The last window, which is around the sound's end, is left out.
        for held in centred(blocks, window, shift, last=False):
            power = _power(transforms(held, window, shift))
            found: FloatArray = np.log10(np.maximum(power @ self._weights, np.float32(1e-10)))
            self.loudest = max(self.loudest, found.max())
            yield found

    def floored(self, log_mel: FloatArray) -> FloatArray:
        """The features [t,F] of what `frames` gave, when all has come."""
        found = (np.maximum(log_mel, self.loudest - 8) + 4) / 4
        return found.astype(np.float32, copy=False)


def _espnet(blocks: Iterable[FloatArray], settings: FeatureSettings) -> Iterator[FloatArray]:
    """ESPnet's features of sound in blocks [n], in blocks [t,F]."""
    size, rate = settings.transform_samples, settings.sample_rate
    weights = mel_weights(settings.bins, rate=rate, window=size, low=0, high=rate / 2)
    yield np.zeros((0, settings.bins), np.float32)
    for held in centred(blocks, size, settings.shift_samples, last=True):
        spectrum = transforms(held, settings.window_samples, settings.shift_samples, size)
        yield np.log(np.maximum(_power(spectrum) @ weights, np.float32(_LEAST_POWER)))


def _power(spectrum: npt.NDArray[np.complexfloating]) -> FloatArray:
    return (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
