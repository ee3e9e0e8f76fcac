"""`nartk-score`: scores corrections, translations and summaries, with intervals and paired bootstrap."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.cli._common import Parser, run
from nartk.errors import EXIT_OK, InputFileError, NartkError, UnknownStrategyError, UsageError

if TYPE_CHECKING:
    from nartk.metrics.bootstrap import Interval, PairedDifference
    from nartk.metrics.result import MetricResult

# As the original programs print.
DIGITS = {"errant": 4, "m2": 4, "gleu": 6, "bleu": 2, "chrf": 2, "rouge": 5, "sari": 2}
LONGEST_LIST = 8  # longer lists are for --json only
FOR_JSON = ("types",)  # some 50 lines

DESCRIPTION = """Scores HYP, one text a line, with errant, m2, gleu, bleu, chrf, rouge or sari.
errant, m2, gleu and rouge run from 0 to 1 as their original programs print them, bleu, chrf and sari from 0
to 100."""
EXAMPLES = """  nartk-score m2 out.txt --gold gold.m2
  nartk-score gleu out.txt --source in.txt --ref ref0 ref1 ref2 ref3
  nartk-score errant out.txt --source in.txt --ref ref0 ref1 --json
  nartk-score errant --hyp-m2 out.m2 --gold gold.m2                needs no spaCy pipeline
  nartk-score bleu out.txt --ref ref.txt --baseline greedy.txt     paired bootstrap of the two
  nartk-score rouge out.txt --ref ref0 ref1 ref2                   of several references the best
  nartk-score sari out.txt --source in.txt --ref ref0 ref1
  nartk-decode model in.txt | nartk-score chrf - --ref ref.txt"""

# File name of a system's output -> its score; rouge has several, the first of them leads.
Scorer = Callable[[str], "MetricResult | list[MetricResult]"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(_command, argv)


def _command(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in METRICS:
        raise UnknownStrategyError(f"no metric {argv[0]!r}", fix=f"choose one of {', '.join(METRICS)}")
    args = _parser().parse_args(argv)
    if args.baseline is not None and args.bootstrap == 0:
        raise UsageError("--baseline needs a bootstrap, but --bootstrap is 0", fix="leave one of them out")
    system = args.hypothesis if args.hyp_m2 is None else args.hyp_m2
    if system is None:
        raise UsageError("HYP is missing", fix="put HYP before --ref, or -- between the references and HYP")

    from nartk.metrics.bootstrap import compare, confidence

    score = METRICS[args.metric](args)
    results = _listed(score(system))
    baselines: list[MetricResult | None] = [None] * len(results)
    if args.baseline is not None:
        baselines = [*_listed(score(args.baseline))]
    reports = []
    for result, baseline in zip(results, baselines, strict=True):
        interval = difference = None
        if args.bootstrap > 0:
            interval = confidence(result, samples=args.bootstrap, seed=args.seed)
        if baseline is not None:
            difference = compare(result, baseline, samples=args.bootstrap, seed=args.seed)
        reports.append((result, interval, difference))
    if args.json:
        first, *others = (_as_json(*report) for report in reports)
        if others:
            first["others"] = others
        print(json.dumps(first, ensure_ascii=False))
    else:
        print("\n".join(line for report in reports for line in _as_text(*report)))
        print(f"sentences {results[0].sentences}\nsignature {results[0].signature}")
    return EXIT_OK


def scorer_of(metric: str | None, *, references: Sequence[str], source: str) -> Scorer:
    """What scores a file of outputs, as nartk-score would.

    Args:
        metric: A name, and options of it if need be, as on a command line.
        references: Files, for ``--ref``.
        source: A file, for the ``--source`` of those that need one.

    Raises:
        UnknownStrategyError: There is no such metric.
        UsageError: It does not know an option, or lacks one.
    """
    try:
        name, *flags = shlex.split("" if metric is None else metric) or [""]
    except ValueError as error:
        raise UsageError(f"--metric is {metric!r}: {error}", fix="close the quotes") from None
    if name not in METRICS:
        raise UnknownStrategyError(
            f"no metric {name!r}" if name else "--metric is missing",
            fix=f"choose one of {', '.join(METRICS)}",
        )
    known = _flags_of(name)
    if "--source" in known and not {"--source", "--gold"} & set(flags):
        flags += ["--source", source]
    if references:
        flags += ["--ref", *references]
    return METRICS[name](_parser().parse_args([name, *flags]))


def _flags_of(metric: str) -> set[str]:
    (action,) = (each for each in _parser()._actions if each.dest == "metric")
    return {text for each in action.choices[metric]._actions for text in each.option_strings}  # type: ignore


def _listed(scored: MetricResult | list[MetricResult]) -> list[MetricResult]:
    return scored if isinstance(scored, list) else [scored]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nartk-score", description=DESCRIPTION, examples=EXAMPLES)
    metrics = parser.add_subparsers(dest="metric", metavar="METRIC", required=True)

    def metric(name: str, summary: str, *, example: str) -> argparse.ArgumentParser:
        sub = metrics.add_parser(name, help=summary, description=summary, examples=f"  nartk-score {example}")
        sub.add_argument("hypothesis", nargs="?", metavar="HYP", help="output to score; - reads stdin")
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument(
            "--bootstrap", type=_whole(0), default=1000, metavar="N", help="resamples for intervals; 0: none"
        )
        sub.add_argument(
            "--seed", type=_whole(0), default=12345, help="of the bootstrap (default: %(default)s)"
        )
        sub.add_argument("--baseline", metavar="HYP2", help="output of another system to compare HYP with")
        sub.set_defaults(hyp_m2=None)
        return sub

    errant = metric("errant", "ERRANT span-based correction F", example="errant HYP --source SRC --ref REF")
    errant.add_argument("--gold", metavar="M2", help="gold edits; else --source and --ref")
    errant.add_argument("--hyp-m2", metavar="M2", help="the output as ERRANT edits, in place of HYP")
    _add_texts(errant, required=False)
    errant.add_argument("--spacy", metavar="NAME", help="spaCy pipeline, a name or a folder")
    errant.add_argument("--beta", type=_positive, default=0.5, help="weight of recall (default: %(default)s)")

    m2 = metric("m2", "MaxMatch (M2) F", example="m2 HYP --gold GOLD.m2")
    m2.add_argument("--gold", metavar="M2", required=True, help="sources and gold edits")
    m2.add_argument("--beta", type=_positive, default=0.5, help="weight of recall (default: %(default)s)")
    m2.add_argument(
        "--max-unchanged-words",
        type=_whole(0),
        default=2,
        metavar="N",
        help="longest run of unchanged words inside an edit (default: %(default)s)",
    )
    m2.add_argument(
        "--ignore-whitespace-casing", action="store_true", help="match gold edits in any case and spacing"
    )

    gleu = metric("gleu", "GLEU for grammar", example="gleu HYP --source SRC --ref REF0 REF1")
    _add_texts(gleu, required=True)
    gleu.add_argument(
        "--iterations",
        type=_whole(1),
        default=500,
        metavar="N",
        help="draws of references (default: %(default)s)",
    )

    bleu = metric("bleu", "BLEU by sacrebleu", example="bleu HYP --ref REF --tokenize none")
    bleu.add_argument("--tokenize", default="13a", help="sacrebleu's tokeniser (default: %(default)s)")
    chrf = metric("chrf", "chrF by sacrebleu", example="chrf HYP --ref REF --word-order 2")
    chrf.add_argument("--word-order", type=_whole(0), default=0, help="2 gives chrF++ (default: %(default)s)")
    for sub in (bleu, chrf):
        sub.add_argument("--ref", nargs="+", action="extend", required=True, help="references")
        sub.add_argument("--lowercase", action="store_true", help="ignore case")

    rouge = metric("rouge", "ROUGE-1, 2, L and Lsum F by rouge-score", example="rouge HYP --ref REF0 REF1")
    rouge.add_argument(
        "--ref",
        nargs="+",
        action="extend",
        required=True,
        help="references, of which the best counts; an empty line: there is none",
    )
    rouge.add_argument("--stem", action="store_true", help="Porter's stemmer, as ROUGE-1.5.5 with -m")
    rouge.add_argument(
        "--separator", default="", metavar="TEXT", help="what parts the sentences of a line, for ROUGE-Lsum"
    )

    sari = metric("sari", "SARI for simplification", example="sari HYP --source SRC --ref REF0 REF1")
    sari.add_argument("--source", metavar="SRC", required=True, help="sentences to simplify")
    sari.add_argument("--ref", nargs="+", action="extend", required=True, help="simplified sentences")
    sari.add_argument(
        "--level",
        default="corpus",
        help="corpus: counts summed, as EASSE; sentence: the mean of sentences (default: %(default)s)",
    )
    sari.add_argument(
        "--deletion",
        default="f1",
        help="what counts of deletions: f1, as EASSE, or precision, as the paper (default: %(default)s)",
    )
    sari.add_argument("--tokenize", default="13a", help="sacrebleu's tokeniser (default: %(default)s)")
    sari.add_argument("--keep-case", action="store_true", help="do not ignore case")
    return parser


def _add_texts(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--source", metavar="SRC", required=required, help="uncorrected sentences")
    parser.add_argument("--ref", nargs="+", action="extend", required=required, help="corrected sentences")


def _whole(low: int) -> Callable[[str], int]:
    """An argument type: a whole number from `low` on."""

    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {low}, but is {text!r}")
        return int(text)

    return whole


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, but is {text!r}")
    return number


def _read_lines(name: str) -> list[str]:
    """Lines of a file or of stdin, without their ends.

    Raises:
        InputFileError: It cannot be read or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InputFileError(
            f"cannot read: {error.strerror}", fix="name a readable file", where=name
        ) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputFileError(
            f"byte {data[error.start]:#x} is not UTF-8",
            fix="convert the file to UTF-8",
            where=f"{name}:{line}",
        ) from error
    # Only the line feed ends a line: other separators are text here.
    lines = text.split("\n")
    if lines[-1] == "":
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]


