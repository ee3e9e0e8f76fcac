"""Recordings that are longer than a model reads at once: cut into buffers that overlap.

A buffer is a chunk with some context on either side; what the model says of the context is dropped, since it
has not seen what lies beyond. All begin and end between positions of the encoder, so that what the model says
of a position differs from what it says of it in another buffer by what it sees of the rest alone: by nothing
where the context is as wide as what a position sees.

The chunks and contexts are those of OWSM-CTC (Peng et al. 2024, https://arxiv.org/abs/2402.12654, section
3.4). It differs from ESPnet's program in this: nothing is padded with silence, the sound behind the last
whole chunk is read to its end, and a recording that fits one buffer is read as a whole. A model whose sources
all have one length reads ESPnet's own buffers (`nartk.serving.buffers.FixedBuffers`).

Symbols: B sources, S positions of the encoder, N frames of all sources (positions, or fires), n scored ones.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import mul
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from nartk.errors import SourceMismatchError, StrategyMismatchError, UsageError, named
from nartk.processors.frames import FrameFile
from nartk.protocols.contexts import Handles
from nartk.protocols.fires import Carried, Window
from nartk.protocols.parallel import FireScorer, FrameScorer, always_banned, silent_words
from nartk.protocols.passes import FeatureSource, FloatArray, IntArray, Ragged, Scores, Source, Want
from nartk.protocols.reading import Reading, read
from nartk.protocols.sources import Recording
from nartk.protocols.timestamps import position_spans
from nartk.registry import protocols
from nartk.serving.activity import Levels, is_speech
from nartk.serving.buffers import Buffers, FixedBuffers

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding
    from nartk.processors.audio import AudioInput
    from nartk.serving.model import Model

_TOGETHER = 8  # buffers that are encoded at a time
_Ints = npt.NDArray[np.int64]
T = TypeVar("T")


def require_positions(model: Model) -> None:
    """Raises StrategyMismatchError where a model has several labels a position of its encoder."""
    if (labels := model.config.labels_per_position) > 1:
        raise StrategyMismatchError(f"buffers of {labels} labels a position", fix="decode it as a whole")


def positions_of(scorer: FrameScorer, memory: IntArray, windows: Sequence[Window]) -> list[_Ints]:
    """The position of the recording in which each frame of encoded buffers lies; -1: of no sound.

    Args:
        scorer: Scorer of CTC, whose frames are the encoder's positions.

    Raises:
        StrategyMismatchError: The model has other positions.
    """
    counts = scorer.frames(memory).tolist()
    found = []
    for count, window in zip(counts, windows, strict=True):
        size = window.end - window.begin
        if count < size:
            raise StrategyMismatchError(
                f"a buffer has {count} positions, by its frames and subsampling it has {size}",
                fix="use a model whose subsampling convolutions have no padding",
            )
        # Words in front of the frames have positions too, which the first buffer keeps.
        words = np.full(count - size, 0 if window.first == 0 else min(-1, window.first - 1))
        found.append(np.concatenate([words, np.arange(window.begin, window.end)]))
    return found


def buffers_for(model: Model, seconds: float = 30.0) -> Buffers:
    """Buffers of so many seconds, an eighth of them context on either side, as `Model.buffers` takes them.

    They are whole positions of the model's encoder, and no longer than what it reads at once.

    Raises:
        UsageError: They are shorter than eight positions, or the model reads no sound.
        StrategyMismatchError: It has no frames to be read alone, as Whisper, or several labels a position.
    """
    if model.sound is None:
        raise UsageError(
            "buffers of a model that reads no sound",
            fix=f"leave {named('long_form')} out, or name one that does",
        )
    if not hasattr(model.config, "subsampling"):
        raise StrategyMismatchError(
            f"{named('long_form')} with a model that reads its own windows of sound",
            fix=f"use {named('strategy', 'windows')}, which decodes sound of any length",
        )
    require_positions(model)
    if not math.isfinite(seconds):
        raise UsageError(f"{named('long_form')} is {seconds:g}", fix="give seconds, such as 30")
    subsampling, shift = model.config.subsampling, model.sound.settings.shift_ms
    if fill := model.sound.fill:
        if seconds != fill:
            raise UsageError(
                f"{named('long_form')} is {seconds:g}, of a model that reads {fill:g} s at a time",
                fix=f"give {fill:g}",
            )
        return FixedBuffers.of_length(model.sound.settings.frames(model.sound.filled), subsampling)
    longest = model.config.max_source_len // subsampling - 1
    size = min(round(1000 * seconds / (shift * subsampling)), longest)
    if size < 8:
        raise UsageError(
            f"{named('long_form')} is {seconds:g} s, {size} positions of the model's encoder",
            fix=f"give at least {8 * shift * subsampling / 1000:g}",
        )
    context = size // 8
    covers = model.config.covers_frames  # type: ignore[attr-defined]
    return Buffers(size - 2 * context, context, context, subsampling, size, covers)


def in_buffers(
    strategy: Decoding | type[Decoding], scorer: Any, buffers: Buffers, *, levels: Levels | None = None
) -> BufferedFrames:
    """A scorer of recordings of any length, for a strategy that reads frames alone.

    Args:
        levels: Levels of frames, by which buffers without speech are left out; None: none is.

    Raises:
        StrategyMismatchError: The strategy needs another protocol.
    """
    if not {*protocols(strategy)} <= {FrameScorer, FireScorer}:
        raise StrategyMismatchError(
            f"{named('long_form')} with strategy {strategy.name!r}, which reads a source as a whole",
            fix=f"use one that reads frames, such as {named('strategy', 'ctc-greedy')}",
        )
    return BufferedFrames(scorer, buffers, levels=levels)


def read_long(reader: AudioInput, line: str | Recording, buffers: Buffers | None = None) -> FeatureSource:
    """The source of a recording of any length, with its features in a file (`nartk.processors.frames`).

    So memory does not grow with the recording. Features that need the whole sound are read at once.

    Args:
        reader: The model's input processor.
        buffers: Buffers that it is cut into; None: they are of any length.

    Raises:
        NartkError: Same as in `InputProcessor.read`.
    """
    if isinstance(buffers, FixedBuffers):
        return reader.read_buffers(line, **buffers.spacing)
    settings = reader.settings
    if not settings.is_local or reader.cmvn == "utterance":
        return reader.read(line, longest=sys.maxsize)
    words, prompt = reader.beside(line)
    frames: Any = FrameFile(reader.stream(line), settings.bins)
    reader.seconds += len(frames) * settings.shift_ms / 1000
    return FeatureSource(frames, settings.shift_ms, words, prompt)


@dataclass(frozen=True)
class _Fires:
    """The fires [N,D] of a buffer, the position of each in the recording, and which of them are kept."""

    embeddings: FloatArray
    positions: _Ints
    kept: _Ints


@dataclass(frozen=True)
class _Recording:
    """A source, its buffers and how many frames each has; of a model of fires also those."""

    source: FeatureSource
    windows: tuple[Window, ...]
    counts: tuple[int, ...]
    fires: tuple[_Fires, ...] | None = None


class BufferedFrames:
    """Implements `FrameScorer` for sources of any length, by a model that reads buffers.

    Frames are those of all chunks, one after the other, whatever a strategy makes of them. Encoded sources
    are not kept: buffers are encoded as their frames are read, so that memory grows by what is read alone.
    Those of a model of fires are encoded twice, since their number is not known before.

    Args:
        scorer: Reads the buffers.
        levels: Same as in `in_buffers`.
    """

    def __init__(self, scorer: Any, buffers: Buffers, *, levels: Levels | None = None) -> None:
        buffers.require_fit(scorer)
        self._levels = levels
        self.scorer, self.buffers = scorer, buffers
        self.vocab, self.blank = scorer.vocab, scorer.blank
        self.numerics = f"{scorer.numerics}|buffers:{buffers.left}+{buffers.chunk}+{buffers.right}"
        self.limits = replace(scorer.limits, source=sys.maxsize, target=sys.maxsize)
        self._recordings: Handles[_Recording] = Handles("memory")

    def encode(self, sources: Sequence[Source]) -> IntArray:
        return self._recordings.add([self._recording(i, source) for i, source in enumerate(sources)])

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._recordings.remove(memory)

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        found = [self._recordings[int(handle)] for handle in memory]
        return np.array([sum(each.counts) for each in found], np.int32)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> _Joined:
        total = int(self.frames(memory).sum())
        scored = np.arange(total) if want.only is None else want.only.astype(np.int64)
        parts = [*self._readings(memory, want, scored, _copied)]
        if not parts:  # nobody speaks in any of the recordings
            parts = [read(np.zeros((0, len(self.vocab)), np.float32), want)]
        return _Joined(parts, lambda index: self._logits(memory, scored[np.asarray(index, np.int64)]))

    def _recording(self, number: int, source: Source) -> _Recording:
        if not isinstance(source, FeatureSource):
            raise SourceMismatchError(
                f"source {number} is text of {len(source)} tokens, the model reads features",
                fix="give it features",
            )
        windows = self.buffers.cut(source)
        if not windows:  # too short for the model, which says so
            self.scorer.free(self.scorer.encode([replace(source, frames=source.frames[:])]))
        heard = [
            self._levels is None or is_speech(self._levels(self.buffers.part(source, window).frames))
            for window in windows
        ]
        if self.blank is not None:
            sizes = [each.last - each.first + (0 if each.first else len(source.words)) for each in windows]
            return _Recording(source, windows, tuple(map(mul, sizes, heard)))
        carried = carried_fires(self.scorer)
        bare = _Recording(source, windows, ())
        if len(windows) == 1:  # read as a whole
            memory = self._encoded(bare, windows)
            count = int(self.scorer.frames(memory)[0])
            self.scorer.free(memory)
            return replace(bare, counts=(count * heard[0],))
        fires: list[_Fires] = []
        for begin in range(0, len(windows), _TOGETHER):
            own = windows[begin : begin + _TOGETHER]
            memory = self._encoded(bare, own)
            try:
                is_last = begin + len(own) == len(windows)
                fires += self._fires(carried, memory, own, is_last=is_last)
            finally:
                self.scorer.free(memory)
        fires = [
            each if is_heard else replace(each, kept=each.kept[:0])
            for each, is_heard in zip(fires, heard, strict=True)
        ]
        return _Recording(source, windows, tuple(len(each.kept) for each in fires), tuple(fires))

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Spans as in `nartk.protocols.parallel.TimedFrames`; of a Paraformer, the position that fires."""
        found: list[FloatArray] = []
        for handle in memory:
            recording = self._recordings[int(handle)]
            if recording.fires is not None:
                parts = [each.positions[each.kept] for each in recording.fires]
                found += position_spans([np.concatenate(parts)])
                continue
            if self.blank is None:  # read as a whole
                whole = self._encoded(recording, recording.windows)
                found += [each[: recording.counts[0]] for each in self.scorer.spans(whole)]
                self.scorer.free(whole)
                continue
            ends = [
                np.arange(w.last - c, w.last)
                for w, c in zip(recording.windows, recording.counts, strict=True)
            ]
            found += position_spans([np.maximum(np.concatenate(ends), 0)])
        return found

    def _fires(
        self, carried: Carried, memory: IntArray, windows: Sequence[Window], *, is_last: bool
    ) -> list[_Fires]:
        """The fires of encoded buffers, of which words of the chunk are kept, and eos at the end alone."""
        scorer = self.scorer
        ends_here = [is_last and i + 1 == len(windows) for i in range(len(windows))]
        rows = zip(scorer.encoded(memory), scorer.weights(memory), windows, ends_here, strict=True)
        parts = [carried.fires(*row, is_last=last) for *row, last in rows]
        fires = [each for each, _ in parts]
        banned = always_banned(silent_words(self.vocab, None), sum(map(len, fires)))
        best = scorer.read_fires(memory, fires, Want(banned=banned)).best
        labels = np.split(best, np.cumsum([len(each) for each in fires])[:-1])
        return [
            _Fires(own, at, kept_fires(best_words, at, window, self.vocab.eos, is_last=last))
            for best_words, (own, at), window, last in zip(labels, parts, windows, ends_here, strict=True)
        ]

    def _encoded(self, recording: _Recording, windows: Sequence[Window]) -> IntArray:
        source = recording.source
        if len(recording.windows) == 1:
            parts = [replace(source, frames=np.ascontiguousarray(source.frames[:]))]
        else:
            parts = [self.buffers.part(source, each) for each in windows]
        memory: IntArray = self.scorer.encode(parts)
        return memory

    def _readings(
        self, memory: Sequence[int] | IntArray, want: Want, scored: _Ints, take: Callable[[Scores], T]
    ) -> Iterator[T]:
        """Yields what `take` gives for scored frames [n], ascending, a few buffers after the other."""
        begin = done = 0
        for handle in memory:
            recording = self._recordings[int(handle)]
            numbers = iter(range(len(recording.windows)))
            while own := [*islice(numbers, _TOGETHER)]:
                size = sum(recording.counts[i] for i in own)
                end = int(np.searchsorted(scored, begin + size))
                if end > done:
                    yield self._read(recording, own, want, scored[done:end] - begin, slice(done, end), take)
                begin, done = begin + size, end

    def _read(
        self,
        recording: _Recording,
        numbers: Sequence[int],
        want: Want,
        scored: _Ints,
        part: slice,
        take: Callable[[Scores], T],
    ) -> T:
        """The same of some buffers: `scored` of the frames that they keep, which are `part` of all scored."""
        windows = [recording.windows[i] for i in numbers]
        memory = self._encoded(recording, windows)
        try:
            fires = None if recording.fires is None else [recording.fires[i] for i in numbers]
            counts = self.scorer.frames(memory)
            if fires is not None:
                kept = [each.kept for each in fires]
                counts = np.array([len(each.embeddings) for each in fires])
            elif self.blank is None:
                kept = [np.arange(counts[0])]
            else:
                positions = positions_of(self.scorer, memory, windows)
                kept = [
                    np.flatnonzero((own >= window.first) & (own < window.last))
                    for own, window in zip(positions, windows, strict=True)
                ]
            kept = [each[: recording.counts[i]] for i, each in zip(numbers, kept, strict=True)]
            begins = np.cumsum(counts) - counts
            only = np.concatenate([own + begin for own, begin in zip(kept, begins, strict=True)])[scored]
            wanted = _wanted(want, only.astype(np.int32), part)
            if fires is None:
                return take(self.scorer.read_frames(memory, wanted))
            return take(self.scorer.read_fires(memory, [each.embeddings for each in fires], wanted))
        finally:
            self.scorer.free(memory)

    def _logits(self, memory: Sequence[int] | IntArray, scored: _Ints) -> FloatArray:
        """Logits [m,V] of frames, which are read once more."""
        order = np.argsort(scored, kind="stable")
        nothing = np.zeros((0, len(self.vocab)), np.float32)
        found = np.concatenate([nothing, *self._readings(memory, Want(), scored[order], _all_logits)])
        back = np.empty_like(found)
        back[order] = found
        return back


