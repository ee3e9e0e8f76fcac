"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum as the package rouge-score computes them.

Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", https://aclanthology.org/W04-1013.
The package follows the original program, ROUGE-1.5.5, and equals it for one reference to the five digits that
it prints. Of several references it takes, for each type, the one with the highest F, as summarization papers
report; ROUGE-1.5.5 pools all (`-f A`) or takes the one with the highest recall (`-f B`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import ClassVar

import numpy as np

from nartk import __version__
from nartk.errors import InputFileError, requiring
from nartk.metrics.metric import Comparison, Metric, Reads, Texts
from nartk.metrics.result import MetricResult, References, check_corpora, counted
from nartk.registry import option, register_metric

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
MEASURES = ("precision", "recall", "fmeasure")
F = MEASURES.index("fmeasure")


def rouge_statistics(
    references: References,
    hypotheses: Sequence[str],
    *,
    stem: bool = False,
    separator: str = "",
) -> np.ndarray:
    """Precision, recall and F of each text against each of its references, [N, R, types, 3] float64.

    Args:
        references: R corpora of N texts each; None scores 0.
        stem: Whether Porter's stemmer cuts words of more than three letters.
        separator: What stands between the sentences of a text, for ROUGE-Lsum; empty: each is one sentence.

    Raises:
        MissingDependencyError: rouge-score is not installed.
    """
    with requiring("rouge needs the package rouge-score", "score"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(list(TYPES), use_stemmer=stem)

    def lines(text: str) -> str:
        return text.replace(separator, "\n") if separator else text

    table = np.zeros((len(hypotheses), len(references), len(TYPES), len(MEASURES)))
    for row, hypothesis in enumerate(hypotheses):
        for column, reference in enumerate(corpus[row] for corpus in references):
            if reference is None:
                continue
            scores = scorer.score(lines(reference), lines(hypothesis))
            table[row, column] = [[getattr(scores[name], part) for part in MEASURES] for name in TYPES]
    return table


def rouge_score(
    references: References,
    hypotheses: Sequence[str],
    *,
    stem: bool = False,
    separator: str = "",
) -> list[MetricResult]:
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum, 0 to 1: F, the mean over texts.

    Words are what is written with a to z and 0 to 9, in either case; all else parts them.

    Args:
        references: R corpora of N texts; None: there is none.
        stem: Whether Porter's stemmer cuts words of more than three letters.
        separator: What stands between the sentences of a text, for ROUGE-Lsum; without it that is ROUGE-L.

    Raises:
        MissingDependencyError: rouge-score is not installed.
        InputFileError: There is no reference, no text, or no reference holds a word.
        LengthMismatchError: The corpora differ in length.
    """
    check_corpora("rouge", references, hypothesis=hypotheses)
    if not any(
        char.isascii() and char.isalnum() for texts in references for text in texts for char in text or ""
    ):
        raise InputFileError(
            "no reference holds a letter a to z or a digit", fix="score other scripts with bleu or chrf"
        )
    table = rouge_statistics(references, hypotheses, stem=stem, separator=separator)
    best = table[..., F].argmax(1)  # [N, types]
    scores = np.take_along_axis(table, best[:, None, :, None], 1)[:, 0]  # -> [N, types, 3]
    settings = [
        "metric:rouge",
        f"refs:{counted(references)}",
        *(["best:F"] if len(references) > 1 else []),
        f"stem:{int(stem)}",
        f"sep:{separator or 'none'}",
        f"rouge-score:{version('rouge-score')}",
        f"nartk:{__version__}",
    ]
    return [
        _result(name, scores[:, number], len(references), "|".join(settings))
        for number, name in enumerate(TYPES)
    ]


def _result(name: str, scores: np.ndarray, references: int, signature: str) -> MetricResult:
    """The result of one type from its scores [N, 3]."""
    precision, recall, f = scores.mean(0).tolist()

    def resample(weights: np.ndarray) -> np.ndarray:
        return weights @ scores[:, F] / weights.sum(1)

    return MetricResult(
        metric=name,
        score=f,
        parts={"precision": precision, "recall": recall, "references": references},
        signature=signature,
        sentences=len(scores),
        resample=resample,
    )


@register_metric("rouge")
class Rouge(Metric):
    """ROUGE-1, 2, L and Lsum F by rouge-score, 0 to 1."""

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references, of which the best counts")}
    digits: ClassVar[int] = 5
    example: ClassVar[str] = "rouge HYP --ref REF0 REF1"

    stem: bool = option(False, "Porter's stemmer, as ROUGE-1.5.5 with -m")
    separator: str = option("", "what parts the sentences of a line, for ROUGE-Lsum")

    def against(self, texts: Texts) -> Comparison:
        return lambda outputs: rouge_score(
            texts.references, outputs, stem=self.stem, separator=self.separator
        )
