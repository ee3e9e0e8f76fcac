"""Word, character and sentence error rates by jiwer: edits that make outputs of references, in percent.

Errors and reference words are summed over the corpus, as NIST's sclite does; a long output may have more
errors than its reference words. Of texts without alternatives in braces, substitutions, deletions and
insertions are those that sclite counts on its own test data; where two alignments have equally many errors,
the two programs may choose differently.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import ClassVar

import numpy as np

from nartk.errors import InputFileError, UsageError, named, requiring
from nartk.metrics.metric import EMPTY, Comparison, Corpus, Metric, Reads
from nartk.metrics.result import MetricResult, check_corpora, signature
from nartk.metrics.scripts import tell_unspaced
from nartk.registry import option, register_metric

# Normalisers by name: of Whisper's, that of English expands contractions, writes numbers in digits and spells
# as Americans do; the basic one takes brackets and punctuation away. Source: Radford et al. 2022, appendix C,
# https://arxiv.org/abs/2212.04356.
NONE = "none"
NORMALIZERS = {NONE: None, "english": "EnglishTextNormalizer", "basic": "BasicTextNormalizer"}
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
    process = jiwer.process_words if unit == "wer" else jiwer.process_characters
    first, second = ([" ".join(line.split()) for line in lines] for lines in (references, hypotheses))
    table = np.zeros((len(hypotheses), len(COUNTS)))
    for row, chunks in zip(table, process(first, second).alignments, strict=True):
        for chunk in chunks:
            # Either is 0 of what the other side has not.
            length = max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
            row[_CHUNKS.index(chunk.type)] += length
    return table


def normalizer(name: str) -> Callable[[str], str] | None:
    """The normaliser of a name of `NORMALIZERS`.

    Raises:
        UsageError: There is none of that name.
        MissingDependencyError: whisper-normalization is not installed.
    """
    if name not in NORMALIZERS:
        raise UsageError(f"there is no normaliser {name!r}", fix=f"choose one of {', '.join(NORMALIZERS)}")
    declared = NORMALIZERS[name]
    if declared is None:
        return None
    with requiring(f"{named('normalize', name)} needs the package whisper-normalization", "score"):
        import whisper_normalization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the file of spellings open
        made: Callable[[str], str] = getattr(whisper_normalization, declared)()
    return made


def without_punctuation(text: str) -> str:
    """A text with spaces for its punctuation, but for apostrophes within a word."""
    kept = [
        " " if unicodedata.category(char)[0] == "P" and not _joins(text, index) else char
        for index, char in enumerate(text)
    ]
    return "".join(kept)


def _joins(text: str, index: int) -> bool:
    around = (*text[max(index - 1, 0) : index], *text[index + 1 : index + 2])
    return text[index] in "'\u2019" and len(around) == 2 and all(map(str.isalnum, around))


def _without_words(errors: np.ndarray) -> np.ndarray:
    """The rates of sentences without a reference word, [N]: that of an error is not defined."""
    return np.where(errors > 0, np.nan, 0.0)


@register_metric("wer")
class WordErrorRate(Metric):
    """Word error rate by jiwer, percent."""

    reads: ClassVar[Mapping[str, Reads]] = {
        "ref": Reads("what was said; a blank line: nothing", blank=EMPTY, ids=True)
    }
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "wer HYP --ref REF"
    counts_errors: ClassVar[bool] = True
    unit: ClassVar[str] = "wer"  # of `error_statistics`
    spaces: ClassVar[bool] = True  # between words are compared

    lowercase: bool = option(False, "ignore case, as sclite does")
    normalize: str = option(
        NONE, "Whisper's normaliser of English, or of any language", choices=tuple(NORMALIZERS)
    )
    punctuation: bool = option(
        True, "punctuation counts; else it parts words, but for apostrophes within one"
    )

    def against(self, texts: Corpus) -> Comparison:
        if len(texts.references) != 1:
            raise UsageError(
                f"{self.name} takes one reference, but there are {len(texts.references)}",
                fix=f"name one with {named('ref')}",
            )
        reference = [*texts.lines()]
        prepare = self.preparation()
        if self.unit == "wer":
            tell_unspaced(map(prepare, reference), texts.tell, self.name, "use cer, which counts characters")
        return lambda outputs: [self._score(reference, outputs, prepare)]

    def preparation(self) -> Callable[[str], str]:
        """A function that gives the text of a line that is compared."""
        normalized = normalizer(self.normalize)

        def prepare(line: str) -> str:
            text = unicodedata.normalize("NFC", line)
            if normalized is not None:
                text = normalized(text)
            if not self.punctuation:
                text = without_punctuation(text)
            if self.lowercase:
                text = text.lower()
            return text if self.spaces else "".join(text.split())

        return cache(prepare)

    def _score(
        self, references: Sequence[str], hypotheses: Sequence[str], prepare: Callable[[str], str]
    ) -> MetricResult:
        """The corpus's error rate."""
        check_corpora(self.name, [references], hypothesis=hypotheses)
        texts = [[prepare(line) for line in lines] for lines in (references, hypotheses)]
        if not any(line.strip() for line in texts[0]):
            raise InputFileError("no reference holds a word", fix="give references that are not empty")
        table = error_statistics(*texts, unit=self.unit)
        errors, lengths = self._rated(table[:, 1:].sum(1), table[:, :3].sum(1))

        def resample(weights: np.ndarray) -> np.ndarray:
            total = weights @ lengths
            rates: np.ndarray = 100 * np.divide(
                weights @ errors, total, out=np.zeros(len(weights)), where=total > 0
            )
            return rates

        settings = (
            f"case:{'lc' if self.lowercase else 'mixed'}",
            "" if self.normalize == NONE else f"norm:{self.normalize}-{version('whisper-normalization')}",
            "" if self.punctuation else "punct:0",
            "" if self.spaces else "spaces:0",
            f"jiwer:{version('jiwer')}",
        )
        return MetricResult(
            metric=self.name,
            score=float(100 * errors.sum() / lengths.sum()),
            parts={
                **dict(zip(COUNTS, map(int, table.sum(0)), strict=True)),
                "reference_length": int(table[:, :3].sum()),
                "wrong_sentences": int((errors > 0).sum()),
            },
            signature=signature(self.name, *settings),
            sentences=len(hypotheses),
            resample=resample,
            each=lambda: 100 * np.divide(errors, lengths, out=_without_words(errors), where=lengths > 0),
        )

    def _rated(self, errors: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Errors of each sentence, and what their sum is divided by the sum of, [N] each."""
        return errors, lengths


@register_metric("cer")
class CharacterErrorRate(WordErrorRate):
    """Character error rate by jiwer, percent."""

    example: ClassVar[str] = "cer HYP --ref REF --no-spaces"
    unit: ClassVar[str] = "cer"

    spaces: bool = option(  # type: ignore[misc]
        True, "a space between words is a character too"
    )


@register_metric("ser")
class SentenceErrorRate(WordErrorRate):
    """Sentence error rate by jiwer: outputs with any wrong word, percent."""

    example: ClassVar[str] = "ser HYP --ref REF"

    def _rated(self, errors: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (errors > 0).astype(float), np.ones(len(errors))
