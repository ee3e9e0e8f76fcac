"""ERRANT: precision, recall and F0.5 of corrections, with error types.

Edits come from the errant package, which needs a spaCy pipeline with tags, lemmas and dependencies; two M2
files are compared without either. The counting follows `errant_compare`. Source: Bryant et al. 2017,
"Automatic Annotation and Evaluation of Error Types for Grammatical Error Correction",
https://aclanthology.org/P17-1074.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nartk.data.m2 import M2Edit, M2Sentence, noop, read_m2
from nartk.errors import (
    InputFileError,
    InputTooLongError,
    MissingDependencyError,
    UsageError,
    named,
    requiring,
)
from nartk.files import JsonObject, read_lines
from nartk.metrics.metric import Comparison, Corpus, Metric, MetricFiles, Reads, Scorer
from nartk.metrics.result import MetricResult, check_lengths, f_measure, f_of_resamples, signature
from nartk.registry import option, register_metric

if TYPE_CHECKING:
    from spacy.tokens import Doc

OFFICIAL = "en_core_web_sm"
TRAINED = Path("~/.cache/nartk/spacy-ewt")  # where recipes/gec/train_spacy.sh puts its pipeline
ENVIRONMENT = "NARTK_SPACY"
UNKNOWN_TYPE = "UNK"  # an error that was found and not corrected: no correction to score
MAX_CELLS = 4_000_000  # of ERRANT's alignment matrix, which it fills in Python: 2,000 tokens against 2,000
DIGITS = 4  # errant_compare ranks annotators by F rounded to so many

Edits = dict[tuple[int | str, ...], list[str]]  # what must be equal -> types
Counts = tuple[int, int, int]  # true positives, false positives, false negatives


def find_pipeline(name: str | None = None) -> str:
    """Name or folder of the spaCy pipeline to use.

    Without a name: the one that `NARTK_SPACY` names, else the official small model where it is installed,
    else the one that recipes/gec/train_spacy.sh trained.

    Raises:
        MissingDependencyError: There is none.
    """
    if name is not None:
        return name
    if ENVIRONMENT in os.environ:
        return os.environ[ENVIRONMENT]
    if find_spec(OFFICIAL) is not None:
        return OFFICIAL
    trained = TRAINED.expanduser()
    if trained.is_dir():
        return str(trained)
    raise MissingDependencyError(
        f"ERRANT needs a spaCy pipeline; neither {OFFICIAL} nor {TRAINED} is there",
        fix=f"run recipes/gec/train_spacy.sh or `python -m spacy download {OFFICIAL}`, or give "
        f"{named('spacy')}",
    )


class ErrantAnnotator:
    """Cuts corrections into typed edits.

    Args:
        pipeline: Name or folder of a spaCy pipeline; `find_pipeline` chooses without it.

    Attributes:
        signature: Versions of errant and the pipeline, for reports.

    Raises:
        MissingDependencyError: errant is not installed, or there is no such pipeline.
    """

    def __init__(self, pipeline: str | None = None) -> None:
        with requiring("errant needs the packages errant and spacy", "score"):
            import errant
            import spacy
        self._name = name = find_pipeline(pipeline)
        try:
            self._nlp = spacy.load(str(Path(name).expanduser()), disable=["ner"])
        except (OSError, ValueError) as error:
            raise MissingDependencyError(
                f"spaCy cannot load the pipeline {name!r}: {' '.join(str(error).split())[:200]}",
                fix="name an installed pipeline or its folder, or run recipes/gec/train_spacy.sh",
            ) from error
        self._annotator = errant.load("en", nlp=self._nlp)
        meta = self._nlp.meta
        self.signature = f"errant:{version('errant')}|spacy:{meta['lang']}_{meta['name']}-{meta['version']}"

    def annotate(
        self, sources: Sequence[Sequence[str]], *targets: Sequence[Sequence[str] | None]
    ) -> list[M2Sentence]:
        """The edits that turn each source into its targets; the first corpus of targets is annotator 0's.

        Args:
            sources: Tokens of N sentences.
            targets: Tokens of the N corrected ones; None: that annotator has not corrected the sentence.

        Raises:
            LengthMismatchError: There are not as many corrections as sources.
            InputTooLongError: A sentence is too long to align; the error names it.
            MissingDependencyError: The pipeline gives a tag that ERRANT does not know, such as none.
        """
        lengths = {f"correction {number}": len(corpus) for number, corpus in enumerate(targets, start=1)}
        check_lengths(len(sources), "source", lengths)
        changed = {
            tuple(side)
            for corpus in targets
            for source, target in zip(sources, corpus, strict=True)
            if target is not None and list(source) != list(target)
            for side in (source, target)
        }
        for number, source in enumerate(sources):
            size = len(source) * max(len(corpus[number] or ()) for corpus in targets)
            if size > MAX_CELLS:
                raise InputTooLongError(
                    f"{len(source)} source tokens against their correction need {size} cells > {MAX_CELLS}",
                    fix="split the line into sentences",
                    where=f"sentence {number + 1}",
                )
        parsed = self._parse(changed)
        sentences = []
        for number, source in enumerate(sources):
            edits: list[M2Edit] = []
            for annotator, corpus in enumerate(targets):
                target = corpus[number]
                if target is None:
                    continue
                found = []
                if list(source) != list(target):
                    try:
                        found = self._annotator.annotate(parsed[tuple(source)], parsed[tuple(target)])
                    except KeyError as error:  # errant looks each token's tag up
                        raise MissingDependencyError(
                            f"the spaCy pipeline {self._name!r} gives the tag {error.args[0]!r}, which "
                            "ERRANT does not know",
                            fix="name a pipeline for English with tags of the Penn Treebank, or run "
                            "recipes/gec/train_spacy.sh",
                        ) from error
                for edit in found:
                    # Its c_str keeps spaCy's spacing; the tokens are what M2 holds.
                    correction = " ".join(target[edit.c_start : edit.c_end])
                    edits.append(M2Edit(edit.o_start, edit.o_end, edit.type, correction, annotator=annotator))
                if not found:
                    edits.append(noop(annotator))
            sentences.append(M2Sentence(list(source), edits))
        return sentences

    def _parse(self, sentences: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], Doc]:
        """spaCy documents of tokenised sentences."""
        from spacy.tokens import Doc

        unparsed = [Doc(self._nlp.vocab, list(words)) for words in sorted(sentences)]
        return {tuple(token.text for token in doc): doc for doc in self._nlp.pipe(unparsed)}


def _tokens_of(edit: M2Edit) -> list[tuple[int | str, ...]]:
    """The tokens of an edit, one by one; an insertion is at the token on its right."""
    return [(token, token + 1) for token in range(edit.start, max(edit.end, edit.start + 1))]


# What of an edit must be equal for it to be right, as errant_compare has it with -cs, -cse, -ds and -dt.
CORRECTION = "span-correction"
LEVELS: dict[str, Callable[[M2Edit], list[tuple[int | str, ...]]]] = {
    CORRECTION: lambda edit: [(edit.start, edit.end, edit.correction)],
    "span-correction-type": lambda edit: [(edit.start, edit.end, edit.type, edit.correction)],
    "span-detection": lambda edit: [(edit.start, edit.end)],
    "token-detection": _tokens_of,
}
DETECTION = ("span-detection", "token-detection")  # which errors that nobody corrected count for


def _edits_by_annotator(sentence: M2Sentence, level: str) -> dict[int, Edits]:
    """Each annotator's edits in the order of the file; annotators who only wrote `noop` have none."""
    edits: dict[int, Edits] = {}
    for edit in sentence.edits:
        mine = edits.setdefault(edit.annotator, {})
        if not edit.is_noop and (edit.type != UNKNOWN_TYPE or level in DETECTION):
            for key in LEVELS[level](edit):
                mine.setdefault(key, []).append(edit.type)
    return edits or {0: {}}


