"""Batches of rows that come and go, and of which each has another length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor


def cat_rows(first: Tensor, second: Tensor, fill: float = 0) -> Tensor:
    """The rows of both [B,...]; where other dimensions differ, the smaller one is filled up at its end."""
    sizes = [max(pair) for pair in zip(first.shape[1:], second.shape[1:], strict=True)]
    return torch.cat([_filled(first, sizes, fill), _filled(second, sizes, fill)])


def _filled(x: Tensor, sizes: Sequence[int], fill: float) -> Tensor:
    missing = [size - own for size, own in zip(sizes, x.shape[1:], strict=True)]
    if not any(missing):
        return x
    return F.pad(x, [side for count in reversed(missing) for side in (0, count)], value=fill)


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """[B,S] of rows of different lengths, filled up on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.int64)


@lru_cache(maxsize=1024)
def steps(count: int, device: torch.device) -> Tensor:
    """0, 1, 2, ... [count], made once and never written to."""
    return torch.arange(count, device=device)


@lru_cache(maxsize=256)
def these(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """The numbers [N] int64, for those that are always the same: made once and never written to."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def told(numbers: Sequence[int], device: torch.device) -> Tensor:
    """What the host knows [N] int64, on the device, for which the host does not wait.

    Memory that is not pinned is read before the copy returns, so that it may go at once.
    """
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


class Packing:
    """How the first tokens of each row of [B,K], as many as `counts` says, lie in one row [N].

    The host knows the counts, so that nothing here waits for the device. What is made of them is made when it
    is first asked for.

    Attributes:
        width: K, the largest count.
        even: Whether all counts are K.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.counts, self.device = counts, device
        self.width = max(counts)
        self.even = min(counts) == self.width

    def pack(self, values: Tensor) -> Tensor:
        """[B,K] -> [N]."""
        return values.flatten() if self.even else values.flatten()[self.places]

    def unpack(self, values: Tensor) -> Tensor:
        """[N,...] -> [B,K,...], zeros where nothing was packed."""
        batch, rest = len(self.counts), values.shape[1:]
        if not self.even:
            values = values.new_zeros(batch * self.width, *rest).index_copy_(0, self.places, values)
        return values.view(batch, self.width, *rest)

    @cached_property
    def places(self) -> Tensor:
        """[N], which of B*K each is."""
        inside = torch.arange(self.width) < torch.tensor(self.counts)[:, None]  # on the host
        return inside.flatten().nonzero().squeeze(1).to(self.device, non_blocking=True)

    @cached_property
    def rows(self) -> Tensor:
        """[N]."""
        return self.places // self.width

    @cached_property
    def columns(self) -> Tensor:
        """[N]."""
        return self.places % self.width

    @cached_property
    def sizes(self) -> Tensor:
        """The counts [B]."""
        return told(self.counts, self.device)

    @property
    def begins(self) -> Tensor:
        """Where in N each row begins [B]."""
        return told([0, *accumulate(self.counts)][:-1], self.device)

    @property
    def last(self) -> Tensor:
        """Where in N each row ends that is not empty."""
        ends = [end - 1 for end, count in zip(accumulate(self.counts), self.counts, strict=True) if count]
        return told(ends, self.device)
