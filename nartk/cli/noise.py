"""`nartk-noise`: turns clean English into learners' English, and measures how learners err."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nartk.cli._common import Parser, command, require_least
from nartk.cli._files import read_files
from nartk.cli._output import add_output, printing
from nartk.data.m2 import M2Sentence, read_m2
from nartk.data.readers import Fields
from nartk.errors import EXIT_OK, InputFormatError, LengthMismatchError, UsageError, number_of
from nartk.files import shown

DESCRIPTION = """Adds learners' errors to clean tokenised English, one sentence a line, from files or stdin.
With --fit or --fit-parallel it measures such errors instead and prints a table for --rates."""
EXAMPLES = """  echo 'She goes to school every day .' | nartk-noise --seed 3
  nartk-noise clean.txt --copies 6 --pairs > pairs.tsv     noised TAB clean, six of each
  echo "She doesn't know." | nartk-noise --tokenize
  nartk-noise --fit corpus.m2 > rates.json
  nartk-noise --fit-parallel learners.txt ref0.txt ref1.txt > rates.json
  nartk-noise clean.txt --rates rates.json"""
PROGRESS_EVERY = 10000  # lines


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nartk-noise", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("files", nargs="*", metavar="FILE", help="clean text, packed or not; default: stdin")
    parser.add_argument(
        "--rates", metavar="NAME", help="gec-en (default), jfleg, cweb, eracond, mlqe or a file"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed and line: same noise (default: 1)")
    parser.add_argument("--copies", type=int, default=1, help="noised lines for each clean one (default: 1)")
    parser.add_argument("--pairs", action="store_true", help="print noised TAB clean")
    parser.add_argument("--tokenize", action="store_true", help="the input is plain text, not tokens")
    add_output(parser)
    measure = parser.add_mutually_exclusive_group()
    measure.add_argument("--fit", metavar="M2FILE", help="measure the edits of an M2 file; print JSON")
    measure.add_argument(
        "--fit-parallel", nargs="+", metavar="FILE", help="the same for a source and its corrected versions"
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    args = _parser().parse_args(argv)
    if args.fit is not None or args.fit_parallel is not None:
        if args.files or args.rates is not None or args.pairs or args.tokenize:
            raise UsageError(
                "--fit and --fit-parallel take no text and no options for noise", fix="leave the rest out"
            )
        with printing(args.output):
            return _fit(args)
    require_least(args, 1, "copies")
    require_least(args, 0, "seed")
    with printing(args.output):
        return _noise(args)


def _fit(args: argparse.Namespace) -> int:
    from nartk.data.gec.rates import align, fit_rates

    if args.fit is not None:
        name = args.fit
        sentences: Iterator[M2Sentence] = read_m2(_strict(name), name=shown(name))
    else:
        if len(args.fit_parallel) < 2:
            raise UsageError("--fit-parallel has one file", fix="give the source and its corrected versions")
        name, *references = args.fit_parallel
        sides = [[line.split() for line in _strict(file)] for file in args.fit_parallel]
        for file, side in zip(references, sides[1:], strict=True):
            if len(side) != len(sides[0]):
                raise LengthMismatchError(
                    f"{shown(file)} has {number_of(len(side), 'line')}, {shown(name)} has {len(sides[0])}",
                    fix="give parallel files",
                )
        sentences = (
            M2Sentence(wrong, [edit for who, right in enumerate(rights) for edit in align(wrong, right, who)])
            for wrong, *rights in zip(*sides, strict=True)
        )
    rates = fit_rates(sentences, origin=f"measured on {Path(shown(name)).name}")
    print(json.dumps(rates.to_dict(), indent=2, ensure_ascii=False))
    return EXIT_OK


def _noise(args: argparse.Namespace) -> int:
    from nartk.data.gec.noise import Noiser, annotate
    from nartk.data.gec.rates import DEFAULT_RATES, load_rates
    from nartk.data.text import tokenize

    rates = load_rates(DEFAULT_RATES if args.rates is None else args.rates)
    noiser = Noiser(rates, seed=args.seed)
    status = EXIT_OK
    number = 0
    drawn = not args.quiet and sys.stderr.isatty()
    for record in read_files(args.files, "txt", Fields()):
        number += 1
        text, error = record.text, record.error
        if args.pairs and "\t" in text:
            message = "the line has a tab, which separates pairs"
            error = InputFormatError(message, fix="take tabs out", where=record.where)
        if error is not None:
            print(f"nartk: {error}", file=sys.stderr)
            status = error.exit_code
            text = ""
        sentence = annotate(tokenize(text) if args.tokenize else text.split())
        clean = " ".join(sentence.tokens)
        for copy in range(args.copies):
            noised = " ".join(noiser.noise_line(sentence, number - 1, copy))
            print(f"{noised}\t{clean}" if args.pairs else noised)
        if drawn and number % PROGRESS_EVERY == 0:
            print(f"\r{number_of(number, 'line')}", end="", file=sys.stderr, flush=True)
    if drawn and number >= PROGRESS_EVERY:
        print(f"\r{number_of(number, 'line')}, done", file=sys.stderr)
    return status


def _strict(name: str) -> Iterator[str]:
    """Lines of a file whose every line must be readable."""
    for record in read_files([name], "txt", Fields()):
        if record.error is not None:
            raise record.error
        yield record.text
