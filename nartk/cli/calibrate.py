"""`nartk-calibrate`: finds the thresholds of an approximate strategy that keep a metric, and stores them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.bench import calibration, report
from nartk.bench.calibration import (
    GRIDS,
    REFERENCE,
    Point,
    Scored,
    Setting,
    TimedOutput,
    Value,
    front,
    label,
    short,
)
from nartk.bench.quality import Quality
from nartk.checkpoints import thresholds
from nartk.checkpoints.names import model_folder
from nartk.checkpoints.records import finite
from nartk.cli import _strategy, score
from nartk.cli._common import Parser, command, require_least, with_model
from nartk.cli._files import read_files
from nartk.cli._input import add_computation, batching, load_model, require_own, split_inputs
from nartk.cli._output import add_json, json_writer, tell
from nartk.cli._resume import measure_file, require_same
from nartk.data.readers import Fields, Record
from nartk.errors import EXIT_FAILED, EXIT_OK, InputFileError, NartkError, UsageError, number_of
from nartk.files import STDIN, JsonObject, require_storable
from nartk.journal import Journal
from nartk.metrics.bootstrap import resampled
from nartk.protocols.guarantee import Guarantee
from nartk.registry import METRICS, make_strategy, options_of
from nartk.serving.model import Model
from nartk.serving.outcomes import in_order, summarize
from nartk.version import __version__

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy

DEFAULT = "bild"
DESCRIPTION = """Decodes DEV with every setting of a strategy's thresholds and with greedy search, in turns,
and reports which settings are the fastest for what they lose (the Pareto front). The fastest one that loses
no more than --max-drop, with 95 % confidence, is stored in MODEL's folder, where nartk-decode finds it as the
default for the same drafter. Exits with 1, and stores nothing, if no setting loses so little.