def _compare(hypothesis: Edits, reference: Edits) -> dict[str, list[int]]:
    """True positives, false positives and false negatives of each error type."""
    types: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for edit, names in hypothesis.items():
        # A match counts under the reference's types.
        for name in reference.get(edit, names):
            types[name][0 if edit in reference else 1] += 1
    for edit, names in reference.items():
        if edit not in hypothesis:
            for name in names:
                types[name][2] += 1
    return types


def _report(counts: Sequence[int], beta: float) -> dict[str, float]:
    tp, fp, fn = counts
    precision, recall, f = map(float, f_measure(tp, tp + fp, tp + fn, beta))
    return {"tp": tp, "fp": fp, "fn": fn, "precision": precision, "recall": recall, "f": f}


def _grouped(types: Mapping[str, Sequence[int]], part: slice, beta: float) -> JsonObject:
    """Scores of the error types that share a part of their name, such as ``R`` of ``R:VERB:FORM``."""
    groups: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3, dtype=np.int64))
    for name, counts in types.items():
        groups[":".join(name.split(":")[part]) if ":" in name else name] += counts
    return {name: _report(groups[name].tolist(), beta) for name in sorted(groups)}


def errant_score(
    references: Sequence[M2Sentence],
    hypotheses: Sequence[M2Sentence],
    *,
    beta: float = 0.5,
    annotation: str = "",
    level: str = CORRECTION,
) -> MetricResult:
    """F of the edits of a corpus, of which by default the span and the correction must be right.

    Sentence by sentence it takes the annotators whose counts, added to the totals so far, give the highest
    F; at a tie the pair with more true positives, then fewer false positives, then fewer false negatives.

    Args:
        references: Sentences with the edits of one or more annotators.
        hypotheses: The same sentences with the edits of the system.
        annotation: Signature of the annotator that made the edits, where one did.
        level: One of `LEVELS`: spans with their correction, or with its type too, spans alone, or tokens.

    Raises:
        UsageError: There is no such level.
        LengthMismatchError: There are not as many hypotheses as references.
        InputFileError: A source differs between the two.
    """
    if level not in LEVELS:
        raise UsageError(f"errant has no level {level!r}", fix=f"choose one of {', '.join(LEVELS)}")
    check_lengths(len(references), "gold", {"hypothesis": len(hypotheses)})
    totals = np.zeros(3, dtype=np.int64)
    rows: list[Counts] = []
    types: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for number, (reference, hypothesis) in enumerate(zip(references, hypotheses, strict=True), start=1):
        if reference.source != hypothesis.source:
            raise InputFileError(
                f"the sources of sentence {number} differ: {' '.join(reference.source)[:60]!r} in gold, "
                f"{' '.join(hypothesis.source)[:60]!r} in the hypothesis",
                fix="give annotations of the same sentences in the same order",
            )
        best: tuple[float, int, int, int] | None = None
        golds = _edits_by_annotator(reference, level).values()
        for mine in _edits_by_annotator(hypothesis, level).values():
            for gold in golds:
                compared = _compare(mine, gold)
                tp, fp, fn = np.array([*compared.values(), (0, 0, 0)]).sum(axis=0).tolist()
                a, b, c = (totals + np.array((tp, fp, fn))).tolist()
                f = round(float(f_measure(a, a + b, a + c, beta)[2]), DIGITS)
                rank = (f, tp, -fp, -fn)
                if best is None or rank > best:
                    best, row, row_types = rank, (tp, fp, fn), compared
        totals += row
        rows.append(row)
        for name, found in row_types.items():
            types[name] = [a + b for a, b in zip(types[name], found, strict=True)]

    tp, fp, fn = np.array(rows, dtype=np.float64).T
    counts = np.stack([tp, tp + fp, tp + fn], axis=1)  # [N, 3]
    corpus = _report(totals.tolist(), beta)
    return MetricResult(
        metric="errant",
        score=corpus.pop("f"),
        parts={
            **corpus,
            "beta": beta,
            "operations": _grouped(types, slice(1), beta),
            "categories": _grouped(types, slice(1, None), beta),
            "types": _grouped(types, slice(None), beta),
        },
        signature=signature("errant", f"beta:{beta:g}", f"level:{level}", annotation),
        sentences=len(rows),
        resample=f_of_resamples(counts, beta),
        each=lambda: f_measure(tp, tp + fp, tp + fn, beta)[2],
    )


