"""Measures of a correction: GLEU and F0.5 on learners' text, spelling, harm, errors by type."""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from build_corpora import is_prose, plain
from spelling import SpellingCounts, Spellings, count, inserted, real
from testsets import (
    DEV,
    TEST,
    Jfleg,
    corrected_texts,
    cweb,
    eracond,
    jfleg,
    known_words,
    paragraphs,
    part_of_treebank,
    untouched,
)

import nartk
from nartk.data.m2 import M2Sentence
from nartk.data.text import tokenize
from nartk.metrics.bootstrap import confidence
from nartk.metrics.errant import ErrantAnnotator, errant_score
from nartk.metrics.gleu import Gleu
from nartk.metrics.m2 import m2_score
from nartk.metrics.result import MetricResult

UNTOUCHED = Path(__file__).with_name("untouched.tsv")
EXAMPLES = 10
SEED = 1
# Corrects lines; the second argument is True if these are sentences in tokens.
Corrector = Callable[[Sequence[str], bool], list[str]]
Row = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A correction to measure.

    Attributes:
        name: Name in tables.
        signature: Settings that reproduce it.
        correct: Gives the corrections of lines.
    """

    name: str
    signature: str
    correct: Corrector


SOURCE = System("source, unchanged", "", lambda lines, _: [*lines])


def of_model(name: str, dtype: str | None, least: float | None = None) -> System:
    """A model with its default strategy, by one thread.

    Args:
        name: Name or folder.
        dtype: Type of its computation; None: the folder's.
        least: Least probability of an edit; None: the folder's.
    """
    model = nartk.load(name, dtype=dtype, threads=1, min_edit_confidence=least)
    title = f"{Path(name).name}, {model.dtype}" + ("" if least is None else f", confidence {least:g}")
    return of_loaded(title, model)


def of_loaded(title: str, model: nartk.Model) -> System:
    """A model that is loaded, with its default strategy."""

    def correct(lines: Sequence[str], tokens: bool) -> list[str]:
        run = replace(model, pretokenized=tokens).run(lines)
        return [
            line if each.error is not None else each.text for line, each in zip(lines, run.best, strict=True)
        ]

    return System(title, model.signature(model.strategy(None, {})), correct)


@dataclass(frozen=True)
class Sets:
    """Everything that is corrected.

    Attributes:
        learners: JFLEG.
        gold: Sentences in tokens with gold edits, by the set's name.
        spelling: Texts with misspellings, by the set's name.
        correct: Ordinary text, by the set's name; a correction of it is harm.
        hard: Class and text of lines to leave alone.
    """

    learners: Jfleg
    gold: Mapping[str, list[M2Sentence]]
    spelling: Mapping[str, list[Spellings]]
    correct: Mapping[str, list[str]]
    hard: list[tuple[str, str]]


PROSE = "UD EWT dev, sentences"
OTHER = "headings, fragments, chat"
TYPOS = "with typos"
PARAGRAPHS = "its paragraphs"


def read_sets(jfleg_: Path, cweb_: Path, eracond_: Path, ewt: Path, part: str) -> Sets:
    """Reads a part of all sets; misspellings and correct text are the same for each part."""
    known = known_words()
    ordinary = part_of_treebank(ewt, DEV)
    clean = [each.text for each in ordinary if not each.has_typo]
    other = [each.text for each in part_of_treebank(ewt, TEST) if not each.has_typo]
    return Sets(
        jfleg(jfleg_, part),
        {"CWEB-S": cweb(cweb_, part), "ErAConD": eracond(eracond_, part)},
        {
            "real": real(corrected_texts(jfleg_, cweb_, eracond_, ewt), known),
            "codespell": inserted([*clean, *other], known),
        },
        {
            PROSE: [text for text in clean if is_prose(tokenize(plain(text)))],
            OTHER: [text for text in clean if not is_prose(tokenize(plain(text)))],
            TYPOS: [each.text for each in ordinary if each.has_typo],
            PARAGRAPHS: paragraphs(ordinary),
        },
        untouched(UNTOUCHED),
    )


def scored(result: MetricResult) -> Row:
    """A score in percent with its bootstrap's interval."""
    around = confidence(result)
    found: Row = {"score": 100 * result.score, "low": 100 * around.low, "high": 100 * around.high}
    return found | {key: 100 * result.parts[key] for key in ("precision", "recall") if key in result.parts}


def gleu(texts: Jfleg, outputs: Sequence[str]) -> Row:
    return scored(Gleu().score(texts.references, outputs, sources=texts.source)[0])