With --json FILE each decoding is kept at once in FILE.samples, from which the same command goes on if it is
stopped, or with another --metric, --max-drop or number of --rounds."""
EXAMPLES = """  nartk-calibrate MODEL dev.en --drafter SMALL --ref dev.de --metric bleu --max-drop 0.3
  nartk-decode MODEL in.txt --strategy bild --drafter SMALL      with the thresholds that were stored
  nartk-calibrate MODEL dev.en --drafter SMALL --ref dev.de --metric chrf --max-drop 0.2 \\
      --grid fallback=0.4,0.6 --grid rollback=2,4 --plot front.png --json front.json
  nartk-calibrate MODEL dev.src --strategy gad --drafter NAR --metric 'm2 --gold dev.m2' --max-drop 0.01
  nartk-calibrate MODEL dev.en --drafter SMALL --ref dev.de --metric 'bleu --tokenize none' \\
      --max-drop 0.3 --dry-run"""
LEGEND = """x greedy: how many times as fast on the same sentences, median of the rounds (lowest-highest).
drop: of the metric, and its 95 % interval by paired bootstrap; at most: with 95 % confidence, one-sided.
passes, steps, drafted: passes of the model, passes of the drafter and drafted tokens, an output token.
front: no other setting is as fast with as small a drop. The one that is chosen is bold."""
SAMPLES = ".samples"  # ends the name of the journal beside the JSON


def _parser() -> Parser:
    parser = Parser(prog="nartk-calibrate", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s MODEL DEV --drafter D --metric NAME --max-drop X [--ref REF ...] [options]"
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="MODEL DEV",
        help="a model folder, and a text file of one sentence a line",
    )
    quality = parser.add_argument_group("quality")
    quality.add_argument(
        "--metric",
        metavar="NAME",
        help=f"{', '.join(METRICS.all())}, with its options of nartk-score if need be, in quotes; of several "
        "scores the first; DEV is the --source of those that need one",
    )
    quality.add_argument("--ref", nargs="+", action="extend", default=[], help="references of DEV")
    quality.add_argument(
        "--max-drop",
        type=float,
        metavar="X",
        help="how much worse than greedy search the output may be, in the metric's units",
    )
    quality.add_argument(
        "--trust",
        choices=("bound", "point"),
        default="bound",
        help="what must not be above --max-drop: what the drop is below with 95 %% confidence, or its "
        "estimate (default: %(default)s)",
    )
    quality.add_argument(
        "--bootstrap", type=int, default=1000, metavar="N", help="resamples (default: %(default)s)"
    )
    quality.add_argument(
        "--bootstrap-seed", type=int, default=12345, metavar="N", help="of the resamples (default: 12345)"
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="NAME=LIST",
        help="values of an option to try, with commas; for each option anew (default: some values of the "
        "strategy's thresholds, but for those whose flags are given)",
    )
    search.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="how often DEV is decoded (default: %(default)s)"
    )
    add_computation(parser)
    parser.add_argument("--truncate", action="store_true", help="cut sentences too long for the model")
    add_json(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="draw speed and quality of the settings (.png, .svg or .pdf)"
    )
    parser.add_argument("--dry-run", action="store_true", help="store nothing")
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    argv = with_model(argv)
    args, options = _strategy.parse(_parser(), argv, default=DEFAULT)
    return _Sweep(args, options).run()


class _Sweep:
    """A calibration: its settings and inputs checked."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]) -> None:
        self.args = args
        require_least(args, 1, "rounds", "batch_size", "bootstrap")
        require_least(args, 0, "bootstrap_seed")
        if args.max_drop is None or not abs(args.max_drop) < float("inf"):
            raise UsageError(
                "--max-drop is missing" if args.max_drop is None else f"--max-drop is {args.max_drop}",
                fix="give a number, in the metric's units",
            )
        if len(args.inputs) != 2 or STDIN in args.inputs:
            raise UsageError(
                f"MODEL and DEV, but the arguments are {' '.join(args.inputs) or 'none'}",
                fix="name a model and a file, before --ref or other flags that take lists",
            )
        self.name, (self.dev,) = split_inputs(args.inputs, "nartk-calibrate")
        self.grid = _grid(args, options)
        self.settings = calibration.settings_of(self.grid)
        for setting in self.settings:
            made = make_strategy(args.strategy, options | setting)
            if made.promised.guarantee is not Guarantee.APPROXIMATE:
                raise UsageError(
                    f"{args.strategy} with {label(setting)} is {made.promised}: there is no quality to trade",
                    fix="sweep values with which it is approximate",
                )
        models = [key for key, item in options_of(args.strategy).items() if item.metadata["model"]]
        if len(models) != 1:
            raise UsageError(
                f"strategy {args.strategy!r} reads {len(models)} other models, not one drafter",
                fix=f"choose from {', '.join(calibration.GRIDS)}",
            )
        (self.drafter,) = models
        if not getattr(made, self.drafter):
            made.check_auxiliary()
        # All of them, so that what an earlier calibration has stored is not used.
        self.options = {key: getattr(made, key) for key in options_of(args.strategy)}
        folder = model_folder(self.name)
        if not args.dry_run:
            fix = "add --dry-run, and keep the choice with --json FILE"
            require_own(self.name, folder, fix=fix)
            require_storable(
                folder / thresholds.Calibration.file,
                fix="make the model's folder writable, or keep it by nartk-calibrate --dry-run --json FILE",
            )
            thresholds.Calibration.read(folder)
        if args.plot is not None:
            report.require_plot(Path(args.plot))
        self.records = self._read()

    def _read(self) -> list[Record]:
        records = [*read_files([self.dev], "txt", Fields())]
        for record in records:
            if record.error is not None:
                record.error.where = record.where
                raise record.error
        if not any(record.text.strip() for record in records):
            raise InputFileError("no sentence to decode", fix="give a file with at least one", where=self.dev)
        return records

    def run(self) -> int:
        """Measures, reports and stores; returns the exit code."""
        args, notify = self.args, partial(tell, self.args)
        with ExitStack() as stack:
            # Opened before the work: a place that cannot be written to is found out first.
            write = stack.enter_context(json_writer(args.json))
            output = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "output"
            if score.metric_of(args.metric)[0].counts_errors:
                raise UsageError(
                    f"--metric {args.metric} is an error rate, which rises where quality drops",
                    fix="choose a metric that rises with quality",
                )
            scorer = score.scorer_of(
                args.metric,
                references=args.ref,
                source=self.dev,
                called={str(output): "the output"},
                tell=notify,
            )
            rows = range(len(self.records))
            quality = Quality(shlex.split(args.metric)[0], scorer, rows, len(rows), output)
            sources = quality.of(
                [record.text for record in self.records]
            )  # refuses references that do not fit
            model = load_model(self.name, args, args.dtype)
            measure = _Measure(args, model, model.strategy(args.strategy, self.options), self.records)
            measure.warm_up(self.settings[0])
            journal = self._journal(stack, model, measure.strategy)
            held = 0 if journal is None else journal.count
            settings = number_of(len(self.settings), "setting")
            notify(f"{settings}, {number_of(args.rounds, 'round')} of {number_of(len(rows), 'sentence')}")

            def scored(texts: Sequence[str]) -> Scored:
                result = quality.of(texts)
                resamples = resampled(result, samples=args.bootstrap, seed=args.bootstrap_seed)
                return Scored(result.score, resamples)

            points = calibration.sweep(
                self.settings, measure, scored, rounds=args.rounds, journal=journal, tell=notify
            )
            chosen, fits = calibration.choose(points[1:], args.max_drop, trust=args.trust)
            strategy = replace(measure.strategy, **chosen.setting)
            facts = self._facts(model, strategy, sources.signature)
            data = facts | _as_data(points, chosen, fits)
            data["taken_over"] = min(held, len(points) * args.rounds)
            data["dry_run"] = args.dry_run
            write(finite(data), allow_nan=False)
            if args.plot is not None:
                report.plot([_as_cell(points, model.dtype, quality.name)], Path(args.plot))
        if args.json != STDIN:
            print(_table(points, chosen if fits else None), flush=True)
        notify(LEGEND)
        if not fits:
            print(
                f"nartk: no setting keeps within --max-drop {args.max_drop:g}; "
                f"the nearest is {_verdict(chosen)}",
                file=sys.stderr,
            )
            return EXIT_FAILED
        notify(f"chosen: {_verdict(chosen)}")
        if chosen.speed <= 1:
            notify("which is no faster than greedy search")
        if not args.dry_run:
            self._store(model, strategy, chosen, facts)
        return EXIT_OK

    def _journal(self, stack: ExitStack, model: Model, strategy: Strategy) -> Journal | None:
        """Opens the journal of decodings beside the JSON, if that is a file."""
        args = self.args
        # A device or a pipe has no place beside it.
        if args.json in (None, STDIN) or (os.path.exists(args.json) and not os.path.isfile(args.json)):
            return None
        path, inputs = Path(args.json + SAMPLES), self._inputs(model, strategy)
        fix = "give the settings of that run, or another --json"
        header = require_same(path, "nartk-calibrate", {"decoding": inputs}, {"decoding": fix})
        if header is None:
            header = json.dumps({"decoding": inputs}).encode()
        journal = stack.enter_context(Journal.open(path, header))
        if journal.count:
            tell(args, f"goes on after {journal.count} decodings in {path}; without it all are timed anew")
        return journal

    def _inputs(self, model: Model, strategy: Strategy) -> JsonObject:
        """Inputs and settings of the decodings."""
        args = self.args
        return {
            "grid": self.grid,  # first: the signature has the values of the last setting
            "signature": model.signature(strategy),
            "sentences": measure_file(self.dev),
            **batching(args),
            "device": args.device,
            "threads": model.threads,
        }

    def _facts(self, model: Model, strategy: Strategy, metric: str) -> JsonObject:
        """Settings of the figures."""
        args = self.args
        return {
            "metric": shlex.split(args.metric)[0],
            "metric_signature": metric,
            "max_drop": args.max_drop,
            "trust": args.trust,
            "bootstrap": args.bootstrap,
            "bootstrap_seed": args.bootstrap_seed,
            "sentences": len(self.records),
            "rounds": args.rounds,
            "batch_size": args.batch_size,
            "max_tokens": args.max_tokens,
            "device": args.device,
            "dtype": model.dtype,
            "threads": model.threads,
            "grid": self.grid,
            "signature": model.signature(strategy),
        }

    def _store(self, model: Model, strategy: Strategy, chosen: Point, facts: JsonObject) -> None:
        own = calibration.own_options(strategy, [*self.grid])
        entry = thresholds.Calibration(
            strategy.name,
            model.checkpoint.fingerprint,
            getattr(strategy, self.drafter),
            dict(chosen.setting),
            own,
            {**facts, **_point(chosen), "nartk": __version__},
        )
        entry.store(model.checkpoint.folder)
        tell(self.args, f"stored in {model.checkpoint.folder / thresholds.Calibration.file}")
        # Where the strategy is lossless by default, only options that make it approximate make use of these.
        if make_strategy(strategy.name, own).promised.guarantee is not Guarantee.APPROXIMATE:
            flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in chosen.setting.items())
            tell(self.args, f"{strategy.name} stays identical to greedy search without flags; use {flags}")


