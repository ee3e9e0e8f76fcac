"""Decoding for tests, with any scorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nartk.protocols.hypothesis import Request, Result

_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64  # of splitmix64


def mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on int64: every bit of the result depends on every bit of x."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _FIRST
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _SECOND
    return x ^ ((x >> 31) & (2**33 - 1))


def decode(
    strategy: Any,
    scorer: Any,
    requests: Sequence[Request],
    *,
    batch_size: int = 8,
    trace: bool = False,
) -> list[Result]:
    """The results of requests numbered from 0, in their order, each exactly once."""
    found = list(strategy.run(scorer, requests, batch_size=batch_size, trace=trace))
    assert sorted(result.index for result in found) == [request.index for request in requests]
    return sorted(found, key=lambda result: result.index)
