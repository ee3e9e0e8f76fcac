"""Lends the scorers in torch to what asks for arrays: the protocols of `nartk.parallel` on any device.

Symbols: B sources, R rows, T places, N places of all rows, n of them scored, L vertices, V words, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nartk.contexts import Handles, check_sources
from nartk.models.blockwise import BlockwiseScorer
from nartk.models.ctc_scorer import CtcScorer
from nartk.models.dag_scorer import DagScorer
from nartk.models.nar_scorer import NarScorer, NarState
from nartk.models.nat_scorer import NatScorer
from nartk.models.reference import read_tensors
from nartk.parallel import Canvas, Graphs
from nartk.passes import FloatArray, IntArray, Limits, Scores, Source, Want, texts_of
from nartk.reading import Reading, check_want
from nartk.scorer import Source as PaddedSource


class _Read(Reading):
    """Implements `nartk.passes.Scores`; `logits` [n,V] stay on the device until they are asked for."""

    def __init__(self, reading: Reading, logits: Tensor) -> None:
        super().__init__(**vars(reading))
        self._logits = logits

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        return self._logits[torch.tensor(index, dtype=torch.int64, device=self._logits.device)].cpu().numpy()


class _Arrays:
    """Base of what lends a scorer. Sources of one bucket are computed together, in exact mode's shapes."""

    def __init__(self, scorer: Any) -> None:
        self.scorer: Any = scorer
        config = scorer.config
        self.vocab = scorer.vocab
        self.numerics = scorer.numerics
        self.limits = Limits(config.max_source_len, config.target_positions, len(scorer.vocab))
        # Of each encoded source a state, the row of it, and its tokens.
        self._memories: Handles[tuple[NarState, int, int]] = Handles("memory")

    def encode(self, sources: Sequence[Source]) -> IntArray:
        texts = texts_of(sources)
        check_sources(texts, longest=self.limits.source, words=self.scorer.config.src_vocab)
        found: list[Any] = [None] * len(texts)
        for rows in self._buckets([len(source) for source in texts]):
            some = [texts[row] for row in rows]
            lengths = torch.tensor([len(source) for source in some])
            tokens = torch.full((len(some), int(lengths.max())), self.vocab.pad)
            for padded, source in zip(tokens, some, strict=True):
                padded[: len(source)] = torch.tensor(source)
            state = self.scorer.read(
                PaddedSource(tokens.to(self.scorer.device), lengths.to(self.scorer.device))
            )
            for at, row in enumerate(rows):
                found[row] = (state, at, len(texts[row]))
        return self._memories.add(found)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._memories.remove(memory)

    def _buckets(self, lengths: Sequence[int]) -> list[list[int]]:
        """The indices of source lengths [B] that may be computed together."""
        groups: dict[Any, list[int]] = {}
        for row, length in enumerate(lengths):
            groups.setdefault(self.scorer.bucket(length, 0), []).append(row)
        return list(groups.values())

    def _held(self, memory: Sequence[int] | IntArray) -> list[tuple[NarState, int, int]]:
        return [self._memories[int(handle)] for handle in memory]

    def _state(self, held: Sequence[tuple[NarState, int, int]]) -> NarState:
        """The state of rows of any calls of `encode`."""
        states = list({id(state): state for state, _, _ in held}.values())
        begins = np.cumsum([0, *(len(state.lengths) for state in states)])
        first = {id(state): int(begin) for state, begin in zip(states, begins, strict=False)}
        rows = torch.tensor([first[id(state)] + row for state, row, _ in held], device=self.scorer.device)
        return self.scorer.select(reduce(self.scorer.join, states), rows)

    def _inputs(self, canvas: Tensor, lengths: Tensor, state: NarState) -> Tensor:
        """The decoder's inputs [R,T,D] of a canvas [R,T] of which lengths [R] count."""
        raise NotImplementedError

    @torch.inference_mode()
    def _features(self, memory: Sequence[int] | IntArray, lengths: IntArray, words: IntArray) -> Tensor:
        """What the output layer reads at the places of canvases, [N,D]."""
        held, device = self._held(memory), self.scorer.device
        parts = np.split(words, np.cumsum(lengths)[:-1])
        found: list[Any] = [None] * len(held)
        for rows in self._buckets([length for _, _, length in held]):
            counts = torch.tensor(lengths[rows], dtype=torch.int64)
            canvas = torch.full((len(rows), int(counts.max())), self.vocab.pad)
            for padded, row in zip(canvas, rows, strict=True):
                padded[: len(parts[row])] = torch.tensor(parts[row])
            state = self._state([held[row] for row in rows])
            counts = counts.to(device)
            hidden = self.scorer.decode(self._inputs(canvas.to(device), counts, state), counts, state)
            for at, row in enumerate(rows):
                found[row] = hidden[at, : lengths[row]]
        return torch.cat(found)

    @torch.inference_mode()
    def _read(self, features: Tensor, want: Want) -> Scores:
        """Reads what is wanted of features [N,D]."""
        check_want(want, len(features), self.limits.words)
        if want.only is not None:
            features = features[torch.tensor(want.only, dtype=torch.int64, device=features.device)]
        logits = self.scorer.logits(features).float()
        return _Read(read_tensors(logits, want, features), logits)


