"""Scores non-autoregressive models with the engine: implements the protocols of `nartk.protocols.parallel`.

Symbols: B sources, R rows, N positions, L vertices of a graph, C length classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nartk.engine.base import OnEngine
from nartk.engine.weights import Arrays, Weights
from nartk.errors import PassError
from nartk.protocols.parallel import Canvas, Graphs, spread_lengths
from nartk.protocols.passes import FloatArray, IntArray, Scores, Want
from nartk.vocab import MASK

COPIED = -1  # to the engine, a position at which it copies from the source


class _Engine(OnEngine):
    """A non-autoregressive Transformer on the engine; its length predictor and links are always fp32."""

    def _beside(self, config: Any, arrays: Arrays) -> dict[str, Any]:
        return _PLAIN | self._parallel(config, Weights(arrays, "fp32"))

    def _parallel(self, config: Any, weights: Weights) -> dict[str, Any]:
        """What of it differs from `_PLAIN`."""
        return {}

    @property
    def memories_in_use(self) -> int:
        """Encoded sources that were not freed."""
        return self._engine.memories_in_use

    def _read(self, function: Callable[..., Any], *arguments: Any, want: Want) -> Scores:
        """Calls the engine for what is wanted."""
        self._require_running()
        return function(*arguments, want)


_PLAIN = {"copied": "none", "frames": 1, "temperature": 1.0}  # every position holds a word


class CtcEngine(_Engine):
    """Implements `nartk.protocols.parallel.FrameScorer` for a `nartk.models.ctc.CtcNat`."""

    blank: int | None = MASK

    def _parallel(self, config: Any, weights: Weights) -> dict[str, Any]:
        self._upsample = np.int32(config.upsample)
        return {"copied": config.decoder_input, "frames": config.upsample}

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._engine.source_lengths(memory) * self._upsample

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        counts = self.frames(memory)
        words = np.full(counts.sum(), COPIED, np.int32)
        return self._read(self._engine.fill, memory, counts, words, want=want)


class _Filling(_Engine):
    """Fills canvases, at whose unfilled positions `_unfilled` stands."""

    mask = MASK
    _unfilled = MASK

    def fill(self, canvas: Canvas, want: Want) -> Scores:
        lowest = canvas.words.min(initial=0)
        if lowest < 0:
            raise PassError(f"`words` holds {lowest}, not between 0 and {self.limits.words - 1}")
        words = np.where(canvas.words == self.mask, np.int32(self._unfilled), canvas.words)
        return self._read(self._engine.fill, canvas.memory, canvas.lengths, words, want=want)


class BlockwiseEngine(_Filling):
    """Implements `nartk.protocols.parallel.BlockScorer` for a `nartk.models.blockwise.Blockwise`."""

    def _parallel(self, config: Any, weights: Weights) -> dict[str, Any]:
        self.block = int(config.block)
        return {}


class NatEngine(_Filling):
    """Implements `nartk.protocols.parallel.CanvasScorer` for a `nartk.models.nat.Nat`."""

    def _parallel(self, config: Any, weights: Weights) -> dict[str, Any]:
        if config.decoder_input != "mask":
            self._unfilled = COPIED
        copied = {"mask": "none", "uniform-copy": "uniform", "soft-copy": "soft"}[config.decoder_input]
        return {
            "copied": copied,
            "temperature": config.copy_temperature,
            "lengths": weights.linear("lengths"),
        }

    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        logits = self._engine.length_logits(memory)
        return spread_lengths(logits, self._engine.source_lengths(memory), self.limits.target)


class DagEngine(_Engine):
    """Implements `nartk.protocols.parallel.GraphScorer` for a `nartk.models.da_transformer.DaTransformer`."""

    def _parallel(self, config: Any, weights: Weights) -> dict[str, Any]:
        self._upsampling = config.upsampling
        self._scale = config.scales[1]
        self._unfilled = MASK if config.decoder_input == "mask" else COPIED
        parts = config.link_features.split(":")
        parallel = {
            "copied": "none" if config.decoder_input == "mask" else "uniform",
            "by_features": "feature" in parts,
            "longest_link": config.max_transition_length,
            "positions": weights.array("links.positions.weight") if "position" in parts else None,
            "query": weights.linear("links.query", scale=(config.d_model // config.link_heads) ** -0.5),
            "key": weights.linear("links.key"),
            "gate": weights.linear("links.gate"),
        }
        if config.upsampling == "predict":
            parallel["lengths"] = weights.linear("lengths")
        return parallel

    def sizes(self, memory: Sequence[int] | IntArray) -> IntArray:
        """Vertices [B] int32 of the graphs of encoded sources."""
        lengths = self._engine.source_lengths(memory)
        if self._upsampling == "fixed":
            lengths = np.ones_like(lengths)
        elif self._upsampling == "predict":
            logits = self._engine.length_logits(memory)
            lengths = np.maximum(lengths + logits.argmax(1) - logits.shape[1] // 2, 1)
        vertices = (lengths.astype(np.float32) * np.float32(self._scale)).astype(np.int32)
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

    def words(self, features: FloatArray, want: Want) -> Scores:
        return self._read(self._engine.words, features, want=want)
