"""Continuous integrate-and-fire of sound that comes in buffers: what a token lacks, the next buffer gives.

Dong and Xu 2020, https://arxiv.org/abs/1905.11235, as `nartk.models.cif` has it, with what remains of a chunk
carried over to the next: the weight of the unfinished token and its sum of features. So does FunASR's
streaming Paraformer (``CifPredictorV2.forward_chunk``), which keeps the mean in place of the sum.

Symbols: S positions of the encoder, N fires, D features of the model.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nartk.protocols.parallel import FireScorer
from nartk.protocols.passes import FloatArray

# Of a token: a sum of fp32 weights that misses a whole number by no more has reached it. Rounding 1,500
# weights below 1 moves their sum by 4.5e-5 at most.
ROUNDING = 1e-4
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """A buffer, in positions of the recording.

    Attributes:
        begin, end: Positions that the model sees: begin <= position < end.
        first, last: Positions of the chunk, which is kept: first <= position < last.
    """

    begin: int
    end: int
    first: int
    last: int


@dataclass
class Integrator:
    """Sums positions into tokens, each of weight 1, as the positions come.

    Attributes:
        weight: Weight of the token that is not finished.
        features: [D] fp64, its sum of features, each times its weight; None: nothing has come.
        fired: Tokens so far.
    """

    weight: float = 0.0
    features: npt.NDArray[np.float64] | None = None
    fired: int = 0

    def accept(self, encoded: FloatArray, weights: FloatArray) -> tuple[FloatArray, _Ints]:
        """Tokens [N,D] that the next positions [S,D] with weights [S] finish, and the position of each."""
        ends = self.weight + np.cumsum(weights, dtype=np.float64)
        begins = np.concatenate([[self.weight], ends])[:-1]
        count = max(0, int(np.floor((ends[-1] if len(ends) else self.weight) + ROUNDING)))
        tokens = np.arange(count + 1)[:, None]  # the last is not finished
        shares = np.minimum(ends, tokens + 1) - np.maximum(begins, tokens)  # [N+1,S]
        sums = np.maximum(shares, 0.0) @ encoded
        if self.features is not None:
            sums[0] += self.features
        if len(ends):
            self.weight, self.features = float(ends[-1]) - count, sums[count]
        self.fired += count
        at = np.searchsorted(ends, np.arange(1, count + 1) - ROUNDING)
        return sums[:count].astype(np.float32), at

    def rest(self, tail: float) -> FloatArray:
        """The last token [1,D] if its weight and the tail make a whole one, or it is the first; or [0,D]."""
        assert self.features is not None
        fires = self.weight + tail + ROUNDING >= 1.0 or not self.fired
        return self.features[None, :].astype(np.float32)[: int(fires)]


@dataclass
class Carried:
    """Fires of a recording's buffers, one buffer after the other.

    Positions of a chunk are integrated once, with what was left of the chunk before; the fires before it are
    kept as they were, and those behind it, of the look-ahead, are tried and forgotten.

    Args:
        scorer: Scorer of the buffers.
    """

    scorer: FireScorer
    _sums: Integrator = field(default_factory=Integrator)
    _fires: list[FloatArray] = field(default_factory=list)  # [1,D] of each token that a buffer still sees
    _at: list[int] = field(default_factory=list)  # position of each in the recording

    def fires(
        self, encoded: FloatArray, weights: FloatArray, window: Window, *, is_last: bool
    ) -> tuple[FloatArray, _Ints]:
        """Fires [N,D] of a buffer, at least one, and the position of each in the recording.

        Positions `Window.end` and -1 are of fires that the decoder is to read and nobody else: an unfinished
        token behind the look-ahead, and one where there would be none.

        Args:
            encoded: [S,D] of the buffer's positions, `weights` [S].
            is_last: True if the recording ends with the buffer.
        """
        first, last = window.first - window.begin, window.last - window.begin
        own, own_at = self._sums.accept(encoded[first:last], weights[first:last])
        ahead = copy(self._sums)
        more, more_at = ahead.accept(encoded[last:], weights[last:])
        rest = ahead.rest(self.scorer.tail)
        rest_at = window.end - is_last
        before = [i for i, at in enumerate(self._at) if at >= window.begin]
        if not (before or len(own) or len(more) or len(rest)):
            rest, rest_at = ahead.rest(1.0), window.end if not is_last else -1
        found: list[FloatArray] = [*(self._fires[i] for i in before), own, more, rest]
        before_at = [self._at[i] for i in before]
        own_at, more_at = own_at + window.first, more_at + window.last
        at = np.array([*before_at, *own_at, *more_at, *[rest_at] * len(rest)], np.int64)
        self._fires = [*(self._fires[i] for i in before), *own[:, None]]
        self._at = [*before_at, *own_at.tolist()]
        most = self.scorer.limits.target
        begin = min(len(before), max(0, sum(map(len, found)) - most))
        part = slice(begin, begin + most)
        return np.concatenate(found)[part], at[part]