def measure(system: System, sets: Sets, keep: Callable[[str, Sequence[str]], None]) -> Row:
    """All measures of a system but those by type.

    Args:
        keep: Receives each set's name and the outputs for it.
    """
    known = known_words()

    def corrected(name: str, lines: Sequence[str], *, tokens: bool = False) -> list[str]:
        outputs = system.correct(lines, tokens)
        keep(name, outputs)
        return outputs

    row: Row = {"system": system.name, "signature": system.signature, "m2": {}, "spelling": {}, "harm": {}}
    row["gleu"] = gleu(sets.learners, corrected("JFLEG", sets.learners.source, tokens=True))
    for name, gold in sets.gold.items():
        lines = [" ".join(each.source) for each in gold]
        row["m2"][name] = scored(m2_score(gold, corrected(name, lines, tokens=True)))
    for name, texts in sets.spelling.items():
        outputs = corrected(f"spelling, {name}", [each.text.text for each in texts])
        row["spelling"][name] = spelling_row(count(texts, outputs, known))
    for name, lines in sets.correct.items():
        outputs = corrected(name, lines)
        changed = sum(a != b for a, b in zip(lines, outputs, strict=True))
        row["harm"][name] = {"changed": changed, "lines": len(lines)}
    lines = [text for _, text in sets.hard]
    classes: dict[str, Row] = defaultdict(lambda: {"changed": 0, "lines": 0})
    for (name, text), output in zip(sets.hard, corrected("hard inputs", lines), strict=True):
        classes[name]["lines"] += 1
        classes[name]["changed"] += text != output
    row["hard"] = dict(classes)
    return row


def spelling_row(counts: SpellingCounts) -> Row:
    return {**asdict(counts), "recall": 100 * counts.recall, "precision": 100 * counts.precision}


@dataclass(frozen=True)
class Change:
    """A line that a correction changed.

    Attributes:
        edits: Each edit as source and replacement.
        types: ERRANT's type of each edit.
    """

    source: str
    output: str
    edits: tuple[str, ...]
    types: tuple[str, ...]


def changes(annotator: ErrantAnnotator, lines: Sequence[str], outputs: Sequence[str]) -> list[Change]:
    """The lines that were changed, with the edits."""
    pairs = [(line, output) for line, output in zip(lines, outputs, strict=True) if line != output]
    sources = [tokenize(line) for line, _ in pairs]
    annotated = annotator.annotate(sources, [tokenize(output) for _, output in pairs])
    found = []
    for (line, output), sentence in zip(pairs, annotated, strict=True):
        edits = sentence.edits_of(0)
        shown = (f"{' '.join(sentence.source[e.start : e.end])} -> {e.correction}" for e in edits)
        found.append(Change(line, output, tuple(shown), tuple(e.type for e in edits) or ("SPACE",)))
    return found


@dataclass(frozen=True)
class Missed:
    """A gold edit that a correction lacks."""

    type: str
    source: str
    output: str
    wanted: str


def missed(
    gold: Sequence[M2Sentence], outputs: Sequence[Sequence[str]], edits: Sequence[M2Sentence]
) -> Iterator[Missed]:
    """The gold edits of the first annotator that are not among a system's."""
    for sentence, output, mine in zip(gold, outputs, edits, strict=True):
        done = {(edit.start, edit.end, edit.correction) for edit in mine.edits_of(0)}
        for edit in sentence.edits_of(sentence.annotators[0]):
            if (edit.start, edit.end, edit.correction) not in done:
                old = " ".join(sentence.source[edit.start : edit.end])
                yield Missed(
                    edit.type, " ".join(sentence.source), " ".join(output), f"{old} -> {edit.correction}"
                )


def typed(annotator: ErrantAnnotator, sets: Sets) -> dict[str, list[M2Sentence]]:
    """Sentences with gold edits and their types: JFLEG's as the annotator finds them, ErAConD's its own."""
    sources = [line.split() for line in sets.learners.source]
    references = [[line.split() for line in lines] for lines in sets.learners.references]
    return {"JFLEG": annotator.annotate(sources, *references), "ErAConD": sets.gold["ErAConD"]}


def by_type(
    annotator: ErrantAnnotator,
    golds: Mapping[str, Sequence[M2Sentence]],
    outputs: Mapping[str, Sequence[str]],
) -> Row:
    """F0.5 of each ERRANT type, and an example of each type of which most is missed, drawn by a fixed seed.

    Args:
        golds: Sentences with typed gold edits; the examples are of the last set.
        outputs: A system's sentences in tokens, by the set's name.
    """
    row: Row = {"types": {}, "errant": {}}
    for name, gold in golds.items():
        tokens = [[token for token in line.split(" ") if token] for line in outputs[name]]
        edits = annotator.annotate([each.source for each in gold], tokens)
        result = errant_score(gold, edits, annotation=annotator.signature)
        row["types"][name] = result.parts["types"]
        row["errant"][name] = scored(result)
    lacking = [*missed(gold, tokens, edits)]
    rng = random.Random(SEED)
    most = [name for name, _ in Counter(each.type for each in lacking).most_common(EXAMPLES)]
    drawn = (rng.choice([each for each in lacking if each.type == name]) for name in most)
    row["examples"] = [asdict(each) for each in drawn]
    return row


def microseconds(system: System, lines: Sequence[str], clock: Callable[[], float], rounds: int = 3) -> float:
    """Median time of a line in microseconds."""
    taken = []
    for _ in range(rounds):
        start = clock()
        system.correct(lines, False)
        taken.append((clock() - start) / len(lines))
    return 1e6 * statistics.median(taken)
