"""Lends the engine to the strategies that still ask for tensors: `nartk.scorer.TreeScorer` over its passes.

Symbols: B rows, K tokens of a row in a pass, N tokens of a pass, V words.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nartk.engine.scorer import EngineScorer
from nartk.models.transformer import TransformerConfig
from nartk.passes import ROOT, IntArray, Pass
from nartk.scorer import Source, Tree


class _Memory:
    """An encoded source, freed when the last row that reads it goes."""

    def __init__(self, scorer: EngineScorer, handle: int) -> None:
        self.scorer, self.handle = scorer, handle

    def __del__(self) -> None:
        self.scorer.free([self.handle])


class _Row:
    """A context, closed when the last state that holds it goes."""

    def __init__(self, scorer: EngineScorer, context: int, memory: _Memory) -> None:
        self.scorer, self.context, self.memory = scorer, context, memory

    def __del__(self) -> None:
        self.scorer.close([self.context])


@dataclass(frozen=True)
class EngineState:
    """B rows.

    Attributes:
        lengths: [B] int64, target tokens of each.
        scores: Of a tree's pass, which waits for `keep`; None unless there is one.
        begins: Where in it each row begins.
    """

    rows: tuple[_Row, ...]
    lengths: Tensor
    scores: Any = None
    begins: tuple[int, ...] = ()


class TensorEngine:
    """Implements nartk.scorer.TreeScorer with an EngineScorer, and is one for what asks for passes."""

    exact = True  # there is no other mode
    device = torch.device("cpu")
    dtype = torch.float32  # of what it gives

    def __init__(self, passes: EngineScorer, config: TransformerConfig) -> None:
        self.passes = passes
        self.config = config
        self.vocab = passes.vocab
        self.source_to_target = torch.from_numpy(passes.source_to_target).long()

    @property
    def numerics(self) -> str:
        """What a signature says of how it computes."""
        return f"engine:{self.passes.isa}"

    def mode(self, *, exact: bool) -> TensorEngine:
        return self

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        return None

    def encode(self, source: Source, max_len: int) -> EngineState:
        sizes = source.lengths.tolist()
        tokens = [row[:size] for row, size in zip(source.tokens.tolist(), sizes, strict=True)]
        memories = [_Memory(self.passes, handle) for handle in self.passes.encode(tokens).tolist()]
        contexts = self.passes.open(len(sizes)).tolist()
        rows = (_Row(self.passes, *each) for each in zip(contexts, memories, strict=True))
        return EngineState(tuple(rows), torch.zeros(len(sizes), dtype=torch.int64))

    def verify(
        self, tokens: Tensor, state: EngineState, counts: Sequence[int] | None = None
    ) -> tuple[Tensor, EngineState]:
        batch, width = tokens.shape
        sizes = [width] * batch if counts is None else counts
        depths = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        parents = np.where(depths > 0, np.arange(len(depths), dtype=np.int32) - 1, np.int32(ROOT))
        scores = self._run(tokens, state, sizes, depths, parents)
        self.passes.commit(scores, np.arange(len(depths), dtype=np.int32))
        state = replace(state, lengths=state.lengths + torch.tensor(sizes))
        logits = torch.from_numpy(scores.logits)
        return logits.view(batch, width, -1) if counts is None else logits, state

    def verify_tree(
        self, tokens: Tensor, state: EngineState, counts: Sequence[int], tree: Tree
    ) -> tuple[Tensor, EngineState]:
        begins = np.cumsum([0, *counts])[:-1].tolist()
        depths, ancestors = tree.depths.numpy(), tree.ancestors.numpy()
        parents = []
        for row, (size, begin) in enumerate(zip(counts, begins, strict=True)):
            before = ancestors[row, :size, :size] & (depths[row, :size] == depths[row, :size, None] - 1)
            if size:
                parents.append(np.where(before.any(1), before.argmax(1) + begin, ROOT))
        flat = np.concatenate([depths[row, :size] for row, size in enumerate(counts)])
        scores = self._run(
            tokens, state, counts, flat.astype(np.int32), np.concatenate(parents).astype(np.int32)
        )
        return torch.from_numpy(scores.logits), replace(state, scores=scores, begins=tuple(begins))

    def keep(self, state: EngineState, way: Tensor, lengths: Tensor) -> EngineState:
        kept: list[int] = []
        before, after = state.lengths.tolist(), lengths.tolist()
        for begin, path, old, new in zip(state.begins, way.tolist(), before, after, strict=True):
            kept += [begin + token for token in path[: new - old] if token >= 0]
        self.passes.commit(state.scores, kept)
        return EngineState(state.rows, lengths)

    def step(self, tokens: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        logits, state = self.verify(tokens[:, None], state)
        return logits[:, 0], state

    def truncate(self, state: EngineState, lengths: Tensor) -> EngineState:
        self.passes.truncate([row.context for row in state.rows], lengths.tolist())
        return replace(state, lengths=lengths)

    def select(self, state: EngineState, rows: Tensor) -> EngineState:
        chosen = [state.rows[i] for i in rows.tolist()]
        if state.scores is not None:  # its contexts wait, and cannot be copied
            begins = tuple(state.begins[i] for i in rows.tolist())
            return EngineState(tuple(chosen), state.lengths[rows], state.scores, begins)
        copies = self.passes.fork([row.context for row in chosen]).tolist()
        made = (_Row(self.passes, copy, row.memory) for copy, row in zip(copies, chosen, strict=True))
        return EngineState(tuple(made), state.lengths[rows])

    def join(self, first: EngineState, second: EngineState) -> EngineState:
        return EngineState(first.rows + second.rows, torch.cat([first.lengths, second.lengths]))

    def _run(
        self, tokens: Tensor, state: EngineState, counts: Sequence[int], depths: IntArray, parents: IntArray
    ) -> Any:
        """The scores, with logits [N,V], of the first tokens [B,K] of each row."""
        words = [word for row, size in zip(tokens.tolist(), counts, strict=True) for word in row[:size]]
        repeats = np.asarray(counts)
        positions = np.repeat(state.lengths.numpy(), repeats).astype(np.int32) + depths
        memories = np.repeat(np.array([row.memory.handle for row in state.rows], np.int32), repeats)
        contexts = np.repeat(np.array([row.context for row in state.rows], np.int32), repeats)
        work = Pass(np.array(words, np.int32), positions, memories, contexts, parents)
        return self.passes.run_with_logits(work)
