"""Texts that correction models are measured on, read from the data sets' folders.

Their parts are fixed here. Of ErAConD part 5 is for training, parts 1 and 3 are test, part 2 is dev with what
part 4 has besides part 3, which it repeats. Of CWEB-S dev the first half is dev, the second test. JFLEG has
files of its own for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import build_corpora
from treebank import Sentence, sentences

from nartk.data.gec.lexicon import misspellings
from nartk.data.m2 import M2Sentence, apply_edits, read_m2
from nartk.data.text import detokenize, tokenize

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
DEV, TEST = PARTS = "dev", "test"
REFERENCES = 4  # of JFLEG
PARAGRAPHS, LONG = 200, 20  # paragraphs of more than so many words


def words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in WORD.findall(text)]


def read(path: Path) -> list[str]:
    """Lines of a file, or of the file that was compressed with xz."""
    if not path.is_file():
        path = path.with_name(f"{path.name}.xz")
    return [*build_corpora.read(path)]


@lru_cache(maxsize=1)
def dictionary(path: Path | None = None) -> tuple[str, ...]:
    """The words of a file, one a line, by default of ERRANT's Hunspell list."""
    if path is None:
        import errant

        path = Path(errant.__file__).parent / "en" / "resources" / "en_GB-large.txt"
    return tuple(word.strip() for word in read(path))


@lru_cache(maxsize=1)
def known_words() -> frozenset[str]:
    """Words that are no misspellings, in small letters: ERRANT's list and what codespell corrects to."""
    right = (part for each in misspellings() for part in words(each))
    return frozenset([*map(str.lower, dictionary()), *right])


@dataclass(frozen=True)
class Jfleg:
    """JFLEG's sentences, tokenised, with spell-checked ones beside and four corpora of references."""

    source: list[str]
    checked: list[str]
    references: list[list[str]]


def jfleg(folder: Path, part: str) -> Jfleg:
    return Jfleg(
        read(folder / f"{part}.src"),
        read(folder / f"{part}.spellchecked.src"),
        [read(folder / f"{part}.ref{i}") for i in range(REFERENCES)],
    )


def m2(path: Path) -> list[M2Sentence]:
    """Sentences of an M2 file that have tokens, without edits outside of them."""
    outside: list[object] = []
    return [each for each in read_m2(read(path), name=path.name, outside=outside.append) if each.source]


def cweb(folder: Path, part: str) -> list[M2Sentence]:
    """A half of CWEB-S dev."""
    found = m2(folder / "m2" / "CWEB-S.dev.m2")
    half = len(found) // 2
    return found[:half] if part == DEV else found[half:]


def eracond(folder: Path, part: str) -> list[M2Sentence]:
    """Parts of ErAConD; those of `PARTS`, or ``train``."""
    parts = {number: m2(folder / f"part{number}.m2") for number in (1, 2, 3, 4, 5)}
    if part == TEST:
        return parts[1] + parts[3]
    if part != DEV:
        return parts[5]
    again = {tuple(each.source) for each in parts[3]}
    return parts[2] + [each for each in parts[4] if tuple(each.source) not in again]


def part_of_treebank(folder: Path, part: str) -> list[Sentence]:
    return treebank(folder / f"en_ewt-ud-{part}.conllu")


def treebank(path: Path) -> list[Sentence]:
    """The sentences of a file of UD English EWT."""
    return [*sentences(read(path))]


def paragraphs(ordinary: Sequence[Sentence]) -> list[str]:
    """Longer paragraphs of the treebank, the first `PARAGRAPHS` of them, a line each."""
    found: list[list[str]] = []
    for each in ordinary:
        if each.begins or not found:
            found.append([])
        found[-1].append(each.text)
    lines = (" ".join(texts) for texts in found)
    return [line for line in lines if len(line.split()) > LONG][:PARAGRAPHS]


@dataclass(frozen=True)
class Corrected:
    """A text and its corrections, one of each annotator, as ordinary text and in tokens.

    Attributes:
        name: Data set that it is from.
    """

    name: str
    text: str
    golds: tuple[str, ...]

    @property
    def tokens(self) -> list[str]:
        return tokenize(self.text)

    @property
    def corrections(self) -> list[list[str]]:
        return [tokenize(each) for each in self.golds]


def _of_m2(name: str, sentences: Sequence[M2Sentence]) -> Iterator[Corrected]:
    for each in sentences:
        golds = tuple(detokenize(apply_edits(each, who)) for who in each.annotators)
        yield Corrected(name, detokenize(each.source), golds)


def corrected_texts(jfleg_: Path, cweb_: Path, eracond_: Path, ewt: Path) -> Iterator[Corrected]:
    """Corrected text that nothing is trained on; JFLEG dev is the last of it."""
    for part in (DEV, TEST):
        for each in part_of_treebank(ewt, part):
            if each.has_typo:
                yield Corrected(f"UD EWT {part}", each.text, (each.corrected,))
    for part in (DEV, TEST):
        yield from _of_m2(f"ErAConD {part}", eracond(eracond_, part))
    yield from _of_m2("CWEB-S dev half", cweb(cweb_, DEV))
    for part in (DEV, TEST):
        yield from _of_m2(f"CWEB-G {part}", m2(cweb_ / "m2" / f"CWEB-G.{part}.m2"))
    found = jfleg(jfleg_, DEV)
    for source, *references in zip(found.source, *found.references, strict=True):
        golds = tuple(detokenize(each.split()) for each in references)
        yield Corrected("JFLEG dev", detokenize(source.split()), golds)


def untouched(path: Path) -> list[tuple[str, str]]:
    """Class and text of lines that a correction must leave as they are."""
    pairs = (line.split("\t") for line in read(path) if line and not line.startswith("#"))
    return [(name, text) for name, text in pairs]
