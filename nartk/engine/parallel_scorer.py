"""Scores non-autoregressive models with the engine: mixins of `OnEngine` for `nartk.protocols.parallel`.

Symbols: B sources, S positions of the encoder, N positions of all rows, L vertices of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nartk.engine.base import COPIED, OnEngine
from nartk.errors import PassError
from nartk.protocols.parallel import Canvas, Graphs, spread_lengths
from nartk.protocols.passes import FloatArray, IntArray, Scores, Source, Want
from nartk.protocols.reading import NothingRead
from nartk.protocols.timestamps import fire_spans, frame_spans
from nartk.vocab import MASK


class HeadFramesOnEngine(OnEngine):
    """Implements `FrameScorer` by the CTC head of an encoder."""

    blank: int | None = MASK

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._front: dict[int, int] = {}  # words in front of the frames of each encoded source

    def replica(self, stopped: Callable[[], bool]) -> Any:
        other = super().replica(stopped)
        other._front = {}
        return other

    def encode(self, sources: Sequence[Source]) -> IntArray:
        memory = super().encode(sources)
        rows: Any = zip(memory.tolist(), sources, strict=True)
        self._front |= {handle: len(source.words) for handle, source in rows}
        return memory

    def free(self, memory: Sequence[int] | IntArray) -> None:
        super().free(memory)
        for handle in memory:
            del self._front[int(handle)]

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._engine.source_lengths(memory)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        return self._read(self._engine.read_encoded, memory, want=want)

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return frame_spans(self.frames(memory), [self._front[int(handle)] for handle in memory])


class DecoderFramesOnEngine(OnEngine):
    """Implements `FrameScorer` by a decoder that gives each position of the encoder several frames."""

    blank: int | None = MASK

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._engine.source_lengths(memory) * np.int32(self.config.upsample)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        counts = self.frames(memory)
        words = np.full(counts.sum(), COPIED, np.int32)
        return self._read(self._engine.fill, memory, counts, words, want=want)


class EncodedOnEngine(OnEngine):
    """Implements `EncodedScorer`."""

    def encoded(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return [self._engine.output(int(handle)) for handle in memory]


class FiresOnEngine(EncodedOnEngine, DecoderFramesOnEngine):
    """Implements `FireScorer`."""

    blank = None

    @property
    def tail(self) -> float:
        threshold: float = self.config.tail_threshold
        return threshold

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._engine.fires(memory)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        fired = np.asarray(memory, np.int32)[self.frames(memory) > 0]  # the others have no canvas
        return super().read_frames(fired, want) if len(fired) else NothingRead(self.limits.words, want)

    def read_fires(self, memory: Sequence[int] | IntArray, fires: Sequence[FloatArray], want: Want) -> Scores:
        counts = np.array([len(each) for each in fires], np.int32)
        words = np.full(counts.sum(), COPIED, np.int32)
        fill = partial(self._engine.fill, fired=np.concatenate([*fires]))
        return self._read(fill, memory, counts, words, want=want)

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return fire_spans(self.weights(memory), self.frames(memory))

    def weights(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The weights [S] of each source's positions, whose running sum fires at whole numbers."""
        return [self._engine.fire_weights(int(handle)) for handle in memory]


class FillsOnEngine(OnEngine):
    """Implements `nartk.protocols.parallel.Filler`."""

    mask = MASK

    def fill(self, canvas: Canvas, want: Want) -> Scores:
        lowest = canvas.words.min(initial=0)
        if lowest < 0:
            raise PassError(f"`words` holds {lowest}, not between 0 and {self.limits.words - 1}")
        words = np.where(canvas.words == self.mask, np.int32(self._unfilled), canvas.words)
        return self._read(self._engine.fill, canvas.memory, canvas.lengths, words, want=want)


class BlocksOnEngine(FillsOnEngine):
    """Implements `BlockScorer`."""

    @property
    def block(self) -> int:
        block: int = self.config.block
        return block


class CanvasesOnEngine(FillsOnEngine):
    """Implements `CanvasScorer`."""

    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        logits = self._engine.length_logits(memory)
        return spread_lengths(logits, self._engine.source_lengths(memory), self.limits.target)


class GraphOnEngine(OnEngine):
    """Implements `GraphScorer`."""

    def sizes(self, memory: Sequence[int] | IntArray) -> IntArray:
        """Vertices [B] int32 of the graphs of encoded sources."""
        lengths, upsampling = self._engine.source_lengths(memory), self.config.upsampling
        if upsampling == "fixed":
            lengths = np.ones_like(lengths)
        elif upsampling == "predict":
            logits = self._engine.length_logits(memory)
            lengths = np.maximum(lengths + logits.argmax(1) - logits.shape[1] // 2, 1)
        vertices = (lengths.astype(np.float32) * np.float32(self.config.scales[1])).astype(np.int32)
        return vertices.clip(2, self.limits.target)

    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        sizes = self.sizes(memory)
        words = np.full(sizes.sum(), self._unfilled, np.int32)
        words[np.cumsum(sizes) - 1] = self.vocab.eos
        features, links = self._engine.graph(memory, sizes, words)
        squares = sizes.astype(np.int64) ** 2
        each = np.split(links, np.cumsum(squares)[:-1])
        return Graphs(
            sizes, features, tuple(x.reshape(size, size) for x, size in zip(each, sizes, strict=True))
        )

    def words_at(self, graphs: Graphs, vertices: IntArray, want: Want) -> Scores:
        return self.words(graphs.features_of(vertices), want)


class SpeechOnEngine(OnEngine):
    """Implements `MelScorer`."""

    def spectrograms(self, features: Sequence[FloatArray]) -> list[FloatArray]:
        if not features:
            return []
        found = self._engine.speak(np.concatenate(features), [len(each) for each in features])
        return np.split(found["mel"], np.cumsum(found["frames"])[:-1])
