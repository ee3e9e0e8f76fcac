"""`nartk-verify`: is a strategy's output greedy search's, token for token?"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nartk.cli import _strategy
from nartk.cli._common import Parser, command, require_least, with_model
from nartk.cli._files import read_for
from nartk.cli._input import (
    add_drafts,
    add_input,
    add_languages,
    add_model,
    load_model,
    numbers,
    split_inputs,
)
from nartk.cli._output import progress, tell
from nartk.errors import EXIT_FAILED, EXIT_OK, EXIT_SOME_FAILED, UsageError, number_of
from nartk.protocols.hypothesis import GUARDED
from nartk.registry import make_strategy, options_of

if TYPE_CHECKING:
    from nartk.bench.verification import Difference, Trial, Verifier
    from nartk.data.readers import Record
    from nartk.decoders.strategy import Strategy
    from nartk.protocols.hypothesis import DecodeStats
    from nartk.serving.model import Model

DESCRIPTION = """Decodes with greedy search and with a strategy and compares the tokens; on the engine, every
bit of their log-probabilities too. Exits with 0 if they are identical, with 1 if not. Of each sentence that
differs it says where, and whether that is a tie (the two words' logits lie within twice the numerical noise,
measured there and elsewhere) or a bug; of an approximate strategy, a deviation. Where torch computes, ties
are listed and allowed. Drafts are as long as the drafter makes them, unless --adaptive is given.
Of ordinary text each sentence is compared, as the model reads and writes it. A model that has a guard is
compared without it, and then with it."""
EXAMPLES = """  nartk-verify in.txt                                     the shipped model
  nartk-verify MODEL in.m2 --strategy iad --dtype fp32,bf16,int8 --batch-size 1,8,32
  nartk-verify MODEL in.txt --batch-sweep --adversarial --fuzz 200
  nartk-verify MODEL in.txt --strategy verify --drafts drafts.txt
  nartk-verify MODEL --fuzz 1000 --device cuda           how often near ties fall otherwise in torch"""
REFERENCE = "greedy"
SWEEP = (1, 2, 4, 8, 32)  # batch sizes of --batch-sweep
NEAR = 16  # sentences that --adversarial takes apart: those with the closest runners-up
NEAR_SWEEP = (1, 2, 3, 5, 8)  # batch sizes they are decoded with


class _Case(NamedTuple):
    """A sentence, what reports call it, and what its output may be."""

    where: str
    text: str
    drafts: tuple[str, ...] = ()


def _parser() -> Parser:
    parser = Parser(prog="nartk-verify", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s [MODEL] [FILE ...] [--strategy NAME] [options]"
    add_input(parser)
    add_drafts(parser)
    add_model(parser)
    add_languages(parser)
    parser.set_defaults(check=True)
    parser.add_argument(
        "--dtype",
        metavar="LIST",
        help="types to try, of fp32,bf16 and on a CPU int8, on a GPU fp16 (default: fp32, or what the folder "
        "holds if that is int8)",
    )
    parser.add_argument(
        "--batch-size", type=numbers, default=(32,), metavar="LIST", help="such as 1,8,32 (default: 32)"
    )
    sweep = ",".join(map(str, SWEEP))
    parser.add_argument(
        "--batch-sweep", action="store_true", help=f"batch sizes {sweep}, and the sentences in another order"
    )
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="add N random sentences")
    parser.add_argument("--fuzz-seed", type=int, default=1, metavar="N", help="of --fuzz (default: 1)")
    parser.add_argument(
        "--adversarial",
        action="store_true",
        help="add sentences that are empty, repetitive, unknown, as long as can be, or outputs themselves; "
        "decode the nearest ties in many batches",
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    argv = with_model(argv)
    args, options = _strategy.parse(_parser(), argv)
    if "adaptive" in options_of(args.strategy):
        options = {"adaptive": False, **options}  # what does not pay is to be verified too
    require_least(args, 0, "fuzz", "fuzz_seed")
    name, files = split_inputs(args.inputs, "nartk-verify", optional=True)
    generates = args.fuzz > 0 or args.adversarial
    if args.drafts is not None and generates and not files:
        raise UsageError("--drafts, but the sentences are generated", fix="name the file of their sentences")
    records: Sequence[Record] = ()
    if files or not generates:
        records = [*read_for(make_strategy(args.strategy, options), args, files)]
    cases = [_Case(record.where, record.text, record.drafts) for record in records if record.error is None]
    errors = [record.error for record in records if record.error is not None]
    passed = True
    for i, dtype in enumerate([None] if args.dtype is None else args.dtype.split(",")):
        model = load_model(name, args, dtype, files=files)
        if i == 0:
            cases = [*_sentences(model, cases)]
        model = replace(model, pretokenized=True)
        strategy = model.strategy(args.strategy, options, tell=partial(tell, args))
        if i == 0:
            cases += _generate(model, strategy, args, [case.text for case in cases])
        verifier, trials = _verify(model, strategy, args, cases)
        print("\n".join(_report(model, strategy, cases, verifier, trials)), flush=True)
        passed &= all(trial.passed for trial in trials)
        if model.checkpoint.guard is not None:
            differing, stats = verifier.compare_guarded(strategy, batch_size=args.batch_size[0])
            agrees = not differing or not model.is_exact
            print("\n".join(_report_guarded(cases, differing, stats, passed=agrees)), flush=True)
            passed &= agrees
        if i == 0:
            for line, error in sorted(verifier.errors.items()):
                error.where = cases[line].where
                errors.append(error)
            for error in errors:
                print(f"nartk: {error}", file=sys.stderr)
    if not passed:
        return EXIT_FAILED
    return EXIT_SOME_FAILED if errors else EXIT_OK


def _sentences(model: Model, lines: Iterable[_Case]) -> Iterator[_Case]:
    """The sentences of lines as the model reads them; a line with drafts is one."""
    text = model.tokenization
    for line in lines:
        found = text.paragraph(line.text, drafts=line.drafts).sentences
        for number, sentence in enumerate(found, start=1):
            where = f"{line.where}, sentence {number}" if len(found) > 1 else line.where
            yield _Case(where, sentence.text, tuple(map(text.tokens, line.drafts)))


def _generate(
    model: Model, strategy: Strategy, args: argparse.Namespace, lines: Sequence[str]
) -> list[_Case]:
    """The sentences of --fuzz and --adversarial."""
    from nartk.bench.verification import adversarial_lines, fuzz_lines

    made = {}
    if args.fuzz:
        made["fuzz"] = fuzz_lines(model, lines, args.fuzz, args.fuzz_seed)
    if args.adversarial:
        made["adversarial"] = adversarial_lines(model, lines, _reference(strategy))
    return [
        _Case(f"{category}:{number}", text)
        for category, texts in made.items()
        for number, text in enumerate(texts, start=1)
    ]


def _reference(strategy: Strategy) -> Strategy:
    """Greedy search with the options that it shares with the strategy."""
    greedy: Strategy = make_strategy(REFERENCE, _strategy.shared_options(strategy, REFERENCE))
    return greedy


def _verify(
    model: Model, strategy: Strategy, args: argparse.Namespace, cases: Sequence[_Case]
) -> tuple[Verifier, list[Trial]]:
    """Runs all trials that the flags ask for."""
    from nartk.bench.verification import Verifier

    reference = _reference(strategy)
    sizes = [*dict.fromkeys(args.batch_size + (SWEEP if args.batch_sweep else ()))]
    everything = range(len(cases))
    plan: list[tuple[Strategy, int, Sequence[int]]] = [(strategy, size, everything) for size in sizes]
    if args.batch_sweep:
        shuffled = random.Random(args.fuzz_seed).sample(everything, len(cases))
        plan += [(reference, size, everything) for size in sizes[1:]]
        plan += [(each, max(sizes), shuffled) for each in (reference, strategy)]
    near = min(NEAR, len(cases)) * len(NEAR_SWEEP) if args.adversarial else 0
    total = len(cases) * (1 + len(plan)) + near
    drawn = not args.quiet and sys.stderr.isatty()
    with progress(f"verifying in {model.dtype}", total, drawn=drawn) as show:
        done = itertools.count(1)
        verifier = Verifier(
            model,
            [case.text for case in cases],
            reference,
            batch_size=sizes[0],
            max_tokens=args.max_tokens,
            truncate=args.truncate,
            drafts=[case.drafts for case in cases],
            trace=args.adversarial,
            tick=lambda: show(next(done)),
        )
        if verifier.stats.sentences == 0:
            raise UsageError(
                "no sentence to verify with", fix="give a file that has some, or --fuzz, or --adversarial"
            )
        if args.adversarial:
            closest = verifier.closest(NEAR)
            plan += [(strategy, size, closest) for size in NEAR_SWEEP]
        trials = []
        for each, size, order in plan:
            trial = verifier.compare(each, batch_size=size, order=order)
            trials.append(trial)
            differ = len(trial.differences)
            tell(args, f"{_label(model, trial)}: {number_of(trial.lines, 'sentence')}, {differ} differ")
    return verifier, trials


def _label(model: Model, trial: Trial) -> str:
    return f"{model.dtype}, {trial.strategy}, batch {trial.batch_size}{', reordered' * trial.reordered}"


def _report(
    model: Model, strategy: Strategy, cases: Sequence[_Case], verifier: Verifier, trials: Sequence[Trial]
) -> list[str]:
    """A line for each difference, the verdict, and what drafting saved."""
    found = [(trial, difference) for trial in trials for difference in trial.differences]
    lines = [_describe(model, cases, *each) for each in found]
    categories = Counter(difference.category for _, difference in found)
    verdict = _verdict(found, passed=all(trial.passed for trial in trials))
    counts = [
        number_of(verifier.stats.sentences, "sentence"),
        number_of(verifier.stats.tokens, "token"),
        model.dtype,
        f"batch {' '.join(map(str, sorted({trial.batch_size for trial in trials})))}",
        *(f"{count} x {category}" for category, count in sorted(categories.items())),
    ]
    lines.append(f"{verdict}: {', '.join(counts)} | {model.signature(strategy)}")
    stats = trials[0].stats
    lines.append(
        f"{number_of(verifier.stats.passes, 'pass')} of {REFERENCE}, {stats.passes} of {strategy.name}, "
        f"which accepted {stats.accepted} of {stats.drafted} drafted tokens"
    )
    return lines


def _verdict(differences: Sequence[object], *, passed: bool) -> str:
    if not passed:
        return f"NOT identical to {REFERENCE}"
    return f"identical to {REFERENCE}" + (" up to ties" if differences else "")


def _report_guarded(
    cases: Sequence[_Case], differing: Sequence[int], stats: DecodeStats, *, passed: bool
) -> list[str]:
    """The verdict on outputs that the model's guard has let pass or mended."""
    verdict = _verdict(differing, passed=passed)
    counts = ", ".join(f"{getattr(stats, done)} {done}" for done in GUARDED)
    return [
        *(f"with the guard {cases[line].where} differs" for line in differing),
        f"with the guard {verdict}: {number_of(stats.sentences, 'sentence')}, {counts}",
    ]


def _describe(model: Model, cases: Sequence[_Case], trial: Trial, difference: Difference) -> str:
    where = f"{difference.category} {cases[difference.line].where} [{_label(model, trial)}]"
    words = [
        "the end" if token is None else repr(model.checkpoint.target_vocab.to_words([token])[0])
        for token in (difference.expected, difference.found)
    ]
    token = f"token {difference.position + 1}"
    if difference.category == "scores":
        return f"{where}: {token}, {words[0]}, is the same, its log-probability is not"
    margin = "none" if difference.margin is None else f"{difference.margin:.3g}"
    return (
        f"{where}: {token} is {words[1]}, {REFERENCE}'s is {words[0]}, "
        f"margin {margin}, noise {difference.noise:.3g}"
    )
