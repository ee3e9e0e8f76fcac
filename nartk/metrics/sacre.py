"""BLEU and chrF as sacrebleu computes them, with its signature. Source: https://aclanthology.org/W18-6319."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nartk.errors import MissingDependencyError, UsageError, requiring
from nartk.metrics.metric import Comparison, Metric, Reads, Texts
from nartk.metrics.result import MetricResult, References, check_corpora
from nartk.registry import option, register_metric

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric


def bleu_score(
    references: References,
    hypotheses: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> MetricResult:
    """Corpus BLEU, 0 to 100.

    Args:
        references: R corpora of N sentences; None: there is none.
        tokenize: sacrebleu's tokeniser; `none` for text that is tokenised already.

    Raises:
        MissingDependencyError: sacrebleu, or what its tokeniser needs, is not installed.
        UsageError: There is no such tokeniser.
        LengthMismatchError: The corpora differ in length.
    """
    metric = _bleu(tokenize, lowercase=lowercase, force=True)
    return _score("bleu", metric, references, hypotheses)


def sentence_bleu(tokenize: str = "13a") -> Callable[[str, str], float]:
    """A function that gives the BLEU of a hypothesis against a reference, 0 to 100.

    Orders of n-grams that a short sentence cannot have do not count (sacrebleu's `effective_order`).
    Raises as `bleu_score` does.
    """
    metric = _bleu(tokenize, effective_order=True)
    return lambda hypothesis, reference: float(metric.sentence_score(hypothesis, [reference]).score)


def tokenizer(tokenize: str, *, lowercase: bool = False) -> Callable[[str], str]:
    """A function that parts the tokens of a sentence by spaces, as BLEU counts them.

    Raises as `bleu_score` does.
    """
    prepare: Callable[[str], str] = _bleu(tokenize, lowercase=lowercase)._preprocess_segment
    return prepare


def _bleu(tokenize: str, **settings: bool) -> Any:
    sacrebleu = _import_sacrebleu()
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        names = ", ".join(sorted(sacrebleu.BLEU.TOKENIZERS))
        raise UsageError(f"sacrebleu has no tokeniser {tokenize!r}", fix=f"choose one of {names}")
    try:
        return sacrebleu.BLEU(tokenize=tokenize, **settings)
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise MissingDependencyError(f"the tokeniser {tokenize!r} cannot start: {reason}") from error


def chrf_score(
    references: References,
    hypotheses: Sequence[str],
    *,
    word_order: int = 0,
    lowercase: bool = False,
) -> MetricResult:
    """Corpus chrF2, 0 to 100; with `word_order` 2 it is chrF2++.

    Raises:
        MissingDependencyError: sacrebleu is not installed.
        LengthMismatchError: The corpora differ in length.
    """
    metric = _import_sacrebleu().CHRF(word_order=word_order, lowercase=lowercase)
    return _score("chrf", metric, references, hypotheses)


def _import_sacrebleu() -> Any:
    with requiring("bleu, chrf and sari need the package sacrebleu", "score"):
        import sacrebleu
    return sacrebleu


def _score(name: str, metric: SacreMetric, references: References, hypotheses: Sequence[str]) -> MetricResult:
    check_corpora(name, references, hypothesis=hypotheses)
    # sacrebleu's own significance tests stand on these two methods; it has no public way to resample.
    rows = metric._extract_corpus_statistics(hypotheses, references)  # type: ignore[arg-type]
    result = metric._aggregate_and_compute(rows)
    statistics = np.array(rows, dtype=np.float64)  # [N, columns]

    def resample(weights: np.ndarray) -> np.ndarray:
        return np.array(
            [metric._compute_score_from_stats(row).score for row in (weights @ statistics).tolist()]
        )

    parts: dict[str, Any] = {"references": len(references)}
    if name == "bleu":
        parts |= {
            "precisions": list(result.precisions),
            "brevity_penalty": result.bp,
            "hypothesis_length": result.sys_len,
            "reference_length": result.ref_len,
            "counts": list(result.counts),
            "totals": list(result.totals),
        }
    else:
        parts |= {"char_order": result.char_order, "word_order": result.word_order, "beta": result.beta}
    return MetricResult(
        metric=name,
        score=float(result.score),
        parts=parts,
        signature=metric.get_signature().format(),
        sentences=len(hypotheses),
        resample=resample,
    )


@register_metric("bleu")
class Bleu(Metric):
    """BLEU by sacrebleu, 0 to 100."""

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references")}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "bleu HYP --ref REF --tokenize none"

    tokenize: str = option("13a", "sacrebleu's tokeniser")
    lowercase: bool = option(False, "ignore case")

    def against(self, texts: Texts) -> Comparison:
        return lambda outputs: [
            bleu_score(texts.references, outputs, tokenize=self.tokenize, lowercase=self.lowercase)
        ]


@register_metric("chrf")
class Chrf(Metric):
    """chrF by sacrebleu, 0 to 100."""

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references")}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "chrf HYP --ref REF --word-order 2"

    word_order: int = option(0, "2 gives chrF++", low=0)
    lowercase: bool = option(False, "ignore case")

    def against(self, texts: Texts) -> Comparison:
        return lambda outputs: [
            chrf_score(texts.references, outputs, word_order=self.word_order, lowercase=self.lowercase)
        ]
