"""Fits the table of letter edits that misspells words, data/corpora/spelling.tsv.xz, to real misspellings.

    python recipes/gec/fit_spelling.py --output data/corpora/spelling.tsv.xz [--pairs SRC TRG] [--check]

The misspellings are codespell's that ship, but for those held out, and those of pairs of real sentences (of
real_pairs.py), which weigh more, being counted as often as they were made. `--check` measures how many of the
held-out ones are among the samples of their words, beside edits with letters drawn at random.
"""

from __future__ import annotations

import argparse
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from build_corpora import read, write

from nartk.data.gec.lexicon import held_out_misspellings, lexicon, misspellings
from nartk.data.gec.rates import align, classify
from nartk.data.gec.spelling import SpellingNoise, fit_spelling, spelling_noise

WEIGHT = 20.0  # of a misspelling in a real sentence
SAMPLES = (10, 100, 1000)


def listed() -> Iterator[tuple[str, str, float]]:
    for right, wrongs in misspellings().items():
        for wrong in wrongs:
            yield right.lower(), wrong.lower(), 1.0


def real(source: Path, target: Path) -> Iterator[tuple[str, str, float]]:
    """Misspelt words of pairs of sentences; real words written for each other are other errors."""
    for line, right in zip(read(source), read(target), strict=True):
        wrong = line.split(" ")
        for edit in align(wrong, right.split(" ")):
            one = wrong[edit.start : edit.end]
            is_spelling = not edit.is_noop and classify(one, edit.alternatives[0]) == "spelling"
            if is_spelling and not lexicon().is_known(one[0]):
                yield edit.alternatives[0][0].lower(), one[0].lower(), WEIGHT


def random_edit(word: str, rng: Random) -> str:
    """One letter put in, left out, replaced or swapped anywhere, all alike likely."""
    at, letter = rng.randrange(len(word)), rng.choice(string.ascii_lowercase)
    return rng.choice(
        (
            word[:at] + letter + word[at:],
            word[:at] + word[at + 1 :],
            word[:at] + letter + word[at + 1 :],
            word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
        )
    )


def check(noise: SpellingNoise) -> None:
    pairs = [
        (right, wrong)
        for right, wrongs in held_out_misspellings().items()
        for wrong in wrongs
        if right.isalpha() and right.islower() and wrong.isalpha()
    ]
    print("samples | fitted | at random", file=sys.stderr)
    for samples in SAMPLES:
        shares = []
        for draw in (noise.misspell, random_edit):
            rng = Random(1)
            hits = sum(any(draw(right, rng) == wrong for _ in range(samples)) for right, wrong in pairs)
            shares.append(f"{100 * hits / len(pairs):.1f} %")
        print(f"{samples} | {' | '.join(shares)} of {len(pairs)}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="file to write")
    parser.add_argument(
        "--pairs", type=Path, nargs=2, metavar=("SRC", "TRG"), help="real sentences and corrections"
    )
    parser.add_argument("--check", action="store_true", help="measure on the misspellings held out")
    args = parser.parse_args()
    noise = spelling_noise()
    if args.output is not None:
        noise = fit_spelling([*listed(), *(real(*args.pairs) if args.pairs else ())])
        write(args.output, noise.lines())
    if args.check:
        check(noise)


if __name__ == "__main__":
    main()
