"""Finds where a recording holds speech, while its samples are read.

Two detectors tell of each frame whether it is speech: the published network of Silero, and the gate by energy
of Kaldi's ``compute-vad`` (src/ivector/voice-activity-detection.cc), which needs no package. The rule that
makes spans of frames is that of silero-vad's ``get_speech_timestamps``, with faster-whisper's settings for
batches. It differs from both in this: a span that is too long is cut at the frame of its second half that is
speech least.

Symbols: N samples, T frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nartk.errors import MissingDependencyError, UsageError, named, requiring
from nartk.protocols.passes import FloatArray

RATE = 16000  # samples a second of what detectors read
DETECTORS = ("silero", "energy")
Span = tuple[float, float]  # begin and end, seconds
SPEECH, QUIET = 0.5, 0.35  # speech begins from the first on, and ends below the second
LEAST_PAUSE = 0.16  # seconds; a shorter one divides nothing
PAD = 0.4  # seconds before and behind speech that belong to it
# Of Silero's frames: samples of one, samples before it that it sees, and frames of a call.
_STEP, _BEFORE, _TOGETHER = 512, 64, 512
# Of the gate's: samples of one, and from one to the next; Kaldi's defaults, of samples of 16 bits.
_WINDOW, _SHIFT = 400, 160
_THRESHOLD, _MEAN_SCALE, _CONTEXT, _SHARE = 5.5, 0.5, 2, 0.12


class Detector(Protocol):
    """Reads a recording block by block, and tells where speech is."""

    def listen(self, samples: FloatArray) -> None:
        """Takes the next samples [n], `RATE` a second."""

    def spans(self, longest: float) -> list[Span]:
        """Spans of speech, in order, none longer than so many seconds."""


def detector(name: str) -> Detector:
    """A new detector by its name.

    Raises:
        MissingDependencyError: A package that it needs is not installed.
    """
    if name not in DETECTORS:
        raise UsageError(f"{named('vad')} is {name!r}", fix=f"choose from {', '.join(DETECTORS)}")
    return Silero() if name == "silero" else EnergyGate()


def listened(blocks: Iterable[FloatArray], detector: Detector) -> Iterator[FloatArray]:
    """Blocks of samples [n], each of which a detector reads as it passes."""
    for block in blocks:
        detector.listen(block)
        yield block


class Silero:
    """The network of Silero, that of its package for sequences, in ONNX.

    It gives the probabilities of the network that its program calls frame by frame. It reads samples as they
    come, so that memory holds a number a frame.

    Raises:
        MissingDependencyError: silero-vad or onnxruntime is not installed.
    """

    def __init__(self) -> None:
        needs = f"{named('vad', 'silero')} needs the package"
        with requiring(f"{needs} {{name}}", "vad"):
            import onnxruntime
        package = find_spec("silero_vad")  # which itself loads torch
        if package is None or package.origin is None:
            raise MissingDependencyError(f"{needs} 'silero_vad'", fix="pip install 'nartk[vad]'")
        options = onnxruntime.SessionOptions()
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        path = Path(package.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
        self._session: Any = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        self._state = [np.zeros((1, 1, 128), np.float32) for _ in "hc"]
        self._before: FloatArray = np.zeros(_BEFORE, np.float32)
        self._rest: FloatArray = np.zeros(0, np.float32)
        self._count, self._found = 0, [np.zeros(0, np.float32)]

    def listen(self, samples: FloatArray) -> None:
        self._count += len(samples)
        joined = np.concatenate([self._rest, samples])
        whole = len(joined) // _STEP * _STEP
        self._rest = joined[whole:]
        self._read(joined[:whole])

    def _read(self, samples: FloatArray) -> None:
        for begin in range(0, len(samples), _TOGETHER * _STEP):
            frames = samples[begin : begin + _TOGETHER * _STEP].reshape(-1, _STEP)
            ends = frames[:, -_BEFORE:]
            inputs = np.concatenate([np.concatenate([self._before[None], ends[:-1]]), frames], 1)
            state = dict(zip("hc", self._state, strict=True))
            found, *self._state = self._session.run(["speech_probs", "hn", "cn"], {"input": inputs, **state})
            self._before = ends[-1].copy()
            self._found.append(np.asarray(found, np.float32).reshape(-1))

    def spans(self, longest: float) -> list[Span]:
        if len(self._rest):  # the last frame is filled up with zeros
            self._read(np.pad(self._rest, (0, _STEP - len(self._rest))))
            self._rest = self._rest[:0]
        found = np.concatenate(self._found)
        return spans_of(found, found, RATE / _STEP, self._count / RATE, longest)


class EnergyGate:
    """Takes for speech what is louder than a share of the mean, as Kaldi's ``compute-vad`` does.

    A frame is speech if, of itself and the two frames on either side, at least a share have a logarithm of
    their energy above a threshold that grows with the recording's mean. It differs from Kaldi's program in
    this: that one reads the frame itself in each neighbour's place, so that only a frame's own energy counts;
    and frames of 25 ms are of the samples, not of features. It cannot tell loud noise from speech.
    """

    def __init__(self) -> None:
        self._rest: FloatArray = np.zeros(0, np.float32)
        self._count, self._energies = 0, [np.zeros(0, np.float32)]

    def listen(self, samples: FloatArray) -> None:
        self._count += len(samples)
        joined = np.concatenate([self._rest, samples])
        frames = max(0, (len(joined) - _WINDOW) // _SHIFT + 1)
        self._rest = joined[frames * _SHIFT :]
        if frames:
            windows = np.lib.stride_tricks.sliding_window_view(joined, _WINDOW)[::_SHIFT][:frames]
            scaled = windows.astype(np.float64) * 32768
            energy = np.square(scaled - scaled.mean(1, keepdims=True)).sum(1)
            self._energies.append(np.log(np.maximum(energy, np.finfo(np.float32).eps)).astype(np.float32))

    def spans(self, longest: float) -> list[Span]:
        energies, end = np.concatenate(self._energies), self._count / RATE
        if not len(energies):
            return [(0.0, end)] if end else []  # too short to tell
        return spans_of(is_loud(energies).astype(np.float32), energies, RATE / _SHIFT, end, longest)


def is_loud(energies: FloatArray) -> npt.NDArray[np.bool_]:
    """Kaldi's rule for the logarithms of energies of frames [T] -> [T]."""
    threshold = _THRESHOLD + _MEAN_SCALE * float(energies.mean(dtype=np.float64))
    above = energies > threshold
    window = np.ones(2 * _CONTEXT + 1)
    counts, sizes = (
        np.convolve(each, window)[_CONTEXT : len(above) + _CONTEXT] for each in (above, np.ones(len(above)))
    )
    return counts >= sizes * _SHARE


