"""Passes of an autoregressive decoder with one transfer to the device, one back, and one wait.

The reference scorer, of which `DevicePasses` is one, sends lists of cells as they come and reads each result
by itself. Here the host packs what a pass says into one block of numbers; a *step* computes over buffers that
stay where they are, and has no shape and no number but those of its `Shape`; and one block of results comes
back. So a step can be captured in a CUDA graph once, and replayed for every pass of the shape. A CPU computes
the same steps, one operation after the other.

Symbols: as in `nartk.protocols.blocks`, and V words.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nartk.models.reference import (
    AttendedCells,
    PassesOnTorch,
    read_tensors,
    results_of,
    wrong_logits,
    wrong_rows,
)
from nartk.protocols.blocks import Columns, Shape, numbers_of, pack, parts_of, rounded, shape_of, unpack
from nartk.protocols.contexts import PendingPass, runs
from nartk.protocols.passes import FloatArray, IntArray, Pass, Scores, Want
from nartk.protocols.reading import PassScores, Reading, check_want
from nartk.vocab import Vocab

_NUMBERS = 65_536  # of a block, at least
_GRAPHS = 64  # that are held at most: a run has a few sizes of passes, each with a few wants


class Computed(NamedTuple):
    """Results of a step.

    Attributes:
        results: [. * n] int32, rows of n: 1 where a logit is NaN or infinity; best words; bits of their fp32
            log-probabilities; and, where they are read, K rows of words and K of bits of theirs, bits of
            margins, and of log-probabilities of given words.
        logits: [n,V] fp32.
        features: [n,d_model].
    """

    results: Tensor
    logits: Tensor
    features: Tensor


class _Held:
    """Logits of a pass that waits, which the next replay of a graph would overwrite."""

    def __init__(self, logits: Tensor, waiting: PendingPass) -> None:
        self.logits, self.waiting = logits, waiting

    def fetch(self, index: Sequence[int] | IntArray) -> FloatArray:
        which = torch.tensor(index, dtype=torch.int64, device=self.logits.device)
        return self.logits[which].cpu().numpy()


class DevicePasses(PassesOnTorch):
    """Implements `nartk.protocols.passes.PassScorer` by steps; recurrent decoders run as in the reference.

    Attributes:
        cuda_graphs: True: steps are captured in CUDA graphs, where there is CUDA.
    """

    def __init__(self, model: nn.Module, vocab: Vocab, **settings: Any) -> None:
        super().__init__(model, vocab, **settings)
        self.cuda_graphs = self.device.type == "cuda"
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Holds no graphs, and no blocks."""
        self._captured: dict[Shape, tuple[Any, Computed]] = {}
        self._met: set[Shape] = set()  # shapes that were computed without a graph
        self._buffers: list[int] = []  # addresses at which graphs compute
        self._pool: Any = None
        self._last: Callable[[], _Held | None] = lambda: None
        self._sent = self._block = self._fetched = torch.zeros(0, dtype=torch.int32)
        self._spare = -1

    def view(self, layers: int | None = None, skip: Sequence[str] = ()) -> DevicePasses:
        other = super().view(layers, skip)
        assert isinstance(other, DevicePasses)
        other._forget_steps()
        return other

    @property
    def captured(self) -> dict[str, int] | None:
        """Number of CUDA graphs that are held, and bytes that they share; None: none is captured."""
        if not self.cuda_graphs:
            return None
        segments = torch.cuda.memory_snapshot() if self._pool is not None else []
        held = (each["total_size"] for each in segments if each["segment_pool_id"] == self._pool)
        return {"graphs": len(self._captured), "bytes": sum(held)}

    @cached_property
    def _kernel(self) -> Callable[[Columns, Tensor], AttendedCells] | None:
        """Attends to the cells of lists, where a kernel can; None: they are gathered and padded."""
        decoder = self.model.decoder
        if self.device.type != "cuda" or decoder.relative is not None or not len(decoder.layers):
            return None
        from nartk.models import cells_triton  # here, for Triton takes long to import

        attention = decoder.layers[0].self_attention
        if not cells_triton.HAS_TRITON or not cells_triton.proved(attention, self.dtype, self.device):
            return None
        return cells_triton.ListedCells

    @torch.inference_mode()
    def run(self, work: Pass, want: Want) -> Scores:
        if self._recurs:  # a step has no shape in which tokens follow each other
            return super().run(work, want)
        waiting = self.begin(work, self._memories)
        try:
            count = check_want(want, len(work.tokens), self.limits.words)
            shape, numbers = self._pack(work, waiting, want, count)
            self._block[:numbers].copy_(self._sent[:numbers], non_blocking=True)
            computed = self._compute(shape)
            held = _Held(computed.logits[:count], waiting)
            self._last = weakref.ref(held)
            reading = self._read(computed, shape, want, count)
        except BaseException:
            self.commit(waiting, ())
            raise
        return PassScores(reading, self, waiting, held.fetch, want.words)

    def step(self, block: Tensor, shape: Shape) -> Computed:
        """Computes a pass of a block [numbers] int32: writes the cells of its tokens, and reads them."""
        parts = parts_of(block, shape)
        columns = Columns(*(column.long() for column in parts.columns))
        attended: AttendedCells
        if self._kernel is None:
            attended = self._padded(columns, parts.lists, shape)
        else:
            attended = self._kernel(parts.columns, parts.lists)
        features = self._decoded(columns.token, columns.position, columns.cell, attended)[parts.only.long()]
        logits = self.model.output(features).float()
        return Computed(_results(logits, parts.given.long(), shape), logits, features)

    def _padded(self, columns: Columns, lists: Tensor, shape: Shape) -> AttendedCells:
        """The lists of a block, gathered and padded to the lengths of its shape."""
        depth, length = columns.depth[:, None], columns.length[:, None]
        cell = torch.arange(shape.cells, device=lists.device)
        # Behind the last its own again: what is masked still meets the values, and others might be NaN.
        earlier = cell < depth
        listed = lists[torch.where(earlier, columns.begin[:, None] + cell, 0)].long()
        seen = torch.where(earlier, listed, columns.cell[:, None])
        position = torch.arange(shape.positions, device=lists.device)
        source = lists[columns.source[:, None] + torch.minimum(position, length - 1)].long()
        return self._gathered(seen, cell <= depth, columns.depth, source, position < length)

    def _pack(self, work: Pass, waiting: PendingPass, want: Want, count: int) -> tuple[Shape, int]:
        """Writes a pass into the block that is sent: its shape, and how many numbers it has."""
        starts, which = runs(work.memory)
        rows = [each.beside["row"] for each in self._rows(work.memory[starts])]
        lengths = self._source_cells.lengths[rows]
        cells = self._source_cells.first(rows, int(lengths.max()))
        shape = shape_of(work, waiting, want, cells, count, self._kernel is not None)
        numbers = numbers_of(shape, waiting, cells)
        self._raise_capacities(numbers, self.size)
        block = self._sent.numpy()[:numbers]
        pack(block, shape, work, waiting, want, (cells, lengths, which), self._spare)
        return shape, numbers

    def _raise_capacities(self, numbers: int, cells: int) -> None:
        """Raises the capacities of block and stores."""
        if numbers > len(self._block):
            size = max(rounded(numbers), _NUMBERS)
            self._sent, self._block = (
                self._pinned(size),
                torch.zeros(size, dtype=torch.int32, device=self.device),
            )
        if cells > self._spare:
            for store in self._target_stores:
                store.grow(cells + 1)
            self._spare = len(self._target_stores[0].kv) - 1  # the cell of the tokens that fill a shape up

    def _pinned(self, size: int) -> Tensor:
        """Numbers on the host, for transfers."""
        return torch.zeros(size, dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def _compute(self, shape: Shape) -> Computed:
        """The step of the block that was sent: replayed, once its shape has come before."""
        block = self._block
        if not self.cuda_graphs:
            return self.step(block, shape)
        stores = (*self._target_stores, *self._source_stores)
        buffers = [block.data_ptr(), *(store.kv.data_ptr() for store in stores)]
        if buffers != self._buffers:  # graphs compute where they were
            self._buffers, self._captured, self._met = buffers, {}, set()
        last = self._last()
        if last is not None and self.waits(last.waiting):
            last.logits = last.logits.clone()
        if shape not in self._met:
            self._met.add(shape)
            return self.step(block, shape)
        if shape in self._captured:
            captured = self._captured.pop(shape)
        else:
            captured = self._capture(block, shape)
        self._captured[shape] = captured
        if len(self._captured) > _GRAPHS:
            del self._captured[next(iter(self._captured))]  # the one that was not used for longest
        graph, computed = captured
        graph.replay()
        return computed

    def _capture(self, block: Tensor, shape: Shape) -> tuple[Any, Computed]:
        """A CUDA graph of a step, and what it computes; all graphs share their memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            computed = self.step(block, shape)
        self._pool = graph.pool()
        return graph, computed

    def _read(self, computed: Computed, shape: Shape, want: Want, count: int) -> Reading:
        """Reads what is wanted of a step.

        Raises:
            PassError: Same as `nartk.protocols.reading.read`.
        """
        if not shape.common:
            return read_tensors(computed.logits[:count], want, computed.features[:count])
        size = len(computed.results)
        if size > len(self._fetched):
            self._fetched = self._pinned(size)
        self._fetched[:size].copy_(computed.results, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        rows = self._fetched.numpy()[:size].reshape(-1, shape.scored)
        wrong, reading = unpack(rows[:, :count].copy(), shape)
        if wrong.any():
            raise wrong_logits(int(wrong.argmax()))
        return reading


def _results(logits: Tensor, given: Tensor, shape: Shape) -> Tensor:
    """`Computed.results` of logits [n,V]."""
    wanted = given if shape.given else None
    found = results_of(logits, None, top=shape.top, margin=shape.margin, given=wanted)
    rows = [wrong_rows(logits)[None]]
    for x in found.values():
        bits = x.view(torch.int32) if x.is_floating_point() else x
        rows.append(bits[None] if bits.dim() == 1 else bits.T)
    return torch.cat([each.int() for each in rows]).flatten()
