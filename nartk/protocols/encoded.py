"""Protocols of a model whose encoded sources another one reads.

Symbols: B sources, S positions of a source, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from nartk.protocols.passes import FeatureSource, FloatArray, IntArray


@runtime_checkable
class GivesEncoded(Protocol):
    """A scorer that shows what its encoder gave."""

    def encodings(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Vectors [S,D] fp32 that its decoder attends to, of each of B encoded sources."""


@runtime_checkable
class KeepsEncoded(Protocol):
    """A scorer that may find an encoded text again."""

    def keep_encoded(self, most: int) -> None:
        """Keeps the encodings of so many texts when they are freed, for `encode` of the same; 0: of none."""


@runtime_checkable
class ReadsEncoded(Protocol):
    """A scorer without an encoder: its sources are vectors [S,D] that another model's encoder gave.

    Attributes:
        encoded_features: D.
    """

    encoded_features: int


def sources_of(encoded: Sequence[FloatArray]) -> list[FeatureSource]:
    """Encoded sources [S,D] as those of a `ReadsEncoded`; positions have no time from one to the next."""
    return [FeatureSource(each, 0.0) for each in encoded]
