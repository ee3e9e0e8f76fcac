"""The best of many over tensors, of equal ones the first; and n-grams that would recur.

Symbols: N rows, V words, R hypotheses, T output positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 64  # words whose best is found first; any size gives the same result


def best_of(x: Tensor, k: int) -> Tensor:
    """The places [N,k] of the k largest of each row of x [N,V] fp32, best first; of equals the first.

    Unlike `topk`, which takes any of equals, so that a row's result depends on the row alone. With a
    pass over the maxima of chunks it is also the faster of the two.
    """
    rows, size = x.shape
    if size <= 2 * k * _CHUNK:
        return _keys(x).topk(k).indices
    x = F.pad(x, (0, -size % _CHUNK), value=float("-inf")) if size % _CHUNK else x
    chunks = x.view(rows, -1, _CHUNK)
    # The k best lie in the k chunks with the best maxima. Sorted, so that the first of equals stays first.
    chosen = _keys(chunks.amax(2)).topk(k).indices.sort(1).values
    inside = chunks.gather(1, chosen[:, :, None].expand(-1, -1, _CHUNK)).flatten(1)
    best = _keys(inside).topk(k).indices
    return chosen.gather(1, best // _CHUNK) * _CHUNK + best % _CHUNK


def _keys(x: Tensor) -> Tensor:
    """int64 [N,V] in the order of x [N,V] fp32, equals in falling order of their places."""
    bits = (x + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 the same as 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # IEEE 754: negative numbers fall as bits rise
    return (order << 32) + torch.arange(x.shape[1] - 1, -1, -1, device=x.device)


def repeats(outputs: Tensor, lengths: Tensor, n: int, words: int) -> Tensor:
    """Which words would make the last n tokens of a row recur: [R,V] bool.

    Args:
        outputs: [R,T] int64, of which lengths [R] count.
        n: Tokens of the n-gram, at least 1.
        words: V.
    """
    banned = torch.zeros(outputs.shape[0], words + 1, dtype=torch.bool, device=outputs.device)
    if n <= outputs.shape[1]:
        windows = outputs.unfold(1, n, 1)  # [R,T-n+1,n]
        ends = torch.arange(n, outputs.shape[1] + 1, device=outputs.device)
        back = lengths[:, None] + torch.arange(1 - n, 0, device=outputs.device)  # [R,n-1]
        context = outputs.gather(1, back.clamp(min=0))
        seen = (windows[:, :, :-1] == context[:, None]).all(2) & (ends <= lengths[:, None])
        banned.scatter_(1, torch.where(seen, windows[:, :, -1], words), True)
    return banned[:, :words]
