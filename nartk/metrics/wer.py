"""Word and character error rates by jiwer: edits that make outputs of references, in percent of these.

Errors and reference words are summed over the corpus, as NIST's sclite does; a long output may have more
errors than its reference words. Of texts without alternatives in braces, substitutions, deletions and
insertions are those that sclite counts on its own test data; where two alignments have equally many errors,
the two programs may choose differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from nartk import __version__
from nartk.errors import InputFileError, UsageError, named, requiring
from nartk.metrics.metric import EMPTY, Comparison, Metric, Reads, Texts
from nartk.metrics.result import MetricResult, check_corpora
from nartk.registry import option, register_metric

COUNTS = ("hits", "substitutions", "deletions", "insertions")
_CHUNKS = ("equal", "substitute", "delete", "insert")  # as jiwer calls them


def error_statistics(references: Sequence[str], hypotheses: Sequence[str], *, unit: str) -> np.ndarray:
    """Hits, substitutions, deletions and insertions of each sentence, [N, 4] float64.

    Args:
        unit: ``wer``: words, which white space parts; ``cer``: characters, a space between words among them.

    Raises:
        MissingDependencyError: jiwer is not installed.
    """
    with requiring("wer and cer need the package {name}", "score"):
        import jiwer
    process: Any = {"wer": jiwer.process_words, "cer": jiwer.process_characters}[unit]
    texts = [[" ".join(line.split()) for line in lines] for lines in (references, hypotheses)]
    table = np.zeros((len(hypotheses), len(COUNTS)))
    for row, chunks in zip(table, process(*texts).alignments, strict=True):
        for chunk in chunks:
            # Either is 0 of what the other side has not.
            length = max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
            row[_CHUNKS.index(chunk.type)] += length
    return table


def error_rate(
    references: Sequence[str],
    hypotheses: Sequence[str],
    *,
    unit: str = "wer",
    lowercase: bool = False,
    spaces: bool = True,
) -> MetricResult:
    """The corpus's error rate in percent: lower is better.

    Args:
        unit: ``wer`` or ``cer``.
        lowercase: Whether case is ignored, as sclite does unless told otherwise.
        spaces: Whether those between words are characters, of ``cer``.

    Raises:
        MissingDependencyError: jiwer is not installed.
        InputFileError: No reference holds a word.
        LengthMismatchError: The corpora differ in length.
    """
    check_corpora(unit, [references], hypothesis=hypotheses)
    if not any(line.strip() for line in references):
        raise InputFileError("no reference holds a word", fix="give references that are not empty")

    def prepared(lines: Sequence[str]) -> list[str]:
        cased = [line.lower() if lowercase else line for line in lines]
        return cased if spaces else ["".join(line.split()) for line in cased]

    table = error_statistics(prepared(references), prepared(hypotheses), unit=unit)
    errors, lengths = table[:, 1:].sum(1), table[:, :3].sum(1)

    def resample(weights: np.ndarray) -> np.ndarray:
        total = weights @ lengths
        return 100 * np.divide(weights @ errors, total, out=np.zeros(len(weights)), where=total > 0)

    settings = [
        f"metric:{unit}",
        f"case:{'lc' if lowercase else 'mixed'}",
        *([] if spaces else ["spaces:0"]),
        f"jiwer:{version('jiwer')}",
        f"nartk:{__version__}",
    ]
    return MetricResult(
        metric=unit,
        score=float(100 * errors.sum() / lengths.sum()),
        parts={
            **dict(zip(COUNTS, map(int, table.sum(0)), strict=True)),
            "reference_length": int(lengths.sum()),
            "wrong_sentences": int((errors > 0).sum()),
        },
        signature="|".join(settings),
        sentences=len(hypotheses),
        resample=resample,
        each=lambda: 100 * np.divide(errors, lengths, out=_without_words(errors), where=lengths > 0),
    )


def _without_words(errors: np.ndarray) -> np.ndarray:
    """The rates of sentences without a reference word, [N]: that of an error is not defined."""
    return np.where(errors > 0, np.nan, 0.0)


@register_metric("wer")
class WordErrorRate(Metric):
    """Word error rate by jiwer, percent."""

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("what was said; a blank line: nothing", blank=EMPTY)}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "wer HYP --ref REF"
    counts_errors: ClassVar[bool] = True

    lowercase: bool = option(False, "ignore case, as sclite does")

    def against(self, texts: Texts) -> Comparison:
        if len(texts.references) != 1:
            raise UsageError(
                f"{self.name} takes one reference, but there are {len(texts.references)}",
                fix=f"name one with {named('ref')}",
            )
        reference = [text for text in texts.references[0] if text is not None]
        return lambda outputs: [error_rate(reference, outputs, unit=self.name, **asdict(self))]


@register_metric("cer")
class CharacterErrorRate(WordErrorRate):
    """Character error rate by jiwer, percent."""

    example: ClassVar[str] = "cer HYP --ref REF --no-spaces"

    spaces: bool = option(True, "a space between words is a character too")
