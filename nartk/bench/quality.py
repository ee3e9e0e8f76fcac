"""Scores of a benchmark's outputs, and their differences to greedy search's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nartk.metrics.bootstrap import PairedDifference, compare
from nartk.metrics.metric import Scorer
from nartk.metrics.result import MetricResult


@dataclass
class Quality:
    """Scores decoded lines with a metric; its references may cover more lines than are decoded.

    Attributes:
        name: Name of the metric.
        score: Scores a file with one output for each line of the references; its first score counts.
        rows: Line numbers, from 0, of the references of the decoded lines.
        total: Number of lines of the references.
        path: Scratch file for outputs.
        join: Joins outputs of sentences to lines of the references.
    """

    name: str
    score: Scorer
    rows: Sequence[int]
    total: int
    path: Path
    join: Callable[[Sequence[str]], Sequence[str]] = list
    # Most engines say the same: what they say is scored once.
    _results: dict[tuple[str, ...], MetricResult] = field(default_factory=dict, repr=False)
    _differences: dict[tuple[tuple[str, ...], ...], PairedDifference] = field(
        default_factory=dict, repr=False
    )

    def of(self, texts: Sequence[str]) -> MetricResult:
        """The score of the outputs of all sentences that are decoded.

        Raises:
            NartkError: The references do not fit, or a package is missing.
        """
        key = tuple(texts)
        if key not in self._results:
            # A line each, also for what is not decoded, which then has no weight.
            lines = [""] * self.total
            for row, text in zip(self.rows, self.join(texts), strict=True):
                lines[row] = text.replace("\n", " ")
            self.path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
            self._results[key] = self.score(str(self.path))[0].of_lines(self.rows)
        return self._results[key]

    def difference(self, texts: Sequence[str], greedy: Sequence[str]) -> PairedDifference:
        """Difference of the scores of two outputs, by paired bootstrap."""
        key = (tuple(texts), tuple(greedy))
        if key not in self._differences:
            self._differences[key] = compare(self.of(texts), self.of(greedy))
        return self._differences[key]