def _errant(args: argparse.Namespace) -> Scorer:
    from nartk.data.m2 import read_m2
    from nartk.metrics.errant import ErrantAnnotator, errant_score

    if args.hyp_m2 is not None and args.hypothesis is not None:
        raise UsageError("HYP and --hyp-m2 both name the output", fix="give one of them")
    if (args.gold is None) == (args.source is None and args.ref is None):
        raise UsageError("errant takes --gold, or --source and --ref", fix="give one of the two")
    if args.gold is None and (args.source is None or args.ref is None):
        raise UsageError("--source and --ref belong together", fix="give both, or --gold")

    annotator = cache(lambda: ErrantAnnotator(args.spacy))
    annotation = "" if args.gold is not None and args.hyp_m2 is not None else annotator().signature
    if args.gold is not None:
        gold = list(read_m2(_read_lines(args.gold), name=args.gold))
    else:
        references = [_tokens(_read_lines(name)) for name in args.ref]
        gold = annotator().annotate_all(_tokens(_read_lines(args.source)), references)

    def score(name: str) -> MetricResult:
        lines = _read_lines(name)
        if args.hyp_m2 is not None:
            edits = list(read_m2(lines, name=name))
        else:
            edits = annotator().annotate([sentence.source for sentence in gold], _tokens(lines))
        return errant_score(gold, edits, beta=args.beta, annotation=annotation)

    return score


