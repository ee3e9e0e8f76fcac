"""Paths through a DA-Transformer's graphs, found on the graphs' device.

They are those of `nartk.decoders.graphs.paths`, of equal ones too. Behind its last vertex a path holds this
again, so that no shape depends on what is found.

Symbols: B graphs, L vertices of the largest, T edges of the longest path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nartk.protocols.parallel import PathSearch


def find_paths(edges: Tensor, lasts: Sequence[int], search: PathSearch) -> Tensor:
    """The wanted path through each graph, [B,L] int64.

    Args:
        edges: [B,L,L], minus infinity where there is none, and behind a graph's vertices.
        lasts: [B], the last vertex of each.
    """
    ends = torch.tensor(lasts, device=edges.device)
    walked = _walks(edges, ends)
    if search.beta is None:
        return walked
    longest = [min(limit, last) for limit, last in zip(search.limits, lasts, strict=True)]
    found, is_path = _viterbi(edges, ends, longest, search.beta)
    return torch.where(is_path[:, None], found, walked)


def _walks(edges: Tensor, ends: Tensor) -> Tensor:
    """The best edge from each vertex, followed from vertex 0: [B,L]."""
    size = edges.shape[1]
    nexts = torch.arange(1, size + 1, device=edges.device)
    # Some vertices at a time, and how far from each so many edges lead.
    jumps = edges.argmax(2).maximum(nexts).minimum(ends[:, None])
    path = torch.zeros_like(ends)[:, None]
    while path.shape[1] < size:
        path = torch.cat([path, jumps.gather(1, path)], 1)
        jumps = jumps.gather(1, jumps)
    return path[:, :size]


def _viterbi(edges: Tensor, ends: Tensor, longest: Sequence[int], beta: float) -> tuple[Tensor, Tensor]:
    """The likeliest path for its length [B,L], of at most `longest` [B] edges, and where there is one."""
    rows, size = edges.shape[:2]
    most = max(longest)
    # The best sum of t edges to each vertex.
    forward = edges.new_full((most + 1, rows, size), float("-inf"))
    forward[0, :, 0] = 0.0
    for t in range(1, most + 1):
        forward[t] = (forward[t - 1, :, :, None] + edges).amax(1)
    lengths = torch.arange(1, most + 1, device=edges.device)[:, None]
    penalties = torch.tensor([float(t) ** beta for t in range(1, most + 1)], dtype=edges.dtype)
    sums = (
        forward[1:].gather(2, ends.expand(most, -1)[..., None])[..., 0] / penalties.to(edges.device)[:, None]
    )
    sums = sums.masked_fill(lengths > torch.tensor(longest, device=edges.device), float("-inf"))
    count = sums.argmax(0) + 1
    at, path = ends, [ends] * (size - most)
    for t in range(most, 0, -1):
        into = edges.gather(2, at[:, None, None].expand(-1, size, 1))[..., 0]
        at = torch.where(count < t, at, (forward[t - 1] + into).argmax(1))
        path.append(at)
    return torch.stack(path[::-1], 1), sums.amax(0) > float("-inf")
