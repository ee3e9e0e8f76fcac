"""What every metric returns: the score, its parts, and how to score a resample of the sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nartk.errors import InputFileError, LengthMismatchError, named


@dataclass(frozen=True)
class MetricResult:
    """The score of one system.

    Attributes:
        metric: Name of the metric, as on the command line.
        score: The score in the scale of the metric's original program: 0 to 1 for errant, m2, gleu and
            rouge, 0 to 100 for bleu, chrf and sari.
        parts: What the score is made of, by name; numbers, lists and mappings only.
        signature: The settings that make the number reproducible.
        sentences: Number of sentences scored, N.
        resample: Scores of corpora that hold sentence n as often as weights[k, n] says:
            [K, N] float64 -> [K] float64.
    """

    metric: str
    score: float
    parts: dict[str, Any]
    signature: str
    sentences: int
    resample: Callable[[np.ndarray], np.ndarray] = field(repr=False, compare=False)


def f_measure(
    correct: np.ndarray | float, proposed: np.ndarray | float, gold: np.ndarray | float, beta: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F of counts, element by element.

    Without proposed edits the precision is 1, without gold edits the recall is 1, as in the MaxMatch scorer
    and in ERRANT.
    """
    correct, proposed, gold = (np.asarray(count, dtype=np.float64) for count in (correct, proposed, gold))
    precision = np.divide(correct, proposed, out=np.ones_like(correct), where=proposed > 0)
    recall = np.divide(correct, gold, out=np.ones_like(correct), where=gold > 0)
    below = beta**2 * precision + recall
    above = (1 + beta**2) * precision * recall
    return precision, recall, np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def check_corpora(metric: str, references: Sequence[Sequence[str]], **others: Sequence[str]) -> None:
    """Refuses, as `check_lengths` does, references and `others` that do not fit the first of these.

    Raises:
        InputFileError: There is no reference, or no sentence.
        LengthMismatchError: The corpora differ in length.
    """
    if not references:
        raise InputFileError(f"{metric} needs a reference", fix=f"give one or more files with {named('ref')}")
    lengths = {f"reference {number}": len(lines) for number, lines in enumerate(references, start=1)}
    first, *_ = others
    check_lengths(len(others[first]), first, lengths | {name: len(others[name]) for name in others})


def check_lengths(expected: int, name: str, others: Mapping[str, int]) -> None:
    """Refuses a corpus without sentences, and parallel files of different lengths.

    Raises:
        InputFileError: `expected` is 0.
        LengthMismatchError: One of `others` differs from `expected`.
    """
    for other, length in others.items():
        if length != expected:
            raise LengthMismatchError(
                f"{other} has {length} sentences, but {name} has {expected}",
                fix="give files with the same sentences in the same order",
            )
    if expected == 0:
        raise InputFileError(f"{name} has no sentences to score", fix="give a file that is not empty")
