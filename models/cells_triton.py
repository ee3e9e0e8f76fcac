"""Attention of tokens over lists of cells as one CUDA kernel, whatever the lengths of the lists.

A program takes a head of a token through its list, a block of cells at a time and in their order, as
FlashAttention does (Dao et al. 2022, https://arxiv.org/abs/2205.14135). Sums are of fp32, and neither other
tokens nor the order of the cells in memory changes their bits. Keys and values are read where they are, and
those of cells that a token does not see are not read. Triton comes with torch for CUDA; nothing here is
reached without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nartk.models.kernels import agree
from nartk.models.layers import Attention
from nartk.models.reference import CellStore, GatheredCells
from nartk.protocols.blocks import Columns

try:
    # torch's own door to Triton: it names empty classes where Triton is missing.
    from torch._inductor.runtime.triton_compat import HAS_TRITON as HAS_TRITON
    from torch._inductor.runtime.triton_compat import tl, triton
except ImportError:  # it is not public, and may move
    HAS_TRITON = False

_CELLS = 64  # at a time
_WARPS = 4

if HAS_TRITON:

    @triton.jit
    def _cells_kernel(  # type: ignore[no-untyped-def]
        queries,
        kv,
        lists,
        begins,
        counts,
        own,
        output,
        width,
        size,
        scale,
        OWN: tl.constexpr,
        CELLS: tl.constexpr,
        FEATURES: tl.constexpr,
    ):
        token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        feature = tl.arange(0, FEATURES)
        inside = feature < size
        column = head * size + feature
        query = tl.load(queries + token * width + column, mask=inside, other=0.0).to(tl.float32) * scale
        begin, listed = tl.load(begins + token), tl.load(counts + token)
        count = listed
        if OWN:
            count += 1
        largest = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        mean = tl.zeros([FEATURES], tl.float32)
        for first in range(0, count, CELLS):
            which = first + tl.arange(0, CELLS)
            seen = which < count
            cell = tl.load(lists + begin + which, mask=which < listed, other=0)
            if OWN:
                cell = tl.where(which == listed, tl.load(own + token), cell)
            address = kv + cell.to(tl.int64)[:, None] * (2 * width) + column[None, :]
            read = seen[:, None] & inside[None, :]
            key = tl.load(address, mask=read, other=0.0).to(tl.float32)
            value = tl.load(address + width, mask=read, other=0.0).to(tl.float32)
            score = tl.where(seen, tl.sum(query[None, :] * key, axis=1), float("-inf"))
            highest = tl.maximum(largest, tl.max(score, axis=0))
            weight, kept = tl.exp(score - highest), tl.exp(largest - highest)
            total = total * kept + tl.sum(weight, axis=0)
            mean = mean * kept + tl.sum(weight[:, None] * value, axis=0)
            largest = highest
        tl.store(output + token * width + column, mean / total, mask=inside)


def attend_cells(
    queries: Tensor,
    kv: Tensor,
    lists: Tensor,
    begins: Tensor,
    counts: Tensor,
    own: Tensor | None = None,
    *,
    heads: int,
    scale: float,
    cells: int = _CELLS,
) -> Tensor:
    """Attends from each token to the cells of its list.

    Args:
        queries: [N,H*D].
        kv: [cells,2*H*D], keys and values by cell, of the same type.
        lists: [.] int32, cells.
        begins: [N] int32, where the cells of a token begin among them.
        counts: [N] int32, how many they are, at least 1 with `own`'s.
        own: [N] int32, a cell that each token sees besides, as its last.
        heads: H.
        scale: Factor of the scores.
        cells: Number that a program takes at a time, a power of 2.

    Returns:
        [N,H*D], of the type of the queries.

    Raises:
        RuntimeError: Triton is not here, or cannot compile for this GPU (then also errors of its own).
    """
    if not HAS_TRITON:
        raise RuntimeError("Triton is not installed")
    queries = queries.contiguous()
    count, width = queries.shape
    output = torch.empty_like(queries)
    size = width // heads
    # Triton launches on the current device, whatever device its arguments are on.
    with torch.cuda.device_of(queries):
        _cells_kernel[(count, heads)](
            queries,
            kv,
            lists,
            begins,
            counts,
            counts if own is None else own,
            output,
            width,
            size,
            scale,
            OWN=own is not None,
            CELLS=cells,
            FEATURES=max(16, 1 << (size - 1).bit_length()),
            num_warps=_WARPS,
        )
    return output


@dataclass(frozen=True)
class ListedCells:
    """Implements `nartk.models.reference.AttendedCells`: a kernel goes through the lists of a block."""

    columns: Columns  # int32
    lists: Tensor  # [.] int32

    def target(self, attention: Attention, queries: Tensor, store: CellStore) -> Tensor:
        columns = self.columns
        return self._attend(attention, queries, store, columns.begin, columns.depth, columns.cell)

    def source(self, attention: Attention, queries: Tensor, store: CellStore) -> Tensor:
        return self._attend(attention, queries, store, self.columns.source, self.columns.length, None)

    def _attend(
        self,
        attention: Attention,
        queries: Tensor,
        store: CellStore,
        begins: Tensor,
        counts: Tensor,
        own: Tensor | None,
    ) -> Tensor:
        found = attend_cells(
            queries[:, 0],
            store.kv,
            self.lists,
            begins,
            counts,
            own,
            heads=attention.heads,
            scale=attention.scale,
        )
        projected: Tensor = attention.out(found)
        return projected[:, None]


def proved(attention: Attention, dtype: torch.dtype, device: torch.device) -> bool:
    """Tells if the kernel runs on a device, and attends as torch does, with heads as those of an attention.

    A warning says why where it does not.
    """
    # More cells than a program takes at a time. Sines: nobody's random numbers are used up.
    width, longest = attention.out.in_features, 2 * _CELLS + 1
    index = torch.arange(3 * longest, device=device)
    kv = (index[:, None] * 0.7 + torch.arange(2 * width, device=device)).sin().to(dtype)
    queries, lists = kv[:3, None, :width], index.flip(0).int()
    column = torch.tensor([0, 1, longest - 1], device=device, dtype=torch.int32)
    columns = Columns(column, column, column + 5, column, column, column, column + 1)
    listed, depth = ListedCells(columns, lists), torch.arange(longest, device=device)
    earlier, cells = depth < column[:, None], lists[column[:, None] + depth].long()
    seen = torch.where(earlier, cells, columns.cell[:, None].long())
    counted = (depth <= column[:, None])[:, None, None]
    gathered, store = GatheredCells(seen, counted, cells, counted), CellStore(kv)
    bound = 1e-4 if dtype == torch.float32 else 0.02

    def both(attended: ListedCells | GatheredCells) -> list[Tensor]:
        return [attended.target(attention, queries, store), attended.source(attention, queries, store)]

    return agree("the Triton kernels of attention", lambda: both(listed), lambda: both(gathered), bound)
