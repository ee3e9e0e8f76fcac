"""Speech that models learn to speak: mel spectrograms and the prosody of their phonemes, a file a split.

``SPLIT.speech.npz`` is beside ``SPLIT.txt``, whose line i holds the phonemes of utterance i between spaces.
It has these arrays, in which utterances lie one behind the other, in the order of the lines:

- ``phonemes`` [utterances], whole numbers: how many phonemes each has, at least 1, as its line does. Eos is
  none of them, here and below; where a model has one, its duration, pitch and energy are 0.
- ``durations`` [phonemes], whole numbers: frames of each phoneme, 0 or more; each utterance has some.
- ``mel`` [frames, bins]: log-mel spectrograms, whose utterances have as many frames as their durations sum
  to. They are not normalised: models keep mean and deviation of a corpus, and undo what they do by these.
- ``pitch`` [phonemes]: log(f0 + 1), f0 in Hz and the mean over the phoneme's frames.
- ``energy`` [phonemes]: log(e + 1), e the mean over the phoneme's frames of the L2 norm of the STFT's
  magnitudes.

`SpeechCorpus.of` puts utterances together, and `write` writes them.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nartk.errors import InputFileError
from nartk.files import writing
from nartk.protocols.passes import FloatArray, IntArray

SUFFIX = ".speech.npz"
_NUMBERS = ("mel", "pitch", "energy")
_COUNTS = ("phonemes", "durations")
_BROKEN = (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Utterance:
    """The speech of a line of N phonemes.

    Attributes:
        mel: [T,F] log-mel frames.
        durations: [N] frames of each phoneme, T together.
        pitch, energy: [N], logarithms as in the file.
    """

    mel: FloatArray
    durations: IntArray
    pitch: FloatArray
    energy: FloatArray


@dataclass(frozen=True)
class SpeechStatistics:
    """Statistics that a model keeps of the corpus that it was trained on.

    Attributes:
        mean, deviation: [F] of the frames; the deviation is 1 where all frames are the same.
        pitch, energy: The lowest and the highest value, among them 0, which is eos's.
    """

    mean: FloatArray
    deviation: FloatArray
    pitch: tuple[float, float]
    energy: tuple[float, float]


class SpeechCorpus(Sequence[Utterance]):
    """The utterances of a split.

    Args:
        arrays: The arrays of a file.
        where: Name of the file, for messages.

    Raises:
        InputFileError: An array is missing, has another type or shape, or holds what is no finite number; or
            the lengths do not fit each other.
    """

    def __init__(self, arrays: dict[str, np.ndarray], where: str = "") -> None:
        self._where, self._arrays = where, arrays
        for name in (*_NUMBERS, *_COUNTS):
            self._require(name in arrays, f"it has no {name!r}")
            found, counts = arrays[name], name in _COUNTS
            shape, dimensions = ("[frames, bins]", 2) if name == "mel" else ("[N]", 1)
            wanted = f"{'whole ' if counts else ''}numbers {shape}"
            type = np.integer if counts else np.floating
            right = found.ndim == dimensions and np.issubdtype(found.dtype, type)
            self._require(right, f"{name!r} is {found.dtype} {list(found.shape)}, not {wanted}")
            if counts:
                least = 1 if name == "phonemes" else 0
                self._require(not (found < least).any(), f"{name!r} has a number below {least}")
            else:
                self._require(bool(np.isfinite(found).all()), f"{name!r} has an infinite number or NaN")
        self._require(len(self) > 0, "it has no utterances")
        self._ends = np.cumsum(arrays["phonemes"], dtype=np.int64)
        total = int(self._ends[-1])
        for name in ("durations", "pitch", "energy"):
            count = len(arrays[name])
            self._require(count == total, f"{name!r} has {count} phonemes, 'phonemes' {total} together")
        starts = np.cumsum(np.concatenate([[0], arrays["durations"]]), dtype=np.int64)
        frames = len(arrays["mel"])
        self._require(starts[-1] == frames, f"'mel' has {frames} frames, 'durations' {starts[-1]} together")
        self._borders = starts[np.concatenate([[0], self._ends])]
        self.frames = np.diff(self._borders)  # of each utterance
        silent = np.flatnonzero(self.frames == 0)
        self._require(not len(silent), f"utterance {silent[0] if len(silent) else 0} has no frames")

    def _require(self, right: bool, message: str) -> None:
        if not right:
            raise InputFileError(message, fix="write it as nartk.data.audio.targets says", where=self._where)

    @classmethod
    def of(cls, utterances: Sequence[Utterance]) -> SpeechCorpus:
        """The corpus of utterances, at least one."""
        together = {
            name: np.concatenate([getattr(each, name) for each in utterances])
            for name in ("mel", "durations", "pitch", "energy")
        }
        return cls({**together, "phonemes": np.array([len(each.durations) for each in utterances])})

    @classmethod
    def read(cls, path: Path) -> SpeechCorpus:
        """Reads a file; raises InputFileError as the class does, and where it cannot be read."""
        try:
            with np.load(path) as file:
                arrays = {name: file[name] for name in file}
        except (*_BROKEN, AttributeError) as error:  # a file of one array is no context
            raise InputFileError(
                f"cannot be read as arrays: {error}", fix="give an .npz file", where=str(path)
            ) from error
        return cls(arrays, str(path))

    def write(self, path: Path) -> None:
        """Writes a file; raises OutputError."""
        with writing(path, binary=True) as file:
            arrays = {name: self._arrays[name] for name in (*_NUMBERS, *_COUNTS)}
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # no name is that of an option

    def __len__(self) -> int:
        return len(self._arrays["phonemes"])

    def __getitem__(self, index: int) -> Utterance:  # type: ignore[override]  # no slices
        end = int(self._ends[index])
        of = slice(end - int(self.phonemes[index]), end)
        frames = slice(int(self._borders[index]), int(self._borders[index + 1]))
        mel, pitch, energy = (
            np.asarray(self._arrays[name][part], np.float32)
            for name, part in zip(_NUMBERS, (frames, of, of), strict=True)
        )
        return Utterance(mel, self._arrays["durations"][of].astype(np.int32), pitch, energy)

    @property
    def phonemes(self) -> IntArray:
        """Number of phonemes of each utterance."""
        return self._arrays["phonemes"]

    @property
    def statistics(self) -> SpeechStatistics:
        """Statistics of at least one utterance."""
        mel = self._arrays["mel"]
        deviation = mel.std(0, dtype=np.float64)
        pitch, energy = (
            (float(min(found.min(), 0.0)), float(max(found.max(), 0.0)))
            for found in (self._arrays["pitch"], self._arrays["energy"])
        )
        return SpeechStatistics(
            mel.mean(0, dtype=np.float64).astype(np.float32),
            np.where(deviation > 0.0, deviation, 1.0).astype(np.float32),
            pitch,
            energy,
        )