def spans_of(
    probabilities: FloatArray, levels: FloatArray, rate: float, end: float, longest: float
) -> list[Span]:
    """Spans of speech, by the probability [T] of each frame.

    Args:
        levels: [T], how much speech each frame is, where a span has to be cut.
        rate: Frames a second.
        end: Seconds of the recording.
        longest: Seconds of a span at most.
    """
    talks = [(first / rate, min(behind / rate, end)) for first, behind in _talks(probabilities, rate)]
    if not talks:
        return []
    # A pause that is too short for both pads is divided in its middle.
    pauses = [(one[1], other[0]) for one, other in pairwise(talks)]
    begins = [
        max(0.0, talks[0][0] - PAD),
        *(max(begin - PAD, (stop + begin) / 2) for stop, begin in pauses),
    ]
    ends = [*(min(stop + PAD, (stop + begin) / 2) for stop, begin in pauses), min(end, talks[-1][1] + PAD)]
    padded = zip(begins, ends, strict=True)
    return [part for span in padded for part in _divided(span, levels, rate, longest)]


def _talks(probabilities: FloatArray, rate: float) -> list[tuple[int, int]]:
    """The first frame of each talk, and the frame behind it."""
    found: list[tuple[int, int]] = []
    first = quiet = None
    for frame, value in enumerate(probabilities.tolist()):
        if value >= SPEECH:
            first, quiet = frame if first is None else first, None
        elif value < QUIET and first is not None:
            quiet = frame if quiet is None else quiet
            if frame - quiet >= LEAST_PAUSE * rate:
                found.append((first, quiet))
                first = quiet = None
    return found if first is None else [*found, (first, len(probabilities))]


def _divided(span: Span, levels: FloatArray, rate: float, longest: float) -> Iterable[Span]:
    begin, end = span
    while end - begin > longest:
        first, last = (int((begin + share * longest) * rate) for share in (0.5, 1.0))
        cut = (first + int(levels[first:last].argmin())) / rate
        yield begin, cut
        begin = cut
    yield begin, end


def chunks(spans: Sequence[Span], longest: float) -> list[tuple[Span, ...]]:
    """Spans in groups of as many as hold so many seconds of speech together, or of one."""
    found: list[list[Span]] = []
    left = 0.0
    for begin, end in spans:
        left -= end - begin
        if left < 0:
            found.append([])
            left = longest - (end - begin)
        found[-1].append((begin, end))
    return [*map(tuple, found)]
