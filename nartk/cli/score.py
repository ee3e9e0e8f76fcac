"""`nartk-score`: scores corrections, translations, summaries and transcripts, with paired bootstrap."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nartk.cli._common import Parser, command
from nartk.cli._output import add_json, json_writer, printing, tell
from nartk.cli._strategy import add_options
from nartk.errors import (
    EXIT_OK,
    LengthMismatchError,
    StrategyMismatchError,
    UnknownStrategyError,
    UsageError,
    named,
)
from nartk.files import STDIN, JsonObject, shown
from nartk.metrics.bootstrap import compare, confidence
from nartk.metrics.metric import BLANKS, Metric, MetricFiles, Scorer, Tell
from nartk.metrics.utterances import AUTO, IDS, NO
from nartk.registry import METRICS

if TYPE_CHECKING:
    from nartk.metrics.bootstrap import Interval, PairedDifference
    from nartk.metrics.result import MetricResult

LONGEST_LIST = 8  # longer lists are for --json only
FOR_JSON = ("types",)  # some 50 lines

DESCRIPTION = """Scores HYP, one text a line, by a metric, in the scale of the metric's original program."""
EXAMPLES = """  nartk-score m2 out.txt --gold gold.m2
  nartk-score gleu out.txt --source in.txt --ref ref0 ref1 ref2 ref3
  nartk-score errant out.txt --source in.txt --ref ref0 ref1 --json
  nartk-score errant --hyp-m2 out.m2 --gold gold.m2                needs no spaCy pipeline
  nartk-score bleu out.txt --ref ref.txt --baseline greedy.txt     paired bootstrap of the two
  nartk-score rouge out.txt --ref ref0 ref1 ref2                   of several references the best
  nartk-score sari out.txt --source in.txt --ref ref0 ref1
  nartk-score wer out.txt --ref ref.txt --lowercase
  nartk-score asr-bleu out --recogniser asr-digits --ref ref.txt   of the sound that --speech wrote
  nartk-score bleu out.txt --ref ref.txt --per-line scores.tsv
  nartk-decode model in.txt | nartk-score chrf - --ref ref.txt"""
# What the command alone takes, and not a metric that others score with, with its defaults.
COMMANDS = {
    **dict.fromkeys(("hypothesis", "hyp_m2", "baseline", "json", "per_line")),
    **{"bootstrap": 1000, "seed": 12345},
}
METAVARS = {"source": "SRC", "gold": "M2", "hyp_m2": "M2"}


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    if argv and not argv[0].startswith("-"):
        METRICS.find(argv[0])
    args = _parser().parse_args(argv)
    if args.baseline is not None and args.bootstrap == 0:
        raise UsageError("--baseline needs a bootstrap, but --bootstrap is 0", fix="leave one of them out")
    if args.hyp_m2 is not None and args.hypothesis is not None:
        raise UsageError("HYP and --hyp-m2 both name the output", fix="give one of them")
    system = args.hypothesis if args.hyp_m2 is None else args.hyp_m2
    if system is None:
        raise UsageError(
            "HYP is missing", fix="put HYP before --ref, --json and --per-line, or -- between them and HYP"
        )

    _require_apart(args, system)
    metric = _made(args)
    score = metric.scorer(_files(args, partial(tell, args)))
    results = score(system)
    baselines: list[MetricResult | None] = [None] * len(results)
    if args.baseline is not None:
        found = score(args.baseline)
        _require_same_ids((system, results[0]), (args.baseline, found[0]))
        baselines = [*found]
    by_line = None if args.per_line is None else _by_line(results, baselines)
    if by_line is not None and (args.per_line != STDIN or args.json is None):
        with printing(args.per_line):
            print("\n".join(_as_rows(by_line, results[0].ids, metric.digits)))
        if args.per_line == STDIN:
            return EXIT_OK
    reports = []
    for result, baseline in zip(results, baselines, strict=True):
        interval = difference = None
        if args.bootstrap > 0:
            interval = confidence(result, samples=args.bootstrap, seed=args.seed)
        if baseline is not None:
            difference = compare(result, baseline, samples=args.bootstrap, seed=args.seed)
        reports.append((result, interval, difference))
    with json_writer(args.json) as write:
        first, *others = (_as_json(*report) for report in reports)
        if by_line is not None and args.per_line == STDIN:
            first["lines"] = {} if results[0].ids is None else {"id": results[0].ids}
            for name, scores in by_line.items():
                first["lines"][name] = [None if math.isnan(score) else score for score in scores]
        if others:
            first["others"] = others
        write(first, ensure_ascii=False)
    if args.json != STDIN:
        print("\n".join(line for report in reports for line in _as_text(*report, metric.digits)))
        print(f"sentences {results[0].sentences}\nsignature {results[0].signature}")
    return EXIT_OK