def _tokens(lines: Iterable[str]) -> list[list[str]]:
    # As M2 files do: only the space separates tokens.
    return [[token for token in line.split(" ") if token] for line in lines]


def _m2(args: argparse.Namespace) -> Scorer:
    from nartk.data.m2 import read_m2
    from nartk.metrics.m2 import m2_score

    dropped: list[NartkError] = []
    gold = list(read_m2(_read_lines(args.gold), name=args.gold, outside=dropped.append))
    if dropped:
        first = f"{dropped[0].where}: {dropped[0].message}"
        print(
            f"nartk: left out gold edits outside their sentence: {len(dropped)}, first {first}",
            file=sys.stderr,
        )
    return lambda name: m2_score(
        gold,
        _read_lines(name),
        beta=args.beta,
        max_unchanged_words=args.max_unchanged_words,
        ignore_whitespace_casing=args.ignore_whitespace_casing,
    )


def _gleu(args: argparse.Namespace) -> Scorer:
    from nartk.metrics.gleu import gleu_score

    sources, references = _read_lines(args.source), [_read_lines(name) for name in args.ref]
    return lambda name: gleu_score(sources, references, _read_lines(name), iterations=args.iterations)


def _bleu(args: argparse.Namespace) -> Scorer:
    from nartk.metrics.sacre import bleu_score

    references = [_read_lines(name) for name in args.ref]
    return lambda name: bleu_score(
        references, _read_lines(name), tokenize=args.tokenize, lowercase=args.lowercase
    )