class FrameArrays(_Arrays):
    """Implements `nartk.parallel.FrameScorer` with a `CtcScorer`."""

    scorer: CtcScorer

    def __init__(self, scorer: CtcScorer) -> None:
        super().__init__(scorer)
        self.blank = scorer.blank

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        lengths = np.array([length for _, _, length in self._held(memory)], np.int32)
        return lengths * np.int32(self.scorer.model.config.upsample)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        counts = self.frames(memory)
        return self._read(self._features(memory, counts, np.zeros(counts.sum(), np.int32)), want)

    def _inputs(self, canvas: Tensor, lengths: Tensor, state: NarState) -> Tensor:
        model = self.scorer.model
        return model.place_vectors(model.frames(state.tokens, state.memory)[:, : canvas.shape[1]])


class _Filling(_Arrays):
    def __init__(self, scorer: Any) -> None:
        super().__init__(scorer)
        self.mask: int = scorer.mask

    def fill(self, canvas: Canvas, want: Want) -> Scores:
        return self._read(self._features(canvas.memory, canvas.lengths, canvas.words), want)


class BlockArrays(_Filling):
    """Implements `nartk.parallel.BlockScorer` with a `BlockwiseScorer`."""

    scorer: BlockwiseScorer

    @property
    def block(self) -> int:
        return self.scorer.block

    def _inputs(self, canvas: Tensor, lengths: Tensor, state: NarState) -> Tensor:
        return self.scorer.model.place_words(canvas)


class CanvasArrays(_Filling):
    """Implements `nartk.parallel.CanvasScorer` with a `NatScorer`."""

    scorer: NatScorer

    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        held = self._held(memory)
        found = np.zeros((len(held), self.limits.target + 1), np.float32)
        for rows in self._buckets([length for _, _, length in held]):
            found[rows] = self.scorer.predict_lengths(self._state([held[row] for row in rows])).cpu().numpy()
        return found

    def _inputs(self, canvas: Tensor, lengths: Tensor, state: NarState) -> Tensor:
        return self.scorer.model.inputs(canvas, lengths, state.tokens, state.lengths)


class GraphArrays(_Arrays):
    """Implements `nartk.parallel.GraphScorer` with a `DagScorer`."""

    scorer: DagScorer

    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        held = self._held(memory)
        found: list[Any] = [None] * len(held)
        for rows in self._buckets([length for _, _, length in held]):
            graph = self.scorer.graph(self._state([held[row] for row in rows]))
            for at, row in enumerate(rows):
                size = int(graph.lengths[at])
                links = graph.links[at, :size, :size].cpu().numpy()
                found[row] = size, graph.hidden[at, :size].float().cpu().numpy(), links
        sizes, features, each = zip(*found, strict=True)
        return Graphs(np.array(sizes, np.int32), np.concatenate(features), tuple(each))

    def words(self, features: FloatArray, want: Want) -> Scores:
        return self._read(torch.from_numpy(features).to(self.scorer.device, self.scorer.dtype), want)


_LENT: dict[type[NarScorer], type[_Arrays]] = {
    CtcScorer: FrameArrays,
    NatScorer: CanvasArrays,
    BlockwiseScorer: BlockArrays,
    DagScorer: GraphArrays,
}


def arrays_of(scorer: Any) -> Any:
    """What lends a scorer in the protocol of its model."""
    return _LENT[type(scorer)](scorer)
