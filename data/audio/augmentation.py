"""Random changes of sound and features for training: SpecAugment and speed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nartk.data.audio.sounds import resample
from nartk.errors import UsageError
from nartk.protocols.passes import FloatArray

SPEEDS = (0.9, 1.0, 1.1)  # Ko et al. 2015


@dataclass(frozen=True)
class SpecAugment:
    """Masks times and bins of features (Park et al. 2019, https://arxiv.org/abs/1904.08779).

    A mask's width is drawn evenly from 0 to the widest, then its begin among those that have room for it.
    What is masked gets the mean of all the features, which is 0 for features that are normalised, as in the
    paper. Differences from it: time is not warped, which the paper finds to help least, and a mask that is
    wider than the frame is cut to it. The defaults are its policy LD.

    Attributes:
        time_masks: Number of masks of time.
        time_width: Widest, frames.
        time_share: Widest in shares of the frames there are, in [0, 1]: p of the paper.
        bin_masks: Number of masks of bins.
        bin_width: Widest, bins.
    """

    time_masks: int = 2
    time_width: int = 100
    time_share: float = 1.0
    bin_masks: int = 2
    bin_width: int = 27

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (name == "time_share" and value > 1):
                bounds = "from 0 to 1" if name == "time_share" else "at least 0"
                raise UsageError(f"`{name}` is {value}", fix=f"give {bounds}")

    def __call__(self, frames: FloatArray, rng: np.random.Generator) -> FloatArray:
        """A copy of frames [T,F] with masks."""
        masked = frames.copy()
        if not frames.size:
            return masked
        mean = frames.mean(dtype=np.float64)
        length, bins = frames.shape
        widest = min(self.time_width, int(self.time_share * length))
        for _ in range(self.time_masks):
            masked[_span(length, widest, rng)] = mean
        for _ in range(self.bin_masks):
            masked[:, _span(bins, min(self.bin_width, bins), rng)] = mean
        return masked


def _span(length: int, widest: int, rng: np.random.Generator) -> slice:
    width = int(rng.integers(widest, endpoint=True))
    begin = int(rng.integers(length - width, endpoint=True))
    return slice(begin, begin + width)


def change_speed(samples: FloatArray, factor: float) -> FloatArray:
    """Samples [N] played so many times as fast, [about N / factor]: tempo and pitch change.

    The sound is resampled as if it had been recorded at `factor` times its rate (Ko et al. 2015,
    https://www.isca-archive.org/interspeech_2015/ko15_interspeech.html), as sox's ``speed``.

    Raises:
        UsageError: The factor is below 0.1 or above 10.
        MissingDependencyError: soxr is not installed.
    """
    _require_speed(factor)
    return resample(samples, factor, 1.0)


def change_tempo(frames: FloatArray, factor: float) -> FloatArray:
    """Features [T,F] so many times as fast, [T / factor, F], each between the two that are nearest in time.

    What `change_speed` is to sound, where there are features alone; but what they say of pitch stays.

    Raises:
        UsageError: The factor is below 0.1 or above 10.
    """
    _require_speed(factor)
    count = max(1, round(len(frames) / factor))
    times = np.linspace(0, len(frames) - 1, count)
    before = np.minimum(times.astype(np.int64), max(0, len(frames) - 2))
    after = np.minimum(before + 1, len(frames) - 1)
    share = (times - before)[:, None].astype(np.float32)
    found: FloatArray = (1 - share) * frames[before] + share * frames[after]
    return found


def _require_speed(factor: float) -> None:
    if not 0.1 <= factor <= 10:
        raise UsageError(f"a speed of {factor}", fix="give 0.1 to 10")
