"""BLEU, chrF and TER as sacrebleu computes them, with its signature. Source: aclanthology.org/W18-6319."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nartk.errors import MissingDependencyError, UsageError, named, requiring
from nartk.metrics.metric import Comparison, Corpus, Metric, Reads, Tell
from nartk.metrics.result import MetricResult, References, check_corpora
from nartk.metrics.scripts import tell_unspaced
from nartk.registry import option, register_metric

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric


_MOST_LOGGED = 1_000_000  # records
# Parts of a result under sacrebleu's names.
_PARTS: dict[str, dict[str, str]] = {
    "bleu": {
        "precisions": "precisions",
        "brevity_penalty": "bp",
        "hypothesis_length": "sys_len",
        "reference_length": "ref_len",
        "counts": "counts",
        "totals": "totals",
    },
    "ter": {"edits": "num_edits", "reference_length": "ref_length"},
    "chrf": {name: name for name in ("char_order", "word_order", "beta")},
}


def sentence_bleu(tokenize: str = "13a") -> Callable[[str, str], float]:
    """A function that gives the BLEU of a hypothesis against a reference, 0 to 100.

    Orders of n-grams that a short sentence cannot have do not count (sacrebleu's `effective_order`).

    Raises:
        MissingDependencyError: sacrebleu, or what its tokeniser needs, is not installed.
        UsageError: There is no such tokeniser.
    """
    metric = _bleu(tokenize, effective_order=True)
    return lambda hypothesis, reference: float(metric.sentence_score(hypothesis, [reference]).score)


def tokenizer(tokenize: str, *, lowercase: bool = False) -> Callable[[str], str]:
    """A function that parts the tokens of a sentence by spaces, as BLEU counts them.

    Raises as `sentence_bleu` does.
    """
    prepare: Callable[[str], str] = _bleu(tokenize, lowercase=lowercase)._preprocess_segment
    return prepare


def tell_unspaced_tokens(texts: Corpus, metric: str, split: Callable[[str], str], tokenize: str) -> None:
    """Tells the user where a tokeniser of sacrebleu leaves words together that no spaces part."""
    tell_unspaced(
        map(split, texts.lines()),
        texts.tell,
        f"{metric} with {named('tokenize', tokenize)}",
        fix=f"use {named('tokenize', 'char')}",
        Chinese=f"use {named('tokenize', 'zh')}",
        Japanese=f"use {named('tokenize', 'ja-mecab')}, or {named('tokenize', 'char')}",
    )


@contextmanager
def _passing_on(tell: Tell) -> Iterator[None]:
    """Tells the user in one line what sacrebleu logs within, but for its advice on an option of its own."""
    logger, logged = logging.getLogger("sacrebleu"), BufferingHandler(_MOST_LOGGED)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(logged)
    try:
        yield
    finally:
        logger.removeHandler(logged)
        logger.propagate = propagates
    messages = (record.getMessage() for record in logged.buffer)
    warned = [message.rstrip(".") for message in messages if "`force`" not in message]
    if warned:
        tell(f"sacrebleu: {'. '.join(warned)}. Detokenize it, or use {named('tokenize', 'none')}")


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


def _import_sacrebleu() -> Any:
    with requiring("bleu, chrf, ter and sari need the package sacrebleu", "score"):
        import sacrebleu
    return sacrebleu


def _score(
    name: str,
    metric: SacreMetric,
    references: References,
    hypotheses: Sequence[str],
    sentence: SacreMetric | None = None,
) -> MetricResult:
    """The result of a metric; `sentence` scores single sentences where the metric's settings differ there."""
    check_corpora(name, references, hypothesis=hypotheses)
    # sacrebleu's own significance tests stand on these two methods; it has no public way to resample.
    rows = metric._extract_corpus_statistics(hypotheses, references)  # type: ignore[arg-type]
    result = metric._aggregate_and_compute(rows)
    statistics = np.array(rows, dtype=np.float64)  # [N, columns]

    def scores(of: SacreMetric, rows: Sequence[list[float]]) -> np.ndarray:
        return np.array([of._compute_score_from_stats(row).score for row in rows])

    parts = {"references": len(references)}
    parts |= {part: getattr(result, theirs) for part, theirs in _PARTS[name].items()}
    return MetricResult(
        metric=name,
        score=float(result.score),
        parts=parts,
        signature=metric.get_signature().format(),
        sentences=len(hypotheses),
        resample=lambda weights: scores(metric, (weights @ statistics).tolist()),
        each=lambda: scores(metric if sentence is None else sentence, rows),
    )


@register_metric("bleu")
class Bleu(Metric):
    """BLEU by sacrebleu, 0 to 100."""

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references")}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "bleu HYP --ref REF --tokenize none"

    tokenize: str = option("13a", "sacrebleu's tokeniser; none for text that is tokenised already")
    lowercase: bool = option(False, "ignore case")

    def against(self, texts: Corpus) -> Comparison:
        metric = _bleu(self.tokenize, lowercase=self.lowercase, force=self.tokenize == "none")
        sentence = _bleu(self.tokenize, lowercase=self.lowercase, effective_order=True)
        tell_unspaced_tokens(texts, self.name, metric._preprocess_segment, self.tokenize)

        def compare(outputs: Sequence[str]) -> list[MetricResult]:
            with _passing_on(texts.tell):
                return [_score("bleu", metric, texts.references, outputs, sentence)]

        return compare


@register_metric("chrf")
class Chrf(Metric):
    """chrF by sacrebleu, 0 to 100."""

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references")}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "chrf HYP --ref REF --word-order 2"

    word_order: int = option(0, "2 gives chrF++", low=0)
    lowercase: bool = option(False, "ignore case")

    def against(self, texts: Corpus) -> Comparison:
        metric = _import_sacrebleu().CHRF(word_order=self.word_order, lowercase=self.lowercase)
        return lambda outputs: [_score("chrf", metric, texts.references, outputs)]


@register_metric("ter")
class TranslationEditRate(Metric):
    """Translation edit rate by sacrebleu, percent.

    Edits of words, and shifts of several, to the nearest reference, by the mean length of the references.
    Lower is better, and long outputs may exceed 100.
    Source: Snover et al. 2006, https://aclanthology.org/2006.amta-papers.25.
    """

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("references, of which the nearest counts")}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "ter HYP --ref REF"
    counts_errors: ClassVar[bool] = True

    normalized: bool = option(False, "split punctuation off, as Tercom's -N")
    no_punct: bool = option(False, "leave punctuation out, as Tercom's -P")
    asian: bool = option(False, "with one of these two, each Chinese or Japanese character is a word")
    keep_case: bool = option(False, "do not ignore case")

    def against(self, texts: Corpus) -> Comparison:
        if self.asian and not (self.normalized or self.no_punct):
            both = f"{named('normalized', True)} or {named('no_punct', True)}"
            raise UsageError(f"{named('asian', True)} changes what {both} does", fix=f"give {both} too")
        metric = _import_sacrebleu().TER(
            normalized=self.normalized,
            no_punct=self.no_punct,
            asian_support=self.asian,
            case_sensitive=self.keep_case,
        )
        fix = f"use {named('normalized', True)} {named('asian', True)}"
        tell_unspaced(
            map(metric._preprocess_segment, texts.lines()),
            texts.tell,
            self.name,
            fix="put spaces between words",
            Chinese=fix,
            Japanese=fix,
        )
        return lambda outputs: [_score("ter", metric, texts.references, outputs)]
