"""GLEU for grammatical error correction: BLEU that punishes n-grams the source should have lost.

Sources: Napoles et al. 2015, "Ground Truth for Grammatical Error Correction Metrics",
https://aclanthology.org/P15-2097; Napoles et al. 2016, "GLEU Without Tuning",
https://arxiv.org/abs/1605.02592, which draws one reference a sentence, many times over, and averages.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

import numpy as np

from nartk.metrics.metric import Comparison, Corpus, Metric, Reads
from nartk.metrics.result import (
    MetricResult,
    References,
    check_corpora,
    counted,
    present,
    reference_counts,
    signature,
)
from nartk.metrics.scripts import tell_unspaced
from nartk.registry import option, register_metric

ORDER = 4  # longest n-gram, tokens
ITERATIONS = 500
SEED_STEP = 101  # iteration k draws its references with the seed 101 k
BLOCK = 5_000_000  # numbers held at once while iterations are summed

T = TypeVar("T", bytes, str)


def ngrams(tokens: Sequence[T]) -> list[Counter[tuple[T, ...]]]:
    """Counts of the n-grams, for each n up to `ORDER`."""
    return [
        Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) + 1 - n)) for n in range(1, ORDER + 1)
    ]


def _split(line: str) -> list[bytes]:
    # The original reads bytes: a no-break space, for one, does not separate its tokens.
    return line.encode().split()


def gleu_statistics(sources: Sequence[str], references: References, hypotheses: Sequence[str]) -> np.ndarray:
    """Sufficient statistics of each sentence against each of its references, [N, R, 2 + 2 ORDER] float64.

    The columns are hypothesis length and reference length, tokens; then for each n the matches less the
    penalty (at least 0) and the n-grams of the hypothesis. The penalty counts hypothesis n-grams that the
    source has and the reference has not at all.

    Args:
        references: R reference corpora of N sentences each. Those that a sentence has come first in its row;
            the rest is 0.
    """
    table = np.zeros((len(hypotheses), len(references), 2 + 2 * ORDER))
    for row, line in enumerate(hypotheses):
        hypothesis = _split(line)
        hypothesis_grams, source_grams = ngrams(hypothesis), ngrams(_split(sources[row]))
        done: dict[str, np.ndarray] = {}
        for column, reference_line in enumerate(present(references, row)):
            if reference_line not in done:
                reference = _split(reference_line)
                numbers = [len(hypothesis), len(reference)]
                for n, grams in enumerate(ngrams(reference)):
                    counts = hypothesis_grams[n]
                    lost = Counter({g: c for g, c in source_grams[n].items() if g not in grams})
                    numbers += [max((counts & grams).total() - (counts & lost).total(), 0), counts.total()]
                done[reference_line] = np.array(numbers, dtype=np.float64)
            table[row, column] = done[reference_line]
    return table


def gleu_of(statistics: np.ndarray) -> np.ndarray:
    """GLEU of summed statistics [..., 2 + 2 ORDER] -> [...]; 0 where any of them is 0."""
    usable = np.asarray((statistics > 0).all(axis=-1))
    safe = np.where(usable[..., None], statistics, 1.0)
    precision = np.log(safe[..., 2::2] / safe[..., 3::2]).sum(axis=-1) / ORDER
    brevity = np.minimum(0.0, 1.0 - safe[..., 1] / safe[..., 0])
    return np.where(usable, np.exp(brevity + precision), 0.0)


def sentence_gleu(statistics: np.ndarray, references: Sequence[int]) -> np.ndarray:
    """GLEU of single sentences, the mean over their references, as `compute_gleu -d` prints it, [N].

    A statistic that is 0 counts as 1.

    Args:
        statistics: [N, R, 2 + 2 ORDER], as `gleu_statistics` gives them.
        references: Number of references of each sentence.
    """
    scores = gleu_of(np.where(statistics == 0, 1.0, statistics))  # [N, R]
    there = np.arange(scores.shape[1]) < np.array(references)[:, None]
    means: np.ndarray = (scores * there).sum(1) / there.sum(1)
    return means


def draw_references(references: Sequence[int], iterations: int) -> np.ndarray:
    """Indices of the references that each iteration draws for each sentence, [iterations, N] int64.

    Python 2 drew a number from a range as `int(random() * width)`; its generator is that of Python 3.
    """
    drawn = np.empty((iterations, len(references)), dtype=np.int64)
    for k in range(iterations):
        draw = random.Random(SEED_STEP * k).random
        drawn[k] = [int(draw() * many) for many in references]
    return drawn


@register_metric("gleu")
class Gleu(Metric):
    """GLEU for grammar, 0 to 1."""

    reads: ClassVar[Mapping[str, Reads]] = {
        "source": Reads("uncorrected sentences"),
        "ref": Reads("corrected sentences"),
    }
    digits: ClassVar[int] = 6
    example: ClassVar[str] = "gleu HYP --source SRC --ref REF0 REF1"

    iterations: int = option(ITERATIONS, "draws of references", low=1)

    def against(self, texts: Corpus) -> Comparison:
        tell_unspaced(texts.lines(), texts.tell, self.name, "put spaces between words or characters")
        return lambda outputs: [self._score(texts, outputs)]

    def _score(self, texts: Corpus, hypotheses: Sequence[str]) -> MetricResult:
        """The mean over the draws; with a single reference there is nothing to draw, and one says it all."""
        sources, references = texts.sources, texts.references
        check_corpora("GLEU", references, source=sources, hypothesis=hypotheses)
        statistics, counts = gleu_statistics(sources, references, hypotheses), reference_counts(references)
        sentences, width, columns = statistics.shape
        iterations = 1 if max(counts) == 1 else self.iterations
        drawn = draw_references(counts, iterations)
        rows = np.arange(sentences)
        block = max(1, BLOCK // (sentences * columns))

        def samples() -> Iterator[np.ndarray]:
            """Statistics of some iterations at a time, [k, N, columns]."""
            for start in range(0, iterations, block):
                yield statistics[rows, drawn[start : start + block]]

        scores = np.concatenate([gleu_of(sample.sum(axis=1)) for sample in samples()])

        def resample(weights: np.ndarray) -> np.ndarray:
            total = np.zeros(len(weights))
            for sample in samples():
                # [K, N] @ [N, k * columns] -> [K, k, columns]
                flat = sample.transpose(1, 0, 2).reshape(sentences, -1)
                total += gleu_of((weights @ flat).reshape(len(weights), -1, columns)).sum(axis=1)
            return total / iterations

        return MetricResult(
            metric="gleu",
            score=float(scores.mean()),
            parts={"std": float(scores.std()), "references": width, "iterations": iterations, "order": ORDER},
            signature=signature(
                "gleu", f"refs:{counted(references)}", f"iterations:{iterations}", f"order:{ORDER}"
            ),
            sentences=sentences,
            resample=resample,
            each=lambda: sentence_gleu(statistics, counts),
        )
