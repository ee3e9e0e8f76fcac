"""Cepstral mean and variance normalisation (CMVN): features of mean 0 and variance 1, in each of F alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.errors import CheckpointError, InputFileError
from nartk.files import read_file, write_json, writing
from nartk.protocols.passes import FloatArray

LEAST_VARIANCE = 1e-10  # so that digital silence, whose features are constant, becomes zeros
_MOST_BYTES = 1_000_000  # of a file of statistics


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of a corpus's features.

    Attributes:
        frames: Number of frames.
        mean: [F] fp64.
        variance: [F] fp64, of all frames as a population.
    """

    frames: int
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]

    @classmethod
    def of(cls, sources: Iterable[FloatArray]) -> Statistics:
        """The statistics of sources [T,F], of which one is in memory at a time.

        Sums of squared distances from means are merged (Chan et al. 1979), which loses no digits where the
        mean is far from 0, as sums of squares would.

        Raises:
            InputFileError: There is no frame.
        """
        count, mean, squares = 0, np.zeros(()), np.zeros(())
        for frames in sources:
            if not len(frames):
                continue
            own = frames.mean(axis=0, dtype=np.float64)
            distance, total = own - mean, count + len(frames)
            squares = squares + ((frames - own) ** 2).sum(axis=0)
            squares = squares + distance**2 * (count * len(frames) / total)
            mean, count = mean + distance * (len(frames) / total), total
        if not count:
            raise InputFileError("no frame to take statistics of", fix="give features")
        return cls(count, mean, squares / count)

    def equals(self, other: Statistics | None) -> bool:
        """True if both normalise alike."""
        return other is not None and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("mean", "variance")
        )

    def write(self, path: Path) -> None:
        """Writes them as JSON; raises OutputError."""
        with writing(path) as file:
            arrays = {"mean": self.mean.tolist(), "variance": self.variance.tolist()}
            write_json(file, {"frames": self.frames, **arrays})

    @classmethod
    def read(cls, path: Path, features: int) -> Statistics:
        """The statistics in a file; raises CheckpointError unless they are of so many features."""
        try:
            values: Any = json.loads(read_file(path, most=_MOST_BYTES))
            arrays = [np.array(values[name], np.float64) for name in ("mean", "variance")]
            found = cls(int(values["frames"]), *arrays)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise CheckpointError("no statistics of features", where=str(path)) from error
        if any(each.shape != (features,) or not np.isfinite(each).all() for each in arrays):
            raise CheckpointError(f"no mean and variance of {features} features", where=str(path))
        if found.frames < 1 or (found.variance < 0).any():
            raise CheckpointError("a variance below 0, or of no frame", where=str(path))
        return found


def normalize(frames: FloatArray, statistics: Statistics | None = None) -> FloatArray:
    """Frames [T,F] less the mean, divided by the deviation.

    Args:
        statistics: None: of the frames themselves.
    """
    found = Statistics.of([frames]) if statistics is None else statistics
    return ((frames - found.mean) / _deviation(found)).astype(np.float32)


def restore(frames: FloatArray, statistics: Statistics) -> FloatArray:
    """Frames [T,F] as they were before they were normalised by statistics, but for rounding."""
    return (frames * _deviation(statistics) + statistics.mean).astype(np.float32)


def _deviation(statistics: Statistics) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.sqrt(np.maximum(statistics.variance, LEAST_VARIANCE))
    return found