def _grid(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, tuple[Value, ...]]:
    """The values to try of each option, by name; the strategy's own grid stands where none are given."""
    types = thresholds.types_of(args.strategy)
    default = GRIDS.get(args.strategy, {})
    grid = {key: (options[key],) if key in options else values for key, values in default.items()}
    for text in args.grid:
        name, equals, listed = text.partition("=")
        key = name.replace("-", "_")
        if not equals or not listed:
            raise UsageError(f"--grid is {text!r}", fix="give NAME=VALUE,VALUE")
        if key not in types or types[key] is bool:
            able = ", ".join(key for key, type_ in types.items() if type_ is not bool)
            raise UsageError(
                f"strategy {args.strategy!r} has no threshold {name!r}", fix=f"choose from {able}"
            )
        if key in options:
            raise UsageError(
                f"--grid {name} and --{name.replace('_', '-')} are both given", fix="leave one of them out"
            )
        try:
            values = [types[key](value) for value in listed.split(",")]
        except ValueError as error:
            raise UsageError(f"--grid is {text!r}: {error}", fix="give numbers, with commas") from None
        grid[key] = tuple(dict.fromkeys(values))
    if not grid:
        raise UsageError(
            f"strategy {args.strategy!r} has no thresholds of its own to sweep",
            fix=f"give --grid NAME=LIST, or choose from {', '.join(GRIDS)}",
        )
    return grid


