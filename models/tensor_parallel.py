"""Lends the engine's non-autoregressive models to what still asks for tensors: the protocols of nartk.scorer.

Symbols: B rows, T places or frames, N places of all rows, L vertices, V words, D features.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nartk.models.transformer import TransformerConfig
from nartk.parallel import Canvas
from nartk.passes import IntArray, Want
from nartk.scorer import Frames, Graph, Source


class Memory:
    """An encoded source, freed when the last row that reads it goes."""

    def __init__(self, scorer: Any, handle: int) -> None:
        self.scorer, self.handle = scorer, handle

    def __del__(self) -> None:
        self.scorer.free([self.handle])


@dataclass(frozen=True)
class EncodedRows:
    """The encoded sources of B rows."""

    memories: tuple[Memory, ...]

    @property
    def handles(self) -> IntArray:
        """[B] int32."""
        return np.array([memory.handle for memory in self.memories], np.int32)


class _Tensors:
    """Base of what lends a scorer of `nartk.engine.parallel_scorer`."""

    exact = True  # there is no other mode
    device = torch.device("cpu")
    dtype = torch.float32  # of what it gives

    def __init__(self, scorer: Any, config: TransformerConfig) -> None:
        self.scorer = scorer.with_logits()
        self.config = config
        self.vocab = scorer.vocab

    @property
    def numerics(self) -> str:
        """What a signature says of how it computes."""
        return f"engine:{self.scorer.isa}"

    def mode(self, *, exact: bool) -> Any:
        return self

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        return None

    def read(self, source: Source) -> EncodedRows:
        """Encodes the source."""
        rows = zip(source.tokens.tolist(), source.lengths.tolist(), strict=True)
        handles = self.scorer.encode([tokens[:length] for tokens, length in rows])
        return EncodedRows(tuple(Memory(self.scorer, handle) for handle in handles.tolist()))


class TensorFrames(_Tensors):
    """Implements `nartk.scorer.FrameScorer`."""

    def __init__(self, scorer: Any, config: TransformerConfig) -> None:
        super().__init__(scorer, config)
        self.blank = scorer.blank

    def emit(self, source: Source) -> Frames:
        rows = self.read(source)
        lengths = torch.from_numpy(self.scorer.frames(rows.handles)).long()
        logits = torch.from_numpy(self.scorer.read_frames(rows.handles, Want()).logits)
        return Frames(_padded(logits.log_softmax(-1), lengths), lengths)


class _Filling(_Tensors):
    def __init__(self, scorer: Any, config: TransformerConfig) -> None:
        super().__init__(scorer, config)
        self.mask = scorer.mask

    def select(self, state: EncodedRows, rows: Tensor) -> EncodedRows:
        return EncodedRows(tuple(state.memories[row] for row in rows.tolist()))

    def join(self, first: EncodedRows, second: EncodedRows) -> EncodedRows:
        return EncodedRows(first.memories + second.memories)

    def fill(
        self, canvas: Tensor, lengths: Tensor, state: EncodedRows, places: Tensor | None = None
    ) -> Tensor:
        kept = torch.arange(canvas.shape[1]) < lengths[:, None]
        only = None if places is None else places[kept].nonzero()[:, 0].int().numpy()
        words = canvas[kept].int().numpy()
        found = self.scorer.fill(Canvas(state.handles, lengths.int().numpy(), words), Want(only=only))
        logits = torch.from_numpy(found.logits)
        return _padded(logits, lengths, canvas.shape[1]) if places is None else logits


class TensorBlocks(_Filling):
    """Implements `nartk.scorer.BlockScorer`."""

    @property
    def block(self) -> int:
        return int(self.scorer.block)


class TensorCanvases(_Filling):
    """Implements `nartk.scorer.CanvasScorer`."""

    def predict_lengths(self, state: EncodedRows) -> Tensor:
        return torch.from_numpy(self.scorer.predict_lengths(state.handles))


class TensorGraphs(_Tensors):
    """Implements `nartk.scorer.GraphScorer`."""

    def emit(self, source: Source) -> Graph:
        rows = self.read(source)
        graphs = self.scorer.graphs(rows.handles)
        sizes = torch.from_numpy(graphs.sizes).long()
        width = int(sizes.max())
        links = torch.full((len(sizes), width, width), float("-inf"))
        for padded, own in zip(links, graphs.links, strict=True):
            padded[: len(own), : len(own)] = torch.from_numpy(own)
        return Graph(_padded(torch.from_numpy(graphs.features), sizes), links, sizes)

    def words(self, hidden: Tensor) -> Tensor:
        return torch.from_numpy(self.scorer.words(hidden.numpy(), Want()).logits)


def _padded(values: Tensor, lengths: Tensor, width: int | None = None) -> Tensor:
    """Values [N,...] of rows of lengths [B], one behind the other -> [B,width,...], 0 behind each row."""
    width = int(lengths.max()) if width is None else width
    found = values.new_zeros(len(lengths), width, *values.shape[1:])
    found[torch.arange(width) < lengths[:, None]] = values
    return found
