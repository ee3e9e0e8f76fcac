"""Measures spell checkers by themselves, and before a correction model.

    python recipes/gec/spellers.py MODEL --jfleg DIR --cweb DIR --eracond DIR --ewt DIR [--frequencies FILE]

A speller changes words of three letters or more that are in no list; inside a sentence, none with a capital.
It needs the packages symspellpy (SymSpell: deletions of up to two letters, and a list of frequencies) and
spylls (Hunspell). What SymSpell proposes is chosen by its frequency, by the words beside it, whose pairs are
counted in the shipped corpora, or by the log-probability that the model gives the sentence with it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from evaluate import add_sets, around, scores, table
from noisy_channel import Choose, Counts, InContext, Suggest, Suggestion
from quality import PROSE, SOURCE, System, gleu, measure, microseconds, of_model, read_sets
from testsets import known_words

import nartk
from nartk.data.gec.lexicon import misspellings
from nartk.data.text import corpus_names, read_corpus, tokenize

LEFT_OUT = "ud_ewt"  # of the corpora: its text is measured
DISTANCE = 2  # letters that a suggestion may differ in
SHORTEST = 3  # letters of a word that is changed
CHOICES = 5  # suggestions that are compared
MOST = 72  # sentences that a model compares for one
LONGEST = 500  # characters of a line that a model chooses for
TIMED = 300  # sentences
MANY = 60  # suggestions between which the words beside them decide
OFTEN = 3  # times that a contraction was counted
SEEN = 5  # times that a word of text was counted
CLITICS = {"s": "'s", "nt": "n't", "re": "'re", "ve": "'ve", "ll": "'ll", "d": "'d", "m": "'m"}
_CORE = re.compile(r"""[("'“‘\[]*([^\W\d_]+)[)"'”’\].,;:!?…]*""")
_BEGINS = re.compile(r"""(?:^|[.!?…:]["'”’)]*)\s*["'“‘(]*$""")


def misspelt(line: str, known: Container[str]) -> Iterator[tuple[int, int]]:
    """Yields begin and end of words that are in no list and are no names, addresses or code."""
    for match in re.finditer(r"\S+", line):
        found = _CORE.fullmatch(match.group())
        if found is None:
            continue
        begin, end = match.start() + found.start(1), match.start() + found.end(1)
        word = line[begin:end]
        small = word.islower() or (word[1:].islower() and _BEGINS.search(line[:begin]) is not None)
        if len(word) >= SHORTEST and small and word.lower() not in known:
            yield begin, end


def like(suggestion: Suggestion, word: str, *, tokens: bool) -> str:
    """A suggestion, with a capital where the word has one, clitics apart in sentences in tokens."""
    found = re.sub(r"^i(?= |$)", "I", suggestion.word)
    found = found if word.islower() else found[:1].upper() + found[1:]
    return found if tokens else re.sub(r" (?='|n't)", "", found)


def checked(line: str, known: Container[str], suggest: Suggest, choose: Choose, *, tokens: bool) -> str:
    """A line with a suggestion in place of each misspelling that has one."""
    done, at = "", 0
    for begin, end in misspelt(line, known):
        word = line[begin:end]
        done += line[at:begin]
        found = suggest(word.lower())
        best = choose(word, done, line[end:], found) if found else None
        done += word if best is None else like(best, word, tokens=tokens)
        at = end
    return done + line[at:]


def most_likely(_: str, before: str, after: str, found: Sequence[Suggestion]) -> Suggestion:
    return found[0]


def most_frequent(_: str, before: str, after: str, found: Sequence[Suggestion]) -> Suggestion:
    return min(found, key=lambda each: (each.distance, -each.frequency))


def symspell(frequencies: Path | None, counts: Counts | None = None) -> Suggest:
    """Suggestions of SymSpell; also two words in place of one.

    Args:
        frequencies: Words and their counts, a pair a line; None: the list of symspellpy.
        counts: Counts of text, with which suggestions are all words within the distance, and contractions in
            which the apostrophe is missing; None: the nearest words alone.
    """
    from symspellpy import SymSpell, Verbosity

    speller = SymSpell(max_dictionary_edit_distance=DISTANCE)
    for word, times in frequency_list(frequencies).items():
        speller.create_dictionary_entry(word, times)
    total = sum(speller.words.values())

    @lru_cache(maxsize=100_000)
    def suggest(word: str) -> tuple[Suggestion, ...]:
        most = DISTANCE if len(word) > 4 or counts is not None else 1
        near = speller.lookup(word, Verbosity.CLOSEST if counts is None else Verbosity.ALL, most)
        found = [Suggestion(each.term, each.distance, each.count) for each in near]
        for i in range(1, len(word)):
            one, other = word[:i], word[i:]
            if min(len(one), len(other)) > 1 or one in ("a", "i") or other == "a":
                both = speller.words.get(one, 0) * speller.words.get(other, 0) // total
                if both:
                    found.append(Suggestion(f"{one} {other}", 1, both))
        if counts is not None:
            found += [Suggestion(each, 0, times) for each, times in contraction(word, counts)]
        found.sort(key=lambda each: (each.distance, -each.frequency))
        return tuple(found[: CHOICES if counts is None else MANY])

    return suggest


@lru_cache(maxsize=2)
def frequency_list(path: Path | None) -> dict[str, int]:
    """Words in small letters and their counts: of a file, a pair a line, or of symspellpy's list."""
    if path is None:
        import symspellpy

        path = Path(symspellpy.__file__).parent / "frequency_dictionary_en_82_765.txt"
    found = Counter[str]()
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        word, times = line.split()
        if word.isalpha():
            found[word.lower()] += int(times)
    return dict(found)


def hunspell() -> Suggest:
    """The suggestions of Hunspell's American dictionary, the best first."""
    import spylls
    from spylls.hunspell import Dictionary

    dictionary = Dictionary.from_files(f"{spylls.__path__[0]}/hunspell/data/en/en_US")

    @lru_cache(maxsize=100_000)
    def suggest(word: str) -> tuple[Suggestion, ...]:
        if dictionary.lookup(word):
            return ()
        return tuple(
            Suggestion(each, i, 0) for i, each in enumerate(islice(dictionary.suggest(word), CHOICES))
        )

    return suggest


def sentences(files: Sequence[Path]) -> Iterator[list[str]]:
    """Sentences in tokens: the shipped corpora, but for the treebank, and those of files."""
    for name in corpus_names():
        yield from read_corpus(name) if name != LEFT_OUT else ()
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from (line.split() for line in lines)


def contraction(word: str, counts: Counts) -> Iterator[tuple[str, int]]:
    """Yields a word as a contraction that lacks its apostrophe, in tokens, and its count."""
    for end, clitic in CLITICS.items():
        times = counts.pairs[word.removesuffix(end), clitic] if word.endswith(end) else 0
        if times >= OFTEN:
            yield f"{word.removesuffix(end)} {clitic}", times


def seen_words(frequencies: dict[str, int], counts: Counts) -> Iterator[str]:
    """Words of a list of frequencies, and those that text has some times, but for known misspellings."""
    wrong = {each.lower() for wrongs in misspellings().values() for each in wrongs}
    for words, least in ((frequencies, 1), (counts.singles, SEEN)):
        for word, times in words.items():
            if word and times >= least and word not in wrong and not any(contraction(word, counts)):
                yield word


def speller(name: str, known: Container[str], suggest: Suggest, choose: Choose) -> System:
    def correct(lines: Sequence[str], tokens: bool) -> list[str]:
        return [checked(line, known, suggest, choose, tokens=tokens) for line in lines]

    return System(name, "", correct)


def by_model(
    name: str, model: nartk.Model, known: Container[str], suggest: Suggest, choose: InContext
) -> System:
    """Chooses by the log-probability that a correction model gives a line with suggestions."""
    scorer = replace(model, pretokenized=True, guard=False)

    def in_tokens(line: str) -> str:
        return " ".join(tokenize(line))

    def correct(lines: Sequence[str], tokens: bool) -> list[str]:
        found = [*lines]
        rivals = [_variants(line, known, suggest, choose, tokens=tokens) for line in lines]
        some = [i for i, each in enumerate(rivals) if each]
        targets = [[*map(in_tokens, rivals[i])] for i in some]
        outputs = scorer.score([in_tokens(lines[i]) for i in some], targets)
        for i, output in zip(some, outputs, strict=True):
            ranks = [
                math.fsum(each.positional_scores or [-math.inf]) for each in (output, *output.alternatives)
            ]
            found[i] = rivals[i][max(range(len(ranks)), key=ranks.__getitem__)]
        return found

    return System(name, "", correct)


def _variants(
    line: str, known: Container[str], suggest: Suggest, choose: InContext, *, tokens: bool
) -> list[str]:
    """A line as it is, and with all combinations of the best suggestions for its misspellings."""
    found, at = [""], 0
    for begin, end in misspelt(line, known) if len(line) < LONGEST else ():
        word = line[begin:end]
        near = choose.ranked(word, line[:begin], line[end:], suggest(word.lower()))[:CHOICES]
        if len(found) * (len(near) + 1) > MOST:
            near = near[:1]
        forms = [word, *(like(each, word, tokens=tokens) for each in near)]
        found = [text + line[at:begin] + form for text in found for form in forms]
        at = end
    return [text + line[at:] for text in found] if at else []


def after(first: System, second: System) -> System:
    """One correction of the other's outputs."""

    def correct(lines: Sequence[str], tokens: bool) -> list[str]:
        return second.correct(first.correct(lines, tokens), tokens)

    return System(f"{first.name}, then {second.name}", second.signature, correct)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    add_sets(parser)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--frequencies", type=Path, metavar="FILE", help="words and counts, a pair a line")
    parser.add_argument(
        "--text",
        type=Path,
        nargs="*",
        default=[],
        metavar="FILE",
        help="sentences in tokens, to count pairs of words in, beside the shipped corpora",
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="measure systems of such names alone")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    sets = read_sets(args.jfleg, args.cweb, args.eracond, args.ewt, args.part)
    corrector = of_model(args.model, args.dtype)
    model = nartk.load(args.model, dtype=args.dtype, threads=1)
    near, counts = symspell(args.frequencies), Counts(sentences(args.text))
    far = symspell(args.frequencies, counts)
    choose = InContext(counts, sum(frequency_list(args.frequencies).values()))
    known = known_words() | {*seen_words(frequency_list(args.frequencies), counts)}
    spellers = [
        speller("Hunspell", known, hunspell(), most_likely),
        speller("SymSpell", known, near, most_frequent),
        speller("SymSpell, noisy channel", known, far, choose),
        by_model("SymSpell, model's choice", model, known, far, choose),
    ]
    systems = [SOURCE, *spellers, corrector, *(after(each, corrector) for each in spellers)]
    systems = [each for each in systems if re.search(args.only, each.name)]
    rows = []
    for each in systems:
        rows.append(measure(each, sets, lambda *_: None))
        rows[-1]["us"] = microseconds(each, sets.correct[PROSE][:TIMED], time.process_time)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    checked_ = sets.learners.checked
    lines = [*scores(rows, gleu(sets.learners, checked_), args.part)]
    found = gleu(sets.learners, corrector.correct(checked_, True))
    lines += [f"JFLEG's spell-checked source, then {corrector.name}: GLEU {around(found)}", ""]
    lines += table(["", "microseconds a sentence"], [[row["system"], f"{row['us']:.0f}"] for row in rows])
    text = "\n".join(["# Spelling before correction", *lines])
    print(text)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "spellers.md").write_text(text, encoding="utf-8")
        (args.output / "spellers.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
