"""What a metric is: options, the files that it reads besides outputs, and what scores a file of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from nartk.files import read_lines
from nartk.metrics.result import MetricResult

Scorer = Callable[[str], list[MetricResult]]  # of a file's name; of several scores the first leads


@dataclass(frozen=True)
class Reads:
    """A file that a metric reads, or several: the references, a file each."""

    help: str
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Files:
    """The names of the files that are given; "-" is stdin.

    Attributes:
        source: What the system was given.
        ref: What it should have output.
        gold: M2, sources and gold edits.
        hyp_m2: The system's output as M2, in place of text.
    """

    source: str | None = None
    ref: tuple[str, ...] = ()
    gold: str | None = None
    hyp_m2: str | None = None

    def sources(self) -> list[str]:
        """The lines of the source."""
        assert self.source is not None
        return read_lines(self.source)

    def references(self) -> list[list[str]]:
        """The lines of each reference."""
        return [read_lines(name) for name in self.ref]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Base of metrics, which are declared by `register_metric`; the docstring's first line is the summary.

    Attributes:
        reads: What it reads, by the names of `Files`; each is a flag of nartk-score.
        digits: After the point, as the metric's original program prints them.
        example: A command line, after ``nartk-score``.
        counts_errors: Whether a lower figure is a better one.
    """

    counts_errors: ClassVar[bool] = False

    name: ClassVar[str]
    reads: ClassVar[Mapping[str, Reads]]
    digits: ClassVar[int]
    example: ClassVar[str]

    def scorer(self, files: Files) -> Scorer:
        """What scores a file of outputs, once what it is compared with has been read.

        Raises:
            NartkError: A file cannot be read, or a package is missing.
        """
        raise NotImplementedError
