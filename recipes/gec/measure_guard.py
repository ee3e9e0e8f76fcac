"""Measures what the guard of a correction model changes, on texts that it was not fitted on.

    python recipes/gec/measure_guard.py MODEL --jfleg DIR --ewt FILE --asset FILE [--dictionary FILE]

JFLEG dev as it is, its sentences joined, without marks between, glued, and in capitals; the sentences and the
paragraphs of UD English EWT dev (CoNLL-U); the originals of ASSET; sentences with a rare word each. A line is
damaged that lacks more than a third of its source's words. A line holds a new word that exists nowhere if
neither the source nor a dictionary has it, by default ERRANT's, a Hunspell list that the guard does not know.
Both are measured without the guard and with it, by greedy search; then the processor's time with `iad`, in
turns.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from testsets import dictionary, paragraphs, read, treebank, words

import nartk
from nartk.data.text import detokenize

CLITICS = ("n't", "'ll", "'ve", "'re", "'d", "'m", "'s")
RARE = 600
FRAMES = (
    "We talked about {} yesterday.",
    "The {} was not what they expected.",
    "She read a book on {} in the library.",
)


def is_damaged(source: str, output: str) -> bool:
    before, after = Counter(words(source)), Counter(words(output))
    return 3 * (before - after).total() > before.total()


def has_new_word(source: str, output: str, known: set[str]) -> bool:
    """True if an output has a word that neither its source nor a dictionary has."""
    mine = {*words(source)}
    for word in {*words(output)} - mine:
        stem = next((word.removesuffix(each) for each in CLITICS if word.endswith(each)), word)
        if not {word, stem} & (known | mine):
            return True
    return False


def without_end(text: str) -> str:
    return text.rstrip(".!? ")


def begun_small(text: str) -> str:
    return text if text.startswith(("I ", "I'")) else text[:1].lower() + text[1:]


def joined(texts: Sequence[str], count: int, between: str, *, small: bool = False) -> list[str]:
    """Lines of so many sentences each, only the last of which keeps its end."""
    found = []
    for i in range(0, len(texts) - count + 1, count):
        parts = [*map(without_end, texts[i : i + count - 1]), texts[i + count - 1]]
        rest = [begun_small(part) if small else part for part in parts[1:]]
        found.append(between.join([parts[0], *rest]))
    return found


def with_rare_words(dictionary: Sequence[str], common: Container[str]) -> list[str]:
    """Sentences with a word each that the dictionary has, and the list of the guard has not."""
    rare = [each for each in dictionary if each.isalpha() and len(each) > 4 and each.lower() not in common]
    chosen = random.Random(1).sample(rare, RARE)
    return [FRAMES[i % len(FRAMES)].format(word) for i, word in enumerate(chosen)]


def texts(args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Names and lines of all that is decoded."""
    jfleg = [detokenize(line.split()) for line in read(args.jfleg / "dev.src")]
    yield "JFLEG dev", jfleg
    yield "two joined by *and*", joined(jfleg, 2, " and ", small=True)
    yield "four joined by *and*", joined(jfleg, 4, " and ", small=True)
    yield "two joined by nothing", joined(jfleg, 2, " ")
    yield "two glued by `.`", joined(jfleg, 2, ".")
    yield "two glued by `?`", joined(jfleg, 2, "?")
    yield "two glued by `!`", joined(jfleg, 2, "!")
    yield "in capitals", [line.upper() for line in jfleg]
    ordinary = treebank(args.ewt)
    yield "UD EWT dev", [each.text for each in ordinary]
    yield "its paragraphs", paragraphs(ordinary)
    yield "ASSET's originals", [detokenize(line.split()) for line in read(args.asset)]


def seconds(model: nartk.Model, lines: Sequence[str], *, guard: bool, batch_size: int) -> float:
    model = replace(model, guard=guard)
    start = time.process_time()
    model.decode(lines, "iad", batch_size=batch_size)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--jfleg", type=Path, required=True, metavar="DIR", help="holds dev.src")
    parser.add_argument("--ewt", type=Path, required=True, metavar="FILE", help="CoNLL-U of dev, may be .xz")
    parser.add_argument("--asset", type=Path, required=True, metavar="FILE", help="original sentences")
    parser.add_argument("--dictionary", type=Path, metavar="FILE", help="words, one a line")
    parser.add_argument("--dtype", help="as nartk-decode has it")
    parser.add_argument("--only", default="", metavar="REGEX", help="measure texts of such names alone")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of the time (default: 5)")
    args = parser.parse_args()
    listed = dictionary(args.dictionary)
    known = {word.lower() for word in listed}
    model = nartk.load(args.model, dtype=args.dtype, threads=1)
    print(f"{model.signature(model.strategy('greedy', {}))}\n")
    print("| | lines | damaged | with the guard | new non-word | with the guard | split, kept, undone |")
    print("|---|---|---|---|---|---|---|")
    every = dict(texts(args))
    if model.guarding is not None:
        every["rare words"] = with_rare_words(listed, model.guarding.words)
    for name, lines in every.items():
        if re.search(args.only, name) is None:
            continue
        row, done = [], ""
        for guard in (False, True):
            model = replace(model, guard=guard)
            run = model.run(lines, "greedy")
            outputs = [best.text for best in run.best]
            pairs = [*zip(lines, outputs, strict=True)]
            row.append(sum(is_damaged(*pair) for pair in pairs) / len(lines))
            row.append(sum(has_new_word(*pair, known) for pair in pairs) / len(lines))
            stats = run.stats
            done = f"{stats.split}, {stats.kept}, {stats.undone}"
        shares = " | ".join(f"{100 * row[i]:.1f} %" for i in (0, 2, 1, 3))
        print(f"| {name} | {len(lines)} | {shares} | {done} |", flush=True)
    for batch_size in (1, 32) if args.rounds else ():
        lines = every["JFLEG dev"][:: 1 if batch_size > 1 else 4]
        seconds(model, lines[:32], guard=True, batch_size=batch_size)
        ratios = []
        for _ in range(args.rounds):
            before, after = (
                seconds(model, lines, guard=guard, batch_size=batch_size) for guard in (False, True)
            )
            ratios.append(after / before)
        print(f"\nbatch {batch_size}: {statistics.median(ratios):.3f} of the time without ({sorted(ratios)})")


if __name__ == "__main__":
    main()
