"""Guarantees about a strategy's output: a value that code compares, and a sentence that people read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Guarantee(Enum):
    """Relation of a strategy's output to the model's own."""

    IDENTICAL = "identical to greedy"
    SAME_DISTRIBUTION = "same distribution"
    APPROXIMATE = "approximate"


@dataclass(frozen=True)
class Promise:
    """A guarantee with the sentence that explains it: ``approximate: the best of k hypotheses``."""

    guarantee: Guarantee
    sentence: str

    def __str__(self) -> str:
        return f"{self.guarantee.value}: {self.sentence}"


IDENTICAL = Promise(Guarantee.IDENTICAL, "each token is the model's best after those before it")
