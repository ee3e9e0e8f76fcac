"""Products for serving: weights packed once, and results that do not depend on the batch.

What a matrix product gives for one row may depend, in its last bits, on how many rows it is computed with:
libraries choose other code for other shapes. `Floors` says from which shapes on a device's results are
bitwise the same, and `measure_floors` finds out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_log = logging.getLogger("nartk")

_MULTIPLES = (4, 8, 16, 32)
_FEW = 96  # rows and queries that are tried: past a few dozen no library changes its code for few
_MANY = 512  # rows that they are tried among, fewer where that takes over _BUDGET multiplications
_BUDGET = 2**28
_ROWS = 3  # sentences of an attention that is tried
_CHUNK = 64  # rows a product is cut into where no floor is found: one shape, whatever the batch


@dataclass(frozen=True)
class Floors:
    """The shapes that exact mode keeps to.

    Attributes:
        rows: Rows of a linear layer come in multiples of this.
        queries: Queries of an attention come in multiples of this.
        chunk: Rows a linear layer computes at once, 0 for all: the last resort.
    """

    rows: int
    queries: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.rows}.{self.queries}" + (f".{self.chunk}" if self.chunk else "")


class ServingLinear(nn.Module):
    """A frozen linear layer: x [...,in] -> [...,out] in `dtype`.

    On a CPU the weights are packed for oneDNN, which is 2-3x faster for few rows than `F.linear` and, unlike
    it, gave every row the same bits at any number of rows where it was measured (AVX-512, fp32 and bf16).
    fp16 without hardware for it is computed in fp32 and rounded: the same contract, many times faster.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        weight = linear.weight.detach().to(dtype)
        bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.dtype = self.compute = dtype
        if weight.device.type == "cpu" and dtype == torch.float16:
            self.compute = torch.float32
            weight, bias = weight.float(), None if bias is None else bias.float()
        self.packed = weight.device.type == "cpu" and _can_pack(self.compute)
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.weight = weight
        self.bias = bias
        self.chunk = 0

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)  # what nn.Module does for hooks takes a tenth of the time of a small product

    def forward(self, x: Tensor) -> Tensor:
        if self.chunk:
            rows = x.reshape(-1, self.in_features)
            short = -rows.shape[0] % self.chunk
            pieces = F.pad(rows, (0, 0, 0, short)).split(self.chunk)
            y = torch.cat([self._product(piece) for piece in pieces])[: rows.shape[0]]
            return y.view(*x.shape[:-1], self.out_features)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if dtype != self.compute:
            x = x.to(self.compute)
        if self.packed:
            y = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        else:
            y = F.linear(x, self.weight, self.bias)
        return y if dtype == self.compute else y.to(dtype)


class ServingNorm(nn.Module):
    """A frozen layer norm: x [...,D] -> [...,D]."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.shape, self.eps = norm.normalized_shape, norm.eps
        self.weight, self.bias = (x if x is None else x.detach() for x in (norm.weight, norm.bias))

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """`scaled_dot_product_attention`, q [B,H,K,D], k and v [B,H,T,D], mask [B,1,K or 1,T] -> [B,H,K,D].

    fp16 without hardware for it is computed in fp32 and rounded: 4-8x as fast.
    """
    dtype = q.dtype
    if dtype == torch.float16 and q.device.type == "cpu":
        q, k, v = q.float(), k.float(), v.float()
        mask = mask.float() if mask is not None and mask.dtype == dtype else mask
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return y if y.dtype == dtype else y.to(dtype)


def serve(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replaces linear layers and layer norms inside `module` by those for serving, in place; returns it."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, ServingLinear(child, dtype))
        elif isinstance(child, nn.LayerNorm):
            setattr(module, name, ServingNorm(child))
        else:
            serve(child, dtype)
    module.__dict__.update(module._modules)  # where Python looks before it asks Module.__getattr__
    return module


@lru_cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and CPU have oneDNN's packed linear for `dtype`."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(16, 16, dtype=dtype))
        torch.ops.mkldnn._linear_pointwise(torch.ones(4, 16, dtype=dtype), weight, None, "none", [], "")
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
    return True


def measure_floors(linears: Iterable[ServingLinear], heads: Iterable[tuple[int, int]]) -> Floors:
    """Finds the smallest shapes from which on results are bitwise the same.

    Each row, and each query, is computed alone with few others and among many, at the same and at another
    place, for queries also with other sentences in the batch.

    Args:
        linears: The layers of the model; each shape is tried once, with its own weights.
        heads: Heads and features a head of the model's attentions.
    """
    shapes = {(layer.in_features, layer.out_features): layer for layer in linears}
    layer = next(iter(shapes.values()))
    device, dtype = layer.weight.device, layer.dtype
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    products = []
    for (features, size), layer in shapes.items():
        x = random(max(_FEW, min(_MANY, _BUDGET // (features * size))), features)
        products.append((layer, x, layer(x)))
    attentions = []
    for h, d in sorted(set(heads)):
        for keys in (32, 96):
            # As they lie in memory when decoding: queries beside keys and values, the cache by position.
            q = random(_ROWS, _FEW, 3, h, d)[:, :, 0].transpose(1, 2)
            k, v = random(_ROWS, keys + 1, 2, h, d)[:, :-1].permute(2, 0, 3, 1, 4).unbind(0)
            mask = _mask(_ROWS, _FEW, keys, dtype, device)
            attentions.append((q, k, v, mask, attention(q, k, v, mask)))

    def rows_stand(n: int) -> bool:
        return all(
            torch.equal(layer(x[span].clone()), among_many[span])
            for layer, x, among_many in products
            for span in _spans(n)
        )

    def queries_stand(n: int) -> bool:
        return all(
            torch.equal(
                attention(some, k[rows], v[rows], mask[rows, :, span]),
                among_many[rows, :, span],
            )
            for q, k, v, mask, among_many in attentions
            for span in _spans(n)
            for rows in (slice(0, _ROWS), slice(0, 1), slice(1, 2), slice(1, _ROWS))
            for some in (q[rows, :, span], q[rows, :, span].contiguous())
        )

    found = _smallest(rows_stand)
    queries = _smallest(queries_stand)
    if queries is None:
        _log.warning("no number of queries gives attention the same bits in %s on %s", dtype, device)
    return Floors(
        rows=_CHUNK if found is None else found,
        queries=_MULTIPLES[-1] if queries is None else queries,
        chunk=_CHUNK if found is None else 0,
    )


def _smallest(stands: Callable[[int], bool]) -> int | None:
    return next((n for n in _MULTIPLES if stands(n)), None)


def _spans(n: int) -> Iterator[slice]:
    """Spans of n, 2n, 3n, 5n, 8n, ... of _FEW, from the first on and from an odd place on."""
    count, following = n, 2 * n
    while count < _FEW:
        yield slice(0, count)
        start = (_FEW - count) // 2 | 1
        yield slice(start, start + count)
        count, following = following, count + following


def _mask(batch: int, queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An additive causal mask whose rows start at different offsets, as in decoding: [B,1,K,T]."""
    offsets = torch.arange(1, batch + 1, device=device)[:, None] * 7
    last = offsets + torch.arange(queries, device=device)
    hidden = torch.arange(keys, device=device) > last[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill(hidden, float("-inf"))
