"""Protocol of autoregressive models that show which positions of their source tokens attend to.

Symbols: H heads, N tokens of a pass, S positions of the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from nartk.protocols.passes import FloatArray, Pass, Scores, Want

Heads: TypeAlias = Sequence[tuple[int, int]]  # each a layer of the decoder and a head of it, from 0


@runtime_checkable
class AttendingScorer(Protocol):
    """A `PassScorer` whose cross-attention can be read."""

    def run_attending(self, work: Pass, want: Want, heads: Heads) -> tuple[Scores, FloatArray]:
        """Scores the tokens of a pass as `PassScorer.run`, and gives weights of cross-attention [H,N,S].

        Weights of a head and a token add up to 1. They depend on what the token sees alone, on the engine bit
        for bit.

        Args:
            work: Pass whose tokens all attend to one source.
            heads: Heads that are read, no two the same.

        Raises:
            PassError: Same as in `run`; or there is no such head, or there are several sources.
        """