class _Measure:
    """Decodes the sentences with a setting."""

    def __init__(
        self, args: argparse.Namespace, model: Model, strategy: Strategy, records: Sequence[Record]
    ) -> None:
        self.args, self.model, self.records = args, model, records
        self.strategy = strategy
        self.greedy = model.strategy(REFERENCE, _strategy.shared_options(strategy, REFERENCE))

    def warm_up(self, setting: Setting) -> None:
        """Decodes a batch, which is slow the first time."""
        for each in (None, setting):
            self._decode(each, self.records[: self.args.batch_size])

    def __call__(self, setting: Setting | None) -> TimedOutput:
        return self._decode(setting, self.records)

    def _decode(self, setting: Setting | None, records: Sequence[Record]) -> TimedOutput:
        strategy = self.greedy if setting is None else replace(self.strategy, **setting)
        texts, results = [], []
        start = time.perf_counter()
        outcomes = self.model.stream([record.text for record in records], strategy, **batching(self.args))
        for record, outcome in zip(records, in_order(outcomes), strict=True):
            if isinstance(outcome, NartkError):
                outcome.where = record.where
                raise outcome
            texts.append(outcome.hypotheses[0].text)
            results.append(outcome)
        stats = summarize(results, time.perf_counter() - start)
        return TimedOutput(
            stats.seconds, texts, stats.tokens, stats.passes, stats.drafter_passes, stats.drafted
        )


def _verdict(point: Point) -> str:
    drop = point.drop
    return (
        f"{label(point.setting)}: {point.speed:.2f} times as fast, drop {drop.drop:.4g}, "
        f"at most {drop.bound:.4g}"
    )


def _point(point: Point) -> JsonObject:
    return {
        "speed": point.speed,
        "speeds": point.speeds,
        "score": point.score,
        **asdict(point.drop),
        "passes_per_token": point.passes,
        "drafter_steps_per_token": point.drafter_passes,
        "drafted_per_token": point.drafted,
    }


def _as_data(points: Sequence[Point], chosen: Point, fits: bool) -> JsonObject:
    best, (greedy, *rest) = front(points), points
    return {
        "greedy": _point(greedy),
        "points": [{"setting": point.setting, "front": point in best, **_point(point)} for point in rest],
        "chosen": chosen.setting if fits else None,
        "nearest": chosen.setting,
    }


def _as_cell(points: Sequence[Point], dtype: str, metric: str) -> JsonObject:
    """The points as `nartk.bench.report.plot` reads engines."""
    baseline = points[0].score
    entries = []
    for point in points:
        interval = {"low": -point.drop.high, "high": -point.drop.low}
        compared = None if point is points[0] else {"baseline": baseline, "interval": interval}
        entries.append(
            {
                "engine": label(point.setting),
                "dtype": dtype,
                "not_run": None,
                "over_hf": None,
                "over_greedy": {"median": point.speed, "low": min(point.speeds), "high": max(point.speeds)},
                "tokens_per_second": point.tokens_per_second,
                "quality": {metric: {"score": point.score, "comparison": compared}},
            }
        )
    return {"title": "greedy search and settings", "engines": entries}


def _table(points: Sequence[Point], chosen: Point | None) -> str:
    """The settings as a Markdown table, the fastest first."""
    best, names = front(points), [*points[1].setting]
    rows = []
    for point in sorted(points, key=lambda each: -each.speed):
        drop = point.drop
        cells = [
            *([short(value) for value in point.setting.values()] or [REFERENCE, *[""] * (len(names) - 1)]),
            f"{point.speed:.2f} ({min(point.speeds):.2f}-{max(point.speeds):.2f})",
            f"{point.score:.4g}",
            f"{drop.drop:.4g} ({drop.low:.4g} to {drop.high:.4g})",
            f"{drop.bound:.4g}",
            f"{point.passes:.2f}",
            f"{point.drafter_passes:.2f}",
            f"{point.drafted:.2f}",
            "*" if point in best else "",
        ]
        rows.append([f"**{cell}**" if cell and point is chosen else cell for cell in cells])
    columns = [*names, "x greedy", "score", "drop", "at most", "passes", "steps", "drafted", "front"]
    return "\n".join(report.markdown(columns, rows))
