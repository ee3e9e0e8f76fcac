"""The buffers that long recordings are cut into, with contexts that overlap.

Those of one length are ESPnet's of OWSM-CTC (`Speech2TextGreedySearch.batch_decode` of its
espnet2/bin/s2t_inference_ctc.py): each is sound of `fill` seconds, silence before and behind the recording
too, whose features are computed by themselves, and a context is an eighth or so, 4 s of 30. As there, words
in front of the frames count as positions where contexts are left out, so that all chunks begin as many
positions earlier, and a prompt is read with the first buffer alone. It differs in this: contexts and chunks
are whole positions of the encoder, whatever the length.

Symbols: F features of a frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nartk.errors import UsageError, named
from nartk.processors.frames import OverlappingFrames
from nartk.protocols.fires import Window
from nartk.protocols.passes import FeatureSource

_CONTEXT = 2 / 15  # of a buffer of one length: 4 s of 30


@dataclass(frozen=True)
class Buffers:
    """Sizes of the buffers that recordings are cut into.

    Attributes:
        chunk: Positions of a buffer that are kept, at least 1.
        left, right: Positions of the context before and behind them.
        subsampling: Frames of the source that a position has.
        whole: Most positions of a recording that is read as a whole.
        covers: True if positions cover all frames of a source; else whole windows alone have one.
    """

    chunk: int
    left: int
    right: int
    subsampling: int
    whole: int = 0
    covers: bool = False

    @classmethod
    def of_time(
        cls,
        *,
        chunk_ms: float,
        left_ms: float,
        look_ahead_ms: float,
        shift_ms: float,
        subsampling: int,
        is_whole: bool = True,
        covers: bool = False,
    ) -> Buffers:
        """Buffers of chunks and contexts in ms, which the model's positions divide.

        Args:
            shift_ms: Time from one frame of the source to the next.
            is_whole: True if a recording that fits one buffer is read as a whole.
            covers: Same as in `Buffers`.

        Raises:
            UsageError: One of them is no whole number of positions, or there is no chunk.
        """
        position = shift_ms * subsampling
        counts = {}
        for name, value in (("chunk_ms", chunk_ms), ("left_ms", left_ms), ("look_ahead_ms", look_ahead_ms)):
            if not math.isfinite(value):
                raise UsageError(f"{named(name)} is {value:g}", fix=f"give a number, such as {position:g}")
            counts[name] = round(value / position)
            least = int(name == "chunk_ms")
            if abs(counts[name] * position - value) > 1e-6 or counts[name] < least:
                near = max(least, counts[name]) * position
                raise UsageError(
                    f"{named(name)} is {value:g}, but the model's positions are {position:g} ms",
                    fix=f"give {near:g}",
                )
        chunk, left, right = counts.values()
        return cls(chunk, left, right, subsampling, chunk + left + right if is_whole else 0, covers)

    def require_fit(self, scorer: Any) -> None:
        """Raises UsageError where a buffer is longer than what a model reads at once."""
        size = self._frames(self.chunk + self.left + self.right)
        if size > scorer.limits.source:
            raise UsageError(
                f"a buffer of {size} frames, the model reads {scorer.limits.source} at once",
                fix="give shorter chunks or contexts",
            )

    def positions(self, frames: int) -> int:
        """Positions of a source of so many frames: convolutions without padding leave the rest out."""
        if self.covers:
            return -(-frames // self.subsampling)
        return max(0, frames - self.subsampling + 1) // self.subsampling

    def _frames(self, positions: int) -> int:
        """Frames that give so many positions, and no more."""
        return positions * self.subsampling if self.covers else (positions + 1) * self.subsampling - 1

    def frames_of(self, window: Window) -> slice:
        """The frames of a source that give a window's positions."""
        begin = window.begin * self.subsampling
        return slice(begin, begin + self._frames(window.end - window.begin))

    def window(self, number: int, count: int) -> Window:
        """The buffer of that number of a recording of so many positions."""
        first = number * self.chunk
        last = min(first + self.chunk, count)
        return Window(max(0, first - self.left), min(last + self.right, count), first, last)

    def windows(self, count: int) -> Iterator[Window]:
        """The buffers of a recording of so many positions, whose chunks are all of it."""
        if 0 < count <= self.whole:
            yield Window(0, count, 0, count)
            return
        for number in range(-(-count // self.chunk)):
            yield self.window(number, count)

    def cut(self, source: FeatureSource) -> tuple[Window, ...]:
        """The buffers of a recording."""
        return tuple(self.windows(self.positions(len(source))))

    def part(self, source: FeatureSource, window: Window) -> FeatureSource:
        """Returns what a model reads of a recording in a buffer."""
        return replace(source, frames=np.ascontiguousarray(source.frames[self.frames_of(window)]))


@dataclass(frozen=True)
class FixedBuffers(Buffers):
    """Buffers of one length, each of which has its own features.

    Attributes:
        frames: Frames of a buffer.
    """

    frames: int = 0

    @classmethod
    def of_length(cls, frames: int, subsampling: int) -> FixedBuffers:
        """Buffers of so many frames, one of them around the end; raises UsageError if they are too short."""
        size = (frames - 1) // subsampling  # positions of as much sound
        context = round(size * _CONTEXT)
        if context < 1:
            raise UsageError(f"buffers of {frames} frames", fix="use a model that reads longer sound")
        return cls(size - 2 * context, context, context, subsampling, size, frames=frames)

    @property
    def spacing(self) -> dict[str, int]:
        """Frames before a buffer's own part, and of that part, as `AudioInput.read_buffers` takes them."""
        return {"before": self.left * self.subsampling, "step": self.chunk * self.subsampling}

    def require_fit(self, scorer: Any) -> None:
        if self.frames > scorer.limits.source:
            raise UsageError(
                f"a buffer of {self.frames} frames, the model reads {scorer.limits.source} at once",
                fix="give the model a shorter `fill`",
            )

    def cut(self, source: FeatureSource) -> tuple[Window, ...]:
        frames: Any = source.frames
        if not isinstance(frames, OverlappingFrames):
            return super().cut(source)
        size, words = self.positions(self.frames), len(source.words)
        first = range(0, frames.buffers * self.chunk, self.chunk)
        return tuple(
            Window(at - self.left, at - self.left + size, at - words, at - words + self.chunk) for at in first
        )

    def part(self, source: FeatureSource, window: Window) -> FeatureSource:
        frames: Any = source.frames
        if not isinstance(frames, OverlappingFrames):
            return super().part(source, window)
        number = (window.begin + self.left) // self.chunk
        return replace(source, frames=frames.buffer(number), prompt=() if number else source.prompt)