def carried_fires(scorer: FrameScorer) -> Carried:
    """Fires of a recording's buffers; raises StrategyMismatchError where a model has none."""
    if not isinstance(scorer, FireScorer):
        raise StrategyMismatchError(
            "buffers of a model that does not tell where in a recording its words are",
            fix="use a CTC model, or shorter recordings",
        )
    return Carried(scorer)


def kept_fires(labels: IntArray, positions: _Ints, window: Window, eos: int, *, is_last: bool) -> _Ints:
    """Indices of the fires of a buffer that are kept: words of its chunk; of the last also eos at its end.

    A model may take a pause for the end.
    """
    words = labels != eos
    if is_last:
        words[-1:] = True
    return np.flatnonzero((positions >= window.first) & (positions < window.last) & words)


def _all_logits(scores: Scores) -> FloatArray:
    return scores.rows(range(len(scores.best))).copy()


class _Joined(Reading):
    """Implements `Scores` over the readings of buffers, one after the other, at least one."""

    def __init__(
        self, parts: Sequence[Reading], fetch: Callable[[Sequence[int] | IntArray], FloatArray]
    ) -> None:
        names = _arrays(parts[0])
        super().__init__(**{name: np.concatenate([getattr(each, name) for each in parts]) for name in names})
        self._fetch = fetch

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        """Logits [m,V] of m scored frames."""
        return self._fetch(index)


def _arrays(scores: Scores | Reading) -> dict[str, IntArray | FloatArray]:
    """The arrays that were requested, by name."""
    found = {item.name: getattr(scores, item.name, None) for item in fields(Reading)}
    return {name: array for name, array in found.items() if array is not None}


def _copied(scores: Scores) -> Reading:
    """A reading that outlives the scorer's next run."""
    return Reading(**{name: array.copy() for name, array in _arrays(scores).items()})  # type: ignore[arg-type]


def _wanted(want: Want, only: IntArray, part: slice) -> Want:
    """Restricts a `Want` to some of the scored frames: those of `part`, which are `only` in the buffers."""
    banned = want.banned
    if banned is not None:
        offsets = banned.offsets[part.start : part.stop + 1]
        banned = Ragged(offsets - offsets[0], banned.values[offsets[0] : offsets[-1]])
    given = None if want.given is None else want.given[part]
    draw = None if want.draw is None else replace(want.draw, uniforms=want.draw.uniforms[part])
    return replace(want, only=only, banned=banned, given=given, draw=draw)