def metric_of(metric: str | None) -> tuple[type[Metric], list[str]]:
    """The class of a metric that is named as on a command line, and its flags; raises as `scorer_of`."""
    try:
        name, *flags = shlex.split("" if metric is None else metric) or [""]
    except ValueError as error:
        raise UsageError(f"--metric is {metric!r}: {error}", fix="close the quotes") from None
    if not name:
        raise UnknownStrategyError("--metric is missing", fix=f"choose from {', '.join(METRICS.all())}")
    return METRICS.find(name), flags


def scorer_of(
    metric: str | None,
    *,
    references: Sequence[str],
    source: str,
    called: Mapping[str, str] = MappingProxyType({}),
    tell: Tell = warnings.warn,
) -> Scorer:
    """Returns a function that scores a file of outputs as nartk-score does.

    Args:
        metric: A name, and options of it if need be, as on a command line.
        references: Files, for ``--ref``.
        source: A file, for the ``--source`` of those that need one.
        called: Names for error messages of files that are not the user's.
        tell: Takes notices for the user.

    Raises:
        UnknownStrategyError: There is no such metric.
        UsageError: It does not know an option, lacks one, or has one of the command's.
    """
    declared, flags = metric_of(metric)
    if declared.reads_sound:
        raise UsageError(
            f"--metric {declared.name} scores sound, and outputs are text", fix="choose a metric of text"
        )
    reads, name = declared.reads, declared.name
    if "source" in reads and not {"--source", "--gold"} & set(flags):
        flags += ["--source", source]
    if references:
        flags += ["--ref", *references]
    args = _parser().parse_args([name, *flags])
    for dest, default in COMMANDS.items():
        if getattr(args, dest) != default:
            flag = "HYP" if dest == "hypothesis" else f"--{dest.replace('_', '-')}"
            raise UsageError(
                f"--metric is {metric!r}, and {flag} is for nartk-score alone", fix="leave it out"
            )
    scorer: Scorer = _made(args).scorer(replace(_files(args, tell), called=called))
    return scorer


def _made(args: argparse.Namespace) -> Any:
    """The metric with the options that are given."""
    known = METRICS.options(args.metric)
    return METRICS.make(args.metric, {key: getattr(args, key) for key in known if hasattr(args, key)})


def _require_apart(args: argparse.Namespace, system: str) -> None:
    """Refuses stdin that is named twice, and two outputs in one file; raises UsageError."""
    system_flag = "HYP" if args.hyp_m2 is None else "--hyp-m2"
    named_by = [(system_flag, system), ("--baseline", args.baseline), ("--gold", args.gold)]
    named_by += [("--source", args.source), *(("--ref", name) for name in args.ref)]
    flags = [flag for flag, name in named_by if name == STDIN]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags[:2])} are both stdin", fix="name a file in place of one")
    files = [os.path.realpath(name) for name in (args.json, args.per_line) if name not in (None, STDIN)]
    if len(files) > len({*files}):
        raise UsageError(f"two outputs go to {args.json!r}", fix="name two files")


def _require_same_ids(*outputs: tuple[str, MetricResult]) -> None:
    """Refuses two outputs of a single line, of which one begins with its id; raises LengthMismatchError."""
    (has, first), (lacks, other) = sorted(outputs, key=lambda output: output[1].ids is None)
    if first.ids is not None and other.ids is None:
        raise LengthMismatchError(
            f"{shown(has)} begins with the utterance id {first.ids[0]!r}, and {shown(lacks)} does not",
            fix=f"give both with ids or both without, or {named('ids', NO)} if these are words",
        )


def _files(args: argparse.Namespace, tell: Tell) -> MetricFiles:
    if args.blank is not None and not args.ref:
        raise UsageError("--blank without --ref", fix="leave it out")
    return MetricFiles(
        source=args.source,
        ref=tuple(args.ref),
        gold=args.gold,
        hyp_m2=args.hyp_m2,
        blank=args.blank,
        ids=args.ids,
        tell=tell,
        recogniser=ModelRecogniser,
    )


