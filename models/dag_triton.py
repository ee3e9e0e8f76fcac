"""The recursions of `nartk.models.dag` as two CUDA kernels, a launch each instead of four a token.

A program takes a row through all its tokens. It writes a token's vector undivided and the next token reads it
divided by its maximum, so that one barrier a token is enough. Triton comes with torch for CUDA; nothing here
is reached without a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    # torch's own door to Triton: it names empty classes where Triton is missing.
    from torch._inductor.runtime.triton_compat import HAS_TRITON as HAS_TRITON
    from torch._inductor.runtime.triton_compat import tl, triton
except ImportError:  # it is not public, and may move
    HAS_TRITON = False

_TILE = (64, 64)  # vertices from, vertices to: 32 KB of weights at a time in the registers of 8 warps
_WARPS = 8

if HAS_TRITON:

    @triton.jit
    def _forward_kernel(  # type: ignore[no-untyped-def]
        weights,
        words,
        forward,
        scales,
        length,
        width,
        EPSILON: tl.constexpr,
        FROM: tl.constexpr,
        TO: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        weights += row * width * width
        words += row * length * width
        forward += row * length * width
        scales += row * length
        scale = tl.load(scales)  # of token 0: 1
        for t in range(1, length):
            before = forward + (t - 1) * width
            largest = scale * 0.0
            for first_to in range(0, width, TO):
                to = first_to + tl.arange(0, TO)
                reached = tl.zeros([TO], dtype=tl.float64)
                # Links go from low to high vertices only.
                for first_from in range(0, tl.minimum(first_to + TO, width), FROM):
                    origin = first_from + tl.arange(0, FROM)
                    mass = tl.load(before + origin, mask=origin < width, other=0.0) / scale
                    inside = (origin < width)[:, None] & (to < width)[None, :]
                    tile = tl.load(weights + origin[:, None] * width + to[None, :], mask=inside, other=0.0)
                    reached += tl.sum(mass[:, None] * tile, axis=0)
                word = tl.load(words + t * width + to, mask=to < width, other=0.0)
                reached = reached * word + EPSILON
                tl.store(forward + t * width + to, reached, mask=to < width)
                largest = tl.maximum(largest, tl.max(reached, axis=0))
            scale = largest
            tl.store(scales + t, scale)
            tl.debug_barrier()  # the next token reads what all threads wrote

    @triton.jit
    def _backward_kernel(  # type: ignore[no-untyped-def]
        weights, words, start, backward, scales, length, width, FROM: tl.constexpr, TO: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        weights += row * width * width
        words += row * length * width
        start += row * length * width
        backward += row * length * width
        scales += row * length
        scale = tl.load(scales + length - 1)  # of the last token: 1
        for step in range(1, length):
            t = length - 1 - step
            largest = scale * 0.0
            for first_from in range(0, width, FROM):
                origin = first_from + tl.arange(0, FROM)
                reached = tl.zeros([FROM], dtype=tl.float64)
                for first_to in range(first_from // TO * TO, width, TO):
                    to = first_to + tl.arange(0, TO)
                    after = (t + 1) * width + to
                    mass = tl.load(backward + after, mask=to < width, other=0.0) / scale
                    mass *= tl.load(words + after, mask=to < width, other=0.0)
                    inside = (origin < width)[:, None] & (to < width)[None, :]
                    tile = tl.load(weights + origin[:, None] * width + to[None, :], mask=inside, other=0.0)
                    reached += tl.sum(mass[None, :] * tile, axis=1)
                reached += tl.load(start + t * width + origin, mask=origin < width, other=0.0)
                tl.store(backward + t * width + origin, reached, mask=origin < width)
                largest = tl.maximum(largest, tl.max(reached, axis=0))
            scale = largest
            tl.store(scales + t, scale)
            tl.debug_barrier()


def triton_recursions(
    weights: Tensor, words: Tensor, start: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs the recursions of `nartk.models.dag`, on float64 weights [B,L,L], words and start [B,T,L].

    Returns:
        forward [B,T,L], what it was divided by [B,T], and the same for backward.

    Raises:
        RuntimeError: Triton is not here, or cannot compile for this GPU (then also errors of its own).
    """
    if not HAS_TRITON:
        raise RuntimeError("Triton is not installed")
    weights, words, start = (x.contiguous() for x in (weights, words, start))
    batch, length, width = words.shape
    forward, backward = torch.empty_like(words), torch.empty_like(start)
    forward[:, 0], backward[:, -1] = words[:, 0], start[:, -1]
    forward_scale, backward_scale = words.new_ones(batch, length), words.new_ones(batch, length)
    tile = {"FROM": _TILE[0], "TO": _TILE[1], "num_warps": _WARPS, "num_stages": 1}
    # Triton launches on the current device, whatever device its arguments are on.
    with torch.cuda.device_of(weights):
        _forward_kernel[(batch,)](weights, words, forward, forward_scale, length, width, epsilon, **tile)
        _backward_kernel[(batch,)](weights, words, start, backward, backward_scale, length, width, **tile)
    return (
        forward / forward_scale[..., None],
        forward_scale,
        backward / backward_scale[..., None],
        backward_scale,
    )
