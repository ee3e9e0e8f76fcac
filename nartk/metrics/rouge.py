"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum as the package rouge-score computes them.

Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", https://aclanthology.org/W04-1013.
The package follows the original program, ROUGE-1.5.5, and equals it for one reference to the five digits that
it prints. Of several references it takes, for each type, the one with the highest F, as summarization papers
report; ROUGE-1.5.5 pools all (`-f A`) or takes the one with the highest recall (`-f B`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from nartk.errors import InputFileError, UsageError, named, requiring
from nartk.metrics.metric import Comparison, Corpus, Metric, Reads
from nartk.metrics.result import MetricResult, References, check_corpora, counted, signature
from nartk.metrics.scripts import tell_unspaced
from nartk.registry import option, register_metric

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
MEASURES = ("precision", "recall", "fmeasure")
F = MEASURES.index("fmeasure")
ORIGINAL = "original"
# Shares of the references' letters and digits that are of ASCII: below the first the original's tokeniser
# sees too little to score, below the second the user is told.
ENOUGH, ALL = 0.5, 0.99

_category = cache(unicodedata.category)


def _known(text: str) -> Iterator[str]:
    """Letters, marks and numbers of a text in lower case, and a space for each of the others."""
    for char in unicodedata.normalize("NFC", text.lower()):
        yield char if _category(char)[0] in "LMN" else " "


def unicode_words(text: str) -> list[str]:
    """Words of a text in lower case: runs of letters, marks and numbers of any script."""
    return "".join(_known(text)).split()


def characters(text: str) -> list[str]:
    """Letters and numbers of a text in lower case, each with its marks; punctuation is left out."""
    found: list[str] = []
    for char in _known(text):
        if found and _category(char)[0] == "M":
            found[-1] += char
        elif char != " ":
            found.append(char)
    return found


TOKENIZERS: dict[str, Callable[[str], list[str]] | None] = {
    ORIGINAL: None,  # rouge-score's own
    "unicode": unicode_words,
    "char": characters,
}


def ascii_share(texts: Iterable[str]) -> float:
    """The share of the letters and digits of texts that the original's tokeniser keeps; without any, 0."""
    kept = total = 0
    for text in texts:
        found = [char for char in text if char.isalnum()]
        total += len(found)
        kept += sum(map(str.isascii, found))
    return kept / total if total else 0.0


def rouge_statistics(
    references: References,
    hypotheses: Sequence[str],
    *,
    stem: bool = False,
    separator: str = "",
    tokenize: str = ORIGINAL,
) -> np.ndarray:
    """Precision, recall and F of each text against each of its references, [N, R, types, 3] float64.

    Args:
        references: R corpora of N texts each; None scores 0.
        stem: Apply Porter's stemmer to words of more than three letters.
        separator: Separator of the sentences of a text, for ROUGE-Lsum; empty: each is one sentence.
        tokenize: One of `TOKENIZERS`.

    Raises:
        MissingDependencyError: rouge-score is not installed.
        UsageError: There is no such tokeniser, or it has no stemmer.
    """
    if tokenize not in TOKENIZERS:
        raise UsageError(f"rouge has no tokeniser {tokenize!r}", fix=f"choose one of {', '.join(TOKENIZERS)}")
    split = TOKENIZERS[tokenize]
    if stem and split is not None:
        raise UsageError(
            f"{named('stem', True)} with {named('tokenize', tokenize)}, but Porter's stemmer is for English",
            fix=f"leave {named('stem')} out, or use {named('tokenize', ORIGINAL)}",
        )
    with requiring("rouge needs the package rouge-score", "score"):
        from rouge_score.rouge_scorer import RougeScorer
    tokenizer = None if split is None else SimpleNamespace(tokenize=split)
    scorer = RougeScorer(list(TYPES), use_stemmer=stem, tokenizer=tokenizer)

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


def _result(name: str, scores: np.ndarray, references: int, made_by: str) -> MetricResult:
    """The result of one type from its scores [N, 3]."""
    precision, recall, f = scores.mean(0).tolist()
    return MetricResult(
        metric=name,
        score=f,
        parts={"precision": precision, "recall": recall, "references": references},
        signature=made_by,
        sentences=len(scores),
        resample=lambda weights: weights @ scores[:, F] / weights.sum(1),
        each=lambda: scores[:, F],
    )


@register_metric("rouge")
class Rouge(Metric):
    """ROUGE-1, 2, L and Lsum F by rouge-score, 0 to 1.

    Words are runs of a to z and 0 to 9, in either case. With `tokenize` ``unicode`` they are runs of letters,
    marks and numbers of any script, with ``char`` each of these is a word.
    """

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references, of which the best counts")}
    digits: ClassVar[int] = 5
    example: ClassVar[str] = "rouge HYP --ref REF0 REF1"

    stem: bool = option(False, "Porter's stemmer, as ROUGE-1.5.5 with -m")
    separator: str = option("", "what parts the sentences of a line, for ROUGE-Lsum")

    tokenize: str = option(
        ORIGINAL,
        "words of a to z and 0 to 9, as ROUGE-1.5.5; of letters and digits of all scripts; or characters",
        choices=tuple(TOKENIZERS),
    )

    def against(self, texts: Corpus) -> Comparison:
        split = TOKENIZERS[self.tokenize]
        if split is not None:
            tell_unspaced(
                (" ".join(split(text)) for text in texts.lines()),
                texts.tell,
                f"{self.name} with {named('tokenize', self.tokenize)}",
                fix=f"use {named('tokenize', 'char')}",
            )
        elif ENOUGH <= (share := ascii_share(texts.lines())) < ALL:
            texts.tell(
                f"rouge counts a to z and 0 to 9, which are {share:.1%} of the references' letters and "
                f"digits, and parts words at the others: use {named('tokenize', 'unicode')}"
            )
        return lambda outputs: self._score(texts, outputs)

    def _score(self, texts: Corpus, hypotheses: Sequence[str]) -> list[MetricResult]:
        """A result of each type: F, the mean over texts."""
        references = texts.references
        check_corpora("rouge", references, hypothesis=hypotheses)
        if not any(char.isalnum() for text in texts.lines() for char in text):
            raise InputFileError(
                "no reference holds a letter or a digit", fix="give references that are not empty"
            )
        if self.tokenize == ORIGINAL and (share := ascii_share(texts.lines())) < ENOUGH:
            raise InputFileError(
                f"rouge counts a to z and 0 to 9, which are {share:.1%} of the references' letters and "
                "digits",
                fix=f"use {named('tokenize', 'unicode')}, or, where no spaces part words, "
                f"{named('tokenize', 'char')}",
            )
        table = rouge_statistics(references, hypotheses, **asdict(self))
        best = table[..., F].argmax(1)  # [N, types]
        scores = np.take_along_axis(table, best[:, None, :, None], 1)[:, 0]  # -> [N, types, 3]
        made_by = signature(
            "rouge",
            f"refs:{counted(references)}",
            "best:F" if len(references) > 1 else "",
            f"stem:{int(self.stem)}",
            f"sep:{self.separator or 'none'}",
            "" if self.tokenize == ORIGINAL else f"tok:{self.tokenize}",
            f"rouge-score:{version('rouge-score')}",
        )
        return [
            _result(name, scores[:, number], len(references), made_by) for number, name in enumerate(TYPES)
        ]
