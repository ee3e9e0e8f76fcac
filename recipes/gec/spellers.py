"""Measures spell checkers by themselves, and before a correction model.

    python recipes/gec/spellers.py MODEL --jfleg DIR --cweb DIR --eracond DIR --ewt DIR

SymSpell's and Hunspell's suggestions, by the packages symspellpy and spylls, and the model's own speller.
They change words of three letters or more that are in no list; inside a sentence, none with a capital.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from evaluate import add_sets, around, scores, table
from quality import PROSE, SOURCE, System, gleu, measure, microseconds, of_loaded, read_sets
from testsets import known_words

import nartk
from nartk.data.gec.speller import SHORTEST, Speller

DISTANCE = 2  # letters that a suggestion of SymSpell may differ in
TIMED = 300  # sentences
_CORE = re.compile(r"""[("'“‘\[]*([^\W\d_]+)[)"'”’\].,;:!?…]*""")
_BEGINS = re.compile(r"""(?:^|[.!?…:]["'”’)]*)\s*["'“‘(]*$""")
_TOKEN = re.compile(r"n't|'\w+|\w+?(?=n't)|\w+|[^\w\s]")

Fix = Callable[[str, str, str], str | None]  # what stands for a word between two texts; None: the word


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


def like(suggestion: str, word: str, *, tokens: bool) -> str:
    """A suggestion, with a capital where the word has one, clitics apart in sentences in tokens."""
    found = re.sub(r"^i(?= |$)", "I", suggestion)
    found = found if word.islower() else found[:1].upper() + found[1:]
    return found if tokens else re.sub(r" (?='|n't)", "", found)


def checked(line: str, known: Container[str], fix: Fix, *, tokens: bool) -> str:
    """A line with a suggestion in place of each misspelling that has one."""
    done, at = "", 0
    for begin, end in misspelt(line, known):
        word = line[begin:end]
        done += line[at:begin]
        best = fix(word, done, line[end:])
        done += word if best is None else like(best, word, tokens=tokens)
        at = end
    return done + line[at:]


def symspell() -> Fix:
    """SymSpell's most frequent suggestion among the nearest words, or two words in place of one."""
    import symspellpy

    speller = symspellpy.SymSpell(max_dictionary_edit_distance=DISTANCE)
    frequencies = Path(symspellpy.__file__).parent / "frequency_dictionary_en_82_765.txt"
    speller.load_dictionary(str(frequencies), 0, 1, encoding="utf-8-sig")
    total = sum(speller.words.values())

    @lru_cache(maxsize=100_000)
    def suggest(word: str) -> str | None:
        near = speller.lookup(word, symspellpy.Verbosity.TOP, DISTANCE if len(word) > 4 else 1)
        found = [(each.distance, -each.count, each.term) for each in near]
        for i in range(1, len(word)):
            one, other = word[:i], word[i:]
            if min(len(one), len(other)) > 1 or one in ("a", "i") or other == "a":
                both = speller.words.get(one, 0) * speller.words.get(other, 0) // total
                if both:
                    found.append((1, -both, f"{one} {other}"))
        return min(found)[-1] if found else None

    return lambda word, _before, _after: suggest(word.lower())


def hunspell() -> Fix:
    """The first suggestion of Hunspell's American dictionary."""
    import spylls
    from spylls.hunspell import Dictionary

    dictionary = Dictionary.from_files(f"{spylls.__path__[0]}/hunspell/data/en/en_US")

    @lru_cache(maxsize=100_000)
    def suggest(word: str) -> str | None:
        return None if dictionary.lookup(word) else next(iter(dictionary.suggest(word)), None)

    return lambda word, _before, _after: suggest(word.lower())


def own(speller: Speller) -> Fix:
    """Chooses as a model's speller does, by the tokens beside a word."""

    def fix(word: str, before: str, after: str) -> str | None:
        left, right = (_TOKEN.findall(text.lower()) for text in (before[-40:], after[:40]))
        best = speller.offers_for(word, left[-1] if left else "", right[0] if right else None)[0].text
        return None if best == word else best

    return fix


def spelling(name: str, known: Container[str], fix: Fix) -> System:
    def correct(lines: Sequence[str], tokens: bool) -> list[str]:
        return [checked(line, known, fix, tokens=tokens) for line in lines]

    return System(name, "", correct)


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
    parser.add_argument("--only", default="", metavar="REGEX", help="measure systems of such names alone")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    sets = read_sets(args.jfleg, args.cweb, args.eracond, args.ewt, args.part)
    model = nartk.load(args.model, dtype=args.dtype, threads=1)
    guard = model.checkpoint.guard
    if guard is None or guard.speller is None:
        sys.exit(f"{args.model} has no speller: run fit_speller.py")
    bare = replace(model.checkpoint, guard=replace(guard, spelling=None))
    corrector = of_loaded(Path(args.model).name, replace(model, checkpoint=bare))
    known = known_words()
    spellers = [
        spelling("Hunspell", known, hunspell()),
        spelling("SymSpell", known, symspell()),
        spelling("the speller", guard.speller, own(guard.speller)),
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
