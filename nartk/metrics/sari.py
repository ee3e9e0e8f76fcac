"""SARI for text simplification: how well a system adds, keeps and deletes the n-grams of its source.

Source: Xu et al. 2016, "Optimizing Statistical Machine Translation for Text Simplification", section 4.2,
https://aclanthology.org/Q16-1029. Published numbers differ in how they read it:

- The default is what EASSE reports (Alva-Manchego et al. 2019, https://aclanthology.org/D19-3009): counts are
  summed over the corpus; for each length n an F of additions, one of what is kept and one of deletions; then
  means over n and over the three. Source, output and references are tokenised and lower-cased alike, where
  the first programs tokenised all but the source.
- `level="sentence"` scores each sentence so and takes the mean of all.
- `deletion="precision"` takes the precision of deletions in place of their F, as the paper does, because to
  delete too much harms more than to delete too little.

The authors' Python script, `SARI.py`, gives each n-gram that is kept or deleted a ratio of its counts and
takes the mean of these, where EASSE divides the sums: it differs where the references disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from nartk.metrics.gleu import ORDER, ngrams
from nartk.metrics.metric import Comparison, Corpus, Metric, Reads
from nartk.metrics.result import MetricResult, check_corpora, counted, present, signature
from nartk.metrics.sacre import tell_unspaced_tokens, tokenizer
from nartk.registry import option, register_metric

OPERATIONS = ("add", "keep", "delete")
LEVELS = ("corpus", "sentence")
DELETIONS = ("f1", "precision")


def sari_statistics(source: str, references: Sequence[str], hypothesis: str) -> np.ndarray:
    """Counts of one sentence, [ORDER, 3 operations, 3] float64: correct, done by the system, asked for.

    An n-gram is added once, however often it is added. What is kept and deleted counts as often as it is, the
    source's and the output's R times for R references.

    Args:
        source, hypothesis: Tokens separated by white space, as those of the R references.
    """
    many = len(references)
    grams = zip(
        ngrams(source.split()),
        ngrams(hypothesis.split()),
        zip(*(ngrams(reference.split()) for reference in references), strict=True),
        strict=True,
    )
    table = np.zeros((ORDER, len(OPERATIONS), 3))
    for n, (before, after, wanted_by_each) in enumerate(grams):
        wanted: Counter[tuple[str, ...]] = sum(wanted_by_each, Counter())
        had = Counter({gram: many * count for gram, count in before.items()})
        produced = Counter({gram: many * count for gram, count in after.items()})
        pairs = (
            (Counter(after.keys() - before.keys()), Counter(wanted.keys() - before.keys())),
            (had & produced, had & wanted),
            (had - produced, had - wanted),
        )
        for row, (done, asked) in zip(table[n], pairs, strict=True):
            row[:] = (done & asked).total(), done.total(), asked.total()
    return table


def sari_operations(statistics: np.ndarray, *, deletion: str = "f1") -> np.ndarray:
    """Scores, 0 to 100, of the operations of summed counts: [..., ORDER, 3, 3] -> [..., 3].

    Where neither the system nor the references do anything, the score is 0.
    """
    correct, done, asked = np.moveaxis(statistics, -1, 0)  # [..., ORDER, 3 operations] each
    # 2 P R / (P + R) with P = correct / done and R = correct / asked
    below, above = done + asked, 2 * correct
    if deletion == "precision":
        delete = OPERATIONS.index("delete")
        below[..., delete], above[..., delete] = done[..., delete], correct[..., delete]
    scores = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    means: np.ndarray = 100 * scores.mean(-2)
    return means


@register_metric("sari")
class Sari(Metric):
    """SARI for simplification, 0 to 100."""

    reads: ClassVar[Mapping[str, Reads]] = {
        "source": Reads("sentences to simplify"),
        "ref": Reads("simplified sentences"),
    }
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "sari HYP --source SRC --ref REF0 REF1"

    level: str = option(
        "corpus", "counts summed over the corpus, as EASSE, or the mean of sentences", choices=LEVELS
    )
    deletion: str = option(
        "f1",
        "what counts of deletions: their F, as EASSE, or their precision, as the paper",
        choices=DELETIONS,
    )
    tokenize: str = option("13a", "sacrebleu's tokeniser")
    keep_case: bool = option(False, "do not ignore case")

    def against(self, texts: Corpus) -> Comparison:
        split = tokenizer(self.tokenize, lowercase=not self.keep_case)
        tell_unspaced_tokens(texts, self.name, split, self.tokenize)
        return lambda outputs: [self._score(texts, outputs, split)]

    def _score(self, texts: Corpus, hypotheses: Sequence[str], split: Callable[[str], str]) -> MetricResult:
        """The score of the corpus. An empty reference deletes all; None is no reference."""
        sources, references, level = texts.sources, texts.references, self.level
        check_corpora("SARI", references, source=sources, hypothesis=hypotheses)
        statistics = np.array(
            [
                sari_statistics(
                    split(source), [split(line) for line in present(references, row)], split(hypothesis)
                )
                for row, (source, hypothesis) in enumerate(zip(sources, hypotheses, strict=True))
            ]
        )  # [N, ORDER, 3 operations, 3]
        if level == "sentence":
            rows = sari_operations(statistics, deletion=self.deletion)  # [N, 3 operations]
        else:
            rows = statistics.reshape(len(sources), -1)

        def operations(weights: np.ndarray) -> np.ndarray:
            """[K, N] -> [K, 3]"""
            if level == "sentence":
                means: np.ndarray = weights @ rows / weights.sum(1, keepdims=True)
                return means
            return sari_operations(
                (weights @ rows).reshape(-1, *statistics.shape[1:]), deletion=self.deletion
            )

        scores = operations(np.ones((1, len(sources))))[0].tolist()
        settings = (
            f"level:{level}",
            f"del:{self.deletion}",
            f"refs:{counted(references)}",
            f"case:{'mixed' if self.keep_case else 'lc'}",
            f"tok:{self.tokenize}",
            f"order:{ORDER}",
        )
        return MetricResult(
            metric="sari",
            score=sum(scores) / len(scores),
            parts={**dict(zip(OPERATIONS, scores, strict=True)), "references": len(references)},
            signature=signature("sari", *settings),
            sentences=len(sources),
            resample=lambda weights: operations(weights).mean(1),
            each=lambda: sari_operations(statistics, deletion=self.deletion).mean(-1),
        )
