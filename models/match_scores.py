"""Scores of target tokens at vertices or frames, without the log-probabilities of all words at all of them.

Symbols: B rows, T target tokens, L vertices, N vertices of all rows that count, D features, V words.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.errors import UsageError


def match_scores(
    output: nn.Linear,
    hidden: Tensor,
    target: Tensor,
    *,
    graph_lengths: Tensor | None = None,
    chunk: int = 256,
) -> Tensor:
    """Log-probability of each target token at each vertex -> [B,T,L], float32, or float64 if `hidden` is.

    The logits of `chunk` vertices exist at a time, in the backward pass too, which computes them again.
    Gradients reach `hidden` and the layer, and cannot be differentiated again.

    Args:
        output: The layer that gives a vertex [D] its logits [V].
        hidden: [B,L,D], of the layer's type or, under autocast, any.
        target: [B,T] int64 in 0 to V - 1, padding included.
        graph_lengths: [B], vertices that count; others get minus infinity and are not computed. None: all.
        chunk: Vertices at a time, at least 1.

    Raises:
        UsageError: `chunk` is below 1, or the batches differ.
    """
    if chunk < 1:
        raise UsageError(f"`chunk` is {chunk}, below 1")
    if hidden.shape[0] != target.shape[0]:
        raise UsageError(f"`hidden` has {hidden.shape[0]} rows, `target` {target.shape[0]}")
    device = hidden.device
    counted = torch.ones(hidden.shape[:2], dtype=torch.bool, device=device)
    if graph_lengths is not None:
        counted = torch.arange(hidden.shape[1], device=device) < graph_lengths.to(device)[:, None]
    rows, positions = counted.nonzero(as_tuple=True)
    vertices = hidden[rows, positions]  # [B,L,D] -> [N,D]
    weight: Tensor = output.weight
    bias: Tensor | None = output.bias
    if torch.is_autocast_enabled(device.type):
        low = torch.get_autocast_dtype(device.type)
        vertices, weight = vertices.to(low), weight.to(low)
        bias = None if bias is None else bias.to(low)
    with torch.autocast(device.type, enabled=False):
        emitted: Tensor = _MatchScores.apply(  # type: ignore[no-untyped-call]
            vertices, weight, bias, target, rows, chunk
        )  # [N,T]
    empty = emitted.new_full((*hidden.shape[:2], target.shape[1]), -math.inf)
    return empty.index_put((rows, positions), emitted).mT  # [B,L,T] -> [B,T,L]


class _MatchScores(torch.autograd.Function):
    """Log-probabilities [N,T] at vertices [N,D] of rows [N] of the words of their row's target [B,T]."""

    @staticmethod
    def forward(
        ctx: Any,
        vertices: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        rows: Tensor,
        chunk: int,
    ) -> Tensor:
        ctx.save_for_backward(vertices, weight, bias, target, rows)
        ctx.chunk = chunk
        wide = torch.promote_types(vertices.dtype, torch.float32)
        emitted = vertices.new_empty(vertices.shape[0], target.shape[1], dtype=wide)
        for x, row, out in zip(*(each.split(chunk) for each in (vertices, rows, emitted)), strict=True):
            lprobs = F.linear(x, weight, bias).log_softmax(-1, dtype=wide)
            torch.gather(lprobs, 1, target[row], out=out)
        return emitted

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        vertices, weight, bias, target, rows = ctx.saved_tensors
        for_vertices, for_weight, for_bias = ctx.needs_input_grad[:3]
        by_vertices = torch.empty_like(vertices) if for_vertices else None
        # Chunks add up in float32 at least.
        by_weight = torch.zeros_like(weight, dtype=gradient.dtype) if for_weight else None
        by_bias = torch.zeros_like(bias, dtype=gradient.dtype) if for_bias else None
        for start in range(0, vertices.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            x, each = vertices[part], gradient[part]
            by_logits = F.linear(x, weight, bias).softmax(-1, dtype=gradient.dtype)
            by_logits.mul_(-each.sum(1, keepdim=True)).scatter_add_(1, target[rows[part]], each)
            if by_bias is not None:
                by_bias += by_logits.sum(0)
            by_logits = by_logits.to(x.dtype)
            if by_vertices is not None:
                torch.mm(by_logits, weight, out=by_vertices[part])
            if by_weight is not None and by_weight.dtype == x.dtype:
                by_weight.addmm_(by_logits.T, x)
            elif by_weight is not None:
                by_weight += by_logits.T @ x
        by_weight = None if by_weight is None else by_weight.to(weight.dtype)
        by_bias = None if by_bias is None else by_bias.to(bias.dtype)
        return by_vertices, by_weight, by_bias, None, None, None
