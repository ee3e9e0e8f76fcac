"""Result of a metric: the score, its parts, and a function that scores a resample of the sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nartk.errors import InputFileError, LengthMismatchError, named, number_of
from nartk.files import JsonObject
from nartk.version import __version__

# R corpora of N texts; None: the text has no such reference.
References = Sequence[Sequence[str | None]]


def present(references: References, row: int) -> list[str]:
    """The references that a text has."""
    return [text for text in (corpus[row] for corpus in references) if text is not None]


def reference_counts(references: References) -> list[int]:
    """Number of references of each text, [N]."""
    return [sum(text is not None for text in texts) for texts in zip(*references, strict=True)]


def counted(references: References) -> str:
    """The number of references for a signature: ``var`` where texts have more and fewer, as sacrebleu's."""
    counts = {*reference_counts(references)}
    return str(counts.pop()) if len(counts) == 1 else "var"


def signature(metric: str, *settings: str) -> str:
    """The settings that make a score reproducible, with nartk's version; empty ones are left out."""
    return "|".join([f"metric:{metric}", *filter(None, settings), f"nartk:{__version__}"])


@dataclass(frozen=True)
class MetricResult:
    """The score of one system.

    Attributes:
        metric: Name of the metric, as on the command line.
        score: The score in the scale of the metric's original program: 0 to 1 for errant, m2, gleu and
            rouge, 0 to 100 for bleu, chrf and sari.
        parts: Components of the score by name; numbers, lists and mappings only.
        signature: The settings that make the number reproducible.
        sentences: Number of sentences scored, N.
        resample: Scores of corpora that hold sentence n as often as weights[k, n] says:
            [K, N] float64 -> [K] float64.
        lines: The places of the N sentences among the lines, from 0; None: all lines are scored.
        ids: The utterance ids by which the lines were matched, in their order; None: they have none.
        each: The scores of single lines by the metric's published sentence form, [lines] float64, NaN where
            there is none; None: the metric has no such form.
    """

    metric: str
    score: float
    parts: JsonObject
    signature: str
    sentences: int
    resample: Callable[[np.ndarray], np.ndarray] = field(repr=False, compare=False)
    lines: tuple[int, ...] | None = None
    ids: tuple[str, ...] | None = None
    each: Callable[[], np.ndarray] | None = field(default=None, repr=False, compare=False)

    def of_lines(self, lines: Sequence[int]) -> MetricResult:
        """The result of some lines alone, without parts.

        Raises:
            InputFileError: None of them is scored.
        """
        scored = range(self.sentences) if self.lines is None else self.lines
        if len(lines) == self.sentences and [*lines] == [*scored]:
            return self
        wanted = {*lines}
        kept = [index for index, line in enumerate(scored) if line in wanted]
        if not kept:
            raise InputFileError(
                f"none of {len(lines)} lines has a reference", fix="give references of other lines"
            )

        def resample(weights: np.ndarray) -> np.ndarray:
            spread = np.zeros((len(weights), self.sentences))
            spread[:, kept] = weights
            return self.resample(spread)

        score = float(resample(np.ones((1, len(kept))))[0])
        return replace(
            self,
            score=score,
            parts={},
            sentences=len(kept),
            resample=resample,
            lines=tuple(scored[index] for index in kept),
            each=None,
        )


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


def f_of_resamples(counts: np.ndarray, beta: float) -> Callable[[np.ndarray], np.ndarray]:
    """The `resample` of a score that is F of summed counts [N, 3]: correct, proposed and gold edits."""

    def resample(weights: np.ndarray) -> np.ndarray:
        correct, proposed, gold = (weights @ counts).T
        return f_measure(correct, proposed, gold, beta)[2]

    return resample


def check_corpora(metric: str, references: References, **others: Sequence[str]) -> None:
    """Refuses, as `check_lengths` does, references and `others` that do not fit the first of these.

    Raises:
        InputFileError: There is no reference, perhaps of a single sentence, or no sentence.
        LengthMismatchError: The corpora differ in length.
    """
    if not references:
        raise InputFileError(f"{metric} needs a reference", fix=f"give one or more files with {named('ref')}")
    lengths = {f"reference {number}": len(lines) for number, lines in enumerate(references, start=1)}
    first, *_ = others
    check_lengths(len(others[first]), first, lengths | {name: len(others[name]) for name in others})
    counts = reference_counts(references)
    if 0 in counts:
        where = f"sentence {counts.index(0) + 1}"
        raise InputFileError(f"{metric} needs a reference", fix="leave the sentence out", where=where)


def check_lengths(expected: int, name: str, others: Mapping[str, int]) -> None:
    """Refuses a corpus without sentences, and parallel files of different lengths.

    Raises:
        InputFileError: `expected` is 0.
        LengthMismatchError: One of `others` differs from `expected`.
    """
    for other, length in others.items():
        if length != expected:
            raise LengthMismatchError(
                f"{other} has {number_of(length, 'sentence')}, but {name} has {expected}",
                fix="give files with the same sentences in the same order",
            )
    if expected == 0:
        raise InputFileError(f"{name} has no sentences to score", fix="give a file that is not empty")
