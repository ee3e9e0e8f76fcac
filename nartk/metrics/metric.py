"""Base of metrics: options, the files that they read besides outputs, and scoring a file of outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np

from nartk.data.m2 import M2Sentence, read_m2
from nartk.errors import InputFileError, named
from nartk.files import read_lines, shown
from nartk.metrics.result import MetricResult, References, check_lengths
from nartk.metrics.utterances import AUTO, NO, YES, are_matched, in_order, split_ids

Scorer = Callable[[str], list[MetricResult]]  # of a file's name; of several scores the first leads
Comparison = Callable[[Sequence[Any]], list[MetricResult]]  # the same of outputs, lines or M2
Tell = Callable[[str], None]  # takes a notice for the user


class Recogniser(Protocol):
    """A model of speech, for metrics of sound.

    Attributes:
        signature: Its strategy and fingerprint.
    """

    @property
    def signature(self) -> str: ...

    def transcripts(self, files: Sequence[str], tell: Tell) -> list[str | None]:
        """The transcript of each file; None, and the user is told, where one cannot be read."""


MISSING, EMPTY = "missing", "empty"
BLANKS = (MISSING, EMPTY)  # what a blank line of the references may be


@dataclass(frozen=True)
class Reads:
    """A file that a metric reads, or several: the references, a file each.

    Attributes:
        blank: Default meaning of a blank line of the references, one of `BLANKS`.
        ids: Lines, and those of outputs, may begin with an utterance's id.
    """

    help: str
    required: bool = True
    blank: str = MISSING
    ids: bool = False


@dataclass(frozen=True, kw_only=True)
class MetricFiles:
    """The names of the files that are given; "-" is stdin.

    Attributes:
        source: Inputs of the system.
        ref: References of its output.
        gold: M2, sources and gold edits.
        hyp_m2: The system's output as M2, in place of text.
        blank: Meaning of a blank line of `ref`, one of `BLANKS`; None: as the metric declares.
        ids: One of `IDS`: lines of `ref` and of outputs begin with ids, where a metric declares them.
        called: Names for error messages of files that are not the user's.
        tell: Takes notices for the user.
        recogniser: Opens the model of speech of a name, for metrics that read sound.
    """

    source: str | None = None
    ref: tuple[str, ...] = ()
    gold: str | None = None
    hyp_m2: str | None = None
    blank: str | None = None
    ids: str = AUTO
    called: Mapping[str, str] = field(default_factory=dict)
    tell: Tell = warnings.warn
    recogniser: Callable[[str], Recogniser] | None = None

    def shown(self, name: str) -> str:
        """A file as errors name it."""
        return self.called.get(name, shown(name))

    def outputs(self, name: str) -> list[Any]:
        """The lines of a system's output, or with `hyp_m2` its M2 sentences."""
        lines = read_lines(name)
        return lines if self.hyp_m2 is None else [*read_m2(lines, name=self.shown(name))]

    def against_gold(self, gold: Sequence[M2Sentence], compare: Comparison) -> Scorer:
        """Returns a function that scores a file of outputs, one for each sentence of `gold`."""

        def score(name: str) -> list[MetricResult]:
            outputs = self.outputs(name)
            assert self.gold is not None
            check_lengths(len(gold), self.shown(self.gold), {self.shown(name): len(outputs)})
            return compare(outputs)

        return score


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """References and sources by line; each line has a reference.

    Attributes:
        references: R corpora of N lines; None: the line has no such reference.
        sources: N lines; of metrics that read no source, none.
        tell: Takes notices for the user, each of which is told once.
    """

    references: References
    sources: Sequence[str] = ()
    tell: Tell = warnings.warn

    def lines(self) -> Iterator[str]:
        """All references that there are."""
        return (line for lines in self.references for line in lines if line is not None)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Base of metrics, which are declared by `register_metric`; the docstring's first line is the summary.

    A metric of references gives `against`, and never sees a line that has none; another gives `scorer`.

    Attributes:
        reads: Files that it reads, by the names of `MetricFiles`; each is a flag of nartk-score.
        digits: After the point, as the metric's original program prints them.
        example: A command line, after ``nartk-score``.
        counts_errors: True if lower scores are better.
        reads_sound: True if outputs are a folder or a list of sound files, not lines of text.
    """

    counts_errors: ClassVar[bool] = False
    reads_sound: ClassVar[bool] = False

    name: ClassVar[str]
    reads: ClassVar[Mapping[str, Reads]]
    digits: ClassVar[int]
    example: ClassVar[str]

    def against(self, texts: Corpus) -> Comparison:
        """Returns a function that scores outputs, one for each line of the references.

        Raises:
            NartkError: The texts cannot be scored, or a package is missing.
        """
        raise NotImplementedError

    def score(
        self,
        references: References,
        outputs: Sequence[str],
        *,
        sources: Sequence[str] = (),
        tell: Tell = warnings.warn,
    ) -> list[MetricResult]:
        """Scores N outputs against R corpora of N references, in Python; of several scores the first leads.

        Raises:
            NartkError: The texts cannot be scored, or a package is missing.
        """
        return self.against(Corpus(references=references, sources=sources, tell=tell))(outputs)

    def scorer(self, files: MetricFiles) -> Scorer:
        """Reads the references, and returns a function that scores a file of outputs.

        Raises:
            NartkError: A file cannot be read, or a package is missing.
        """
        reads = self.reads["ref"]
        declared = reads.blank
        blank = declared if files.blank is None else files.blank
        sources = None if files.source is None else read_lines(files.source)
        tell = cache(files.tell)
        corpora = [read_lines(name) for name in files.ref]
        names = [*map(files.shown, files.ref)]
        may = files.ids if reads.ids else NO

        @cache
        def prepared(matched: bool) -> tuple[tuple[str, ...] | None, list[int], Comparison]:
            """The ids by which lines are matched, the lines that have a reference, and what scores them."""
            ids, ordered = None, corpora
            if matched:
                ids = (*split_ids(corpora[0], names[0]),)
                ordered = [
                    in_order(ids, lines, name, names[0]) for name, lines in zip(names, corpora, strict=True)
                ]
                if may == AUTO:
                    tell(
                        f"lines are matched by the utterance ids that they begin with, such as {ids[0]!r}; "
                        f"{named('ids', NO)} takes these for words"
                    )
            references = [
                [None if blank == MISSING and not line.strip() else line for line in lines]
                for lines in ordered
            ]
            rows = [*zip(*references, strict=True)]
            lines = [i for i, row in enumerate(rows) if any(each is not None for each in row)]
            if not lines:
                raise InputFileError(
                    "no line has a reference", fix=f"give references, or {named('blank', EMPTY)}"
                )
            if len(lines) < len(rows):
                tell(
                    f"{len(rows) - len(lines)} of {len(rows)} lines have no reference and are not scored; "
                    f"{named('blank', EMPTY)} scores them against empty ones"
                )
            blanks = sum(not any(each and each.strip() for each in row) for row in rows)
            if files.blank is None and blank == EMPTY and blanks:
                tell(
                    f"{blanks} of {len(rows)} lines have an empty reference, against which they are scored; "
                    f"{named('blank', MISSING)} leaves them out"
                )
            texts = Corpus(
                references=[[lines_of[i] for i in lines] for lines_of in references],
                sources=() if sources is None else [sources[i] for i in lines],
                tell=tell,
            )
            return ids, lines, self.against(texts)

        def score(name: str) -> list[MetricResult]:
            outputs, called = files.outputs(name), files.shown(name)
            matched = may == YES or (may == AUTO and are_matched(corpora[0], outputs, (names[0], called)))
            if not matched:
                lengths = dict(zip(names, map(len, corpora), strict=True)) | {called: len(outputs)}
                first = called if files.source is None else files.shown(files.source)
                check_lengths(len(outputs if sources is None else sources), first, lengths)
            ids, lines, compare = prepared(matched)
            if ids is not None:
                outputs = in_order(ids, outputs, called, names[0])
            results = [replace(each, ids=ids) for each in compare([outputs[i] for i in lines])]
            if blank != declared:
                results = [replace(each, signature=f"{each.signature}|blank:{blank}") for each in results]
            if len(lines) < len(outputs):
                results = [_of_some(result, lines, len(outputs)) for result in results]
            return results

        return score


def _of_some(result: MetricResult, lines: list[int], total: int) -> MetricResult:
    """The result of some of all lines, of which the others have no score."""
    each = result.each

    def spread() -> np.ndarray:
        assert each is not None
        scores = np.full(total, np.nan)
        scores[lines] = each()
        return scores

    return replace(result, lines=tuple(lines), each=None if each is None else spread)