@register_metric("errant")
class Errant(Metric):
    """ERRANT F of corrections or of detected errors, 0 to 1."""

    reads: ClassVar[Mapping[str, Reads]] = {
        "gold": Reads("gold edits; else --source and --ref", required=False),
        "hyp_m2": Reads("the output as ERRANT edits, in place of HYP", required=False),
        "source": Reads("uncorrected sentences", required=False),
        "ref": Reads("corrected sentences", required=False),
    }
    digits: ClassVar[int] = 4
    example: ClassVar[str] = "errant HYP --source SRC --ref REF"

    spacy: str = option("", "spaCy pipeline, a name or a folder")
    beta: float = option(0.5, "weight of recall", above=0.0)
    level: str = option(
        CORRECTION,
        "what must be right of an edit: its span and correction, these and its type, or, where errors are "
        "to be detected, its span or its tokens; errant_compare's -cs, -cse, -ds and -dt",
        choices=tuple(LEVELS),
    )

    def scorer(self, files: MetricFiles) -> Scorer:
        if (files.gold is None) == (files.source is None and not files.ref):
            raise UsageError(
                f"errant takes {named('gold')}, or {named('source')} and {named('ref')}",
                fix="give one of the two",
            )
        if files.gold is None and (files.source is None or not files.ref):
            raise UsageError(
                f"{named('source')} and {named('ref')} belong together", fix=f"give both, or {named('gold')}"
            )

        if files.gold is None:
            return super().scorer(files)
        gold = list(read_m2(read_lines(files.gold), name=files.shown(files.gold)))
        annotator = ErrantAnnotator(self.spacy or None) if files.hyp_m2 is None else None
        return files.against_gold(gold, self._compare(annotator, gold))

    def against(self, texts: Corpus) -> Comparison:
        annotator = ErrantAnnotator(self.spacy or None)
        references = [
            [None if line is None else _tokens(line) for line in lines] for lines in texts.references
        ]
        return self._compare(annotator, annotator.annotate([*map(_tokens, texts.sources)], *references))

    def _compare(self, annotator: ErrantAnnotator | None, gold: Sequence[M2Sentence]) -> Comparison:
        """Returns a function that scores outputs, which are M2 or, with an annotator, lines."""

        def compare(outputs: Sequence[Any]) -> list[MetricResult]:
            edits, annotation = outputs, "" if annotator is None else annotator.signature
            if annotator is not None and not all(isinstance(each, M2Sentence) for each in outputs):
                edits = annotator.annotate([sentence.source for sentence in gold], [*map(_tokens, outputs)])
            return [errant_score(gold, edits, beta=self.beta, level=self.level, annotation=annotation)]

        return compare


def _tokens(line: str) -> list[str]:
    # As M2 files do: only the space separates tokens.
    return [token for token in line.split(" ") if token]