def _chrf(args: argparse.Namespace) -> Scorer:
    from nartk.metrics.sacre import chrf_score

    references = [_read_lines(name) for name in args.ref]
    return lambda name: chrf_score(
        references, _read_lines(name), word_order=args.word_order, lowercase=args.lowercase
    )


def _rouge(args: argparse.Namespace) -> Scorer:
    from nartk.metrics.rouge import rouge_score

    references = [_read_lines(name) for name in args.ref]
    return lambda name: rouge_score(references, _read_lines(name), stem=args.stem, separator=args.separator)


def _sari(args: argparse.Namespace) -> Scorer:
    from nartk.metrics.sari import sari_score

    sources, references = _read_lines(args.source), [_read_lines(name) for name in args.ref]
    return lambda name: sari_score(
        sources,
        references,
        _read_lines(name),
        level=args.level,
        deletion=args.deletion,
        tokenize=args.tokenize,
        lowercase=not args.keep_case,
    )


METRICS: dict[str, Callable[[argparse.Namespace], Scorer]] = {
    "errant": _errant,
    "m2": _m2,
    "gleu": _gleu,
    "bleu": _bleu,
    "chrf": _chrf,
    "rouge": _rouge,
    "sari": _sari,
}


def _as_json(
    result: MetricResult, interval: Interval | None, difference: PairedDifference | None
) -> dict[str, Any]:
    report: dict[str, Any] = {"metric": result.metric, "score": result.score, "sentences": result.sentences}
    report |= result.parts
    if interval is not None:
        report["confidence"] = asdict(interval)
    if difference is not None:
        report["comparison"] = asdict(difference)
    report["signature"] = result.signature
    return report


def _as_text(
    result: MetricResult, interval: Interval | None, difference: PairedDifference | None
) -> list[str]:
    """The score on the first line, then its parts, one a line."""
    # rougeL is of the metric rouge
    digits = next(number for name, number in DIGITS.items() if result.metric.startswith(name))

    def show(value: Any) -> str:
        if isinstance(value, list):
            return " ".join(map(show, value))
        return f"{value:.{digits}f}" if isinstance(value, float) else str(value)

    def between(bounds: Interval) -> str:
        return f"({bounds.level:.0%} interval {show(bounds.low)} to {show(bounds.high)})"

    first = [result.metric, show(result.score)]
    if interval is not None:
        first.append(between(interval))
    lines = [" ".join(first)]
    if difference is not None:
        by, bounds = show(difference.difference), between(difference.interval)
        lines.append(
            f"baseline {show(difference.baseline)} difference {by} {bounds} p {difference.p_value:.4f}"
        )
    for name, value in result.parts.items():
        if isinstance(value, dict):
            lines += [] if name in FOR_JSON else _table(name, value)
        elif not isinstance(value, list) or len(value) <= LONGEST_LIST:
            lines.append(f"{name} {show(value)}")
    return lines


def _table(name: str, rows: dict[str, dict[str, float]]) -> list[str]:
    """Counts and scores by error type, in columns."""
    lines = [f"{name:<16}{'tp':>7}{'fp':>7}{'fn':>7}{'P':>9}{'R':>9}{'F':>9}"]
    for label, row in rows.items():
        counts = f"{row['tp']:>7}{row['fp']:>7}{row['fn']:>7}"
        lines.append(f"{label:<16}{counts}{row['precision']:>9.4f}{row['recall']:>9.4f}{row['f']:>9.4f}")
    return lines