class ModelRecogniser:
    """Implements `Recogniser` by a model that `nartk.load` opens.

    Raises:
        StrategyMismatchError: It reads text.
    """

    def __init__(self, name: str) -> None:
        import nartk

        self._model = nartk.load(name)
        if self._model.reads_text:
            raise StrategyMismatchError(f"the recogniser {name!r} reads text", fix="name a model of speech")

    @property
    def signature(self) -> str:
        return self._model.signature(self._model.strategy(None, {}))

    def transcripts(self, files: Sequence[str], tell: Tell) -> list[str | None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of each file's rate, and of errors, which are told here
            found = self._model.decode([*files])
        for file, each in zip(files, found, strict=True):
            if each.error is not None:
                tell(f"{file}: cannot be heard, and counts as empty: {each.error.message}")
        return [None if each.error is not None else each.text for each in found]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nartk-score", description=DESCRIPTION, examples=EXAMPLES)
    metrics = parser.add_subparsers(dest="metric", metavar="METRIC", required=True)
    for name, declared in METRICS.all().items():
        metric: Any = declared
        summary = str(metric.__doc__).partition("\n")[0].rstrip(".")
        example = f"  nartk-score {metric.example}"
        sub = metrics.add_parser(name, help=summary, description=summary, examples=example, quiet=None)
        sub.add_argument("hypothesis", nargs="?", metavar="HYP", help="output to score; - reads stdin")
        add_json(sub)
        sub.add_argument(
            "--per-line",
            nargs="?",
            const=STDIN,
            metavar="FILE",
            help="write the score of each line as TSV; without FILE, or to -, on stdout in place of the "
            "text, or in the report of --json",
        )
        sub.add_argument("--bootstrap", type=_whole, metavar="N", help="resamples for intervals; 0: none")
        sub.add_argument("--seed", type=_whole, help="of the bootstrap (default: %(default)s)")
        sub.add_argument("--baseline", metavar="HYP2", help="output of another system to compare HYP with")
        sub.set_defaults(source=None, ref=[], gold=None, blank=None, ids=AUTO, **COMMANDS)
        for key, reads in metric.reads.items():
            settings: dict[str, Any] = {"help": reads.help, "required": reads.required, "dest": key}
            settings |= {"nargs": "+", "action": "extend"} if key == "ref" else {"metavar": METAVARS[key]}
            sub.add_argument("--" + key.replace("_", "-"), **settings)
        if "ref" in metric.reads:
            sub.add_argument(
                "--blank",
                choices=BLANKS,
                help="a blank line of --ref: there is no reference, or an empty one (default: "
                f"{metric.reads['ref'].blank})",
            )
            if metric.reads["ref"].ids:
                sub.add_argument(
                    "--ids",
                    choices=IDS,
                    help="lines begin with the utterance's id, as Kaldi's text, and are matched by it; auto: "
                    "where they look so (default: %(default)s)",
                )
        add_options(sub, METRICS.options(name))
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, but is {text!r}")
    return int(text)


def _by_line(
    results: Sequence[MetricResult], baselines: Sequence[MetricResult | None]
) -> dict[str, list[float]]:
    """The scores of each line, by the metric's name; NaN where there is none."""
    found = {}
    for result, baseline in zip(results, baselines, strict=True):
        for name, each in (("", result), ("baseline ", baseline)):
            if each is None:
                continue
            if each.each is None:
                raise UsageError(
                    f"{each.metric} has no score of a single line", fix=f"leave {named('per_line')} out"
                )
            found[name + each.metric] = each.each().tolist()
    return found


def _as_rows(scores: Mapping[str, Sequence[float]], ids: Sequence[str] | None, digits: int) -> Iterator[str]:
    """A table of scores by id, or by line, counted from 1; what is not defined stays empty."""
    yield "\t".join(["line" if ids is None else "id", *scores])
    for index, row in enumerate(zip(*scores.values(), strict=True)):
        cells = ["" if math.isnan(score) else f"{score:.{digits}f}" for score in row]
        yield "\t".join([str(index + 1) if ids is None else ids[index], *cells])


def _as_json(
    result: MetricResult, interval: Interval | None, difference: PairedDifference | None
) -> JsonObject:
    report: JsonObject = {"metric": result.metric, "score": result.score, "sentences": result.sentences}
    report |= result.parts
    if interval is not None:
        report["confidence"] = asdict(interval)
    if difference is not None:
        report["comparison"] = asdict(difference)
    report["signature"] = result.signature
    return report


def _as_text(
    result: MetricResult, interval: Interval | None, difference: PairedDifference | None, digits: int
) -> list[str]:
    """The score on the first line, then its parts, one a line."""

    def show(value: object) -> str:
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
