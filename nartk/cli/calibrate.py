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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk import __version__
from nartk.bench import calibration
from nartk.bench.calibration import (
    GRIDS,
    REFERENCE,
    Measure,
    Point,
    Remembered,
    Sample,
    Scored,
    Setting,
    Sweep,
    front,
    types_of,
)
from nartk.cli import _strategy, score
from nartk.cli._common import Parser, command, require_least
from nartk.cli._input import (
    add_computation,
    batching,
    load_model,
    read_files,
    require_own,
    split_inputs,
)
from nartk.cli._output import add_json, json_writer, progress, tell
from nartk.cli._resume import difference, measure_file
from nartk.data.readers import Fields, Record
from nartk.errors import (
    EXIT_FAILED,
    EXIT_OK,
    InputFileError,
    NartkError,
    ResumeMismatchError,
    UsageError,
    number_of,
)
from nartk.files import STDIN, Journal, require_storable, writing
from nartk.metrics.bootstrap import resampled
from nartk.protocols.guarantee import Guarantee
from nartk.registry import METRICS, make_strategy, options_of
from nartk.serving.model import Model, in_order, summarize
from nartk.serving.scorers import model_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.figure import Figure


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
EVERY = 30.0  # seconds between two lines of progress, where no bar is drawn
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
    search.add_argument(
        "--no-prune",
        action="store_true",
        help="measure on all of DEV also what is clearly slower and worse than another on its first third",
    )
    add_computation(parser)
    parser.add_argument("--truncate", action="store_true", help="cut sentences too long for the model")
    add_json(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw the settings (.png, .svg or .pdf)")
    parser.add_argument("--dry-run", action="store_true", help="store nothing")
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    args, options = _strategy.parse(_parser(), argv, default=DEFAULT)
    return _Job(args, options).run()


class _Job:
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
                    f"{args.strategy} with {_label(setting)} is {made.promised}, so nothing is to be lost",
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
                folder / calibration.FILE,
                fix="make the model's folder writable, or keep it by nartk-calibrate --dry-run --json FILE",
            )
            calibration.read_calibrations(folder)
        if args.plot is not None:
            from nartk.bench.report import require_plot

            require_plot(Path(args.plot))
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
        args = self.args
        with ExitStack() as stack:
            # Opened before the work: a place that cannot be written to is found out first.
            write = stack.enter_context(json_writer(args.json))
            picture = (
                None if args.plot is None else stack.enter_context(writing(Path(args.plot), binary=True))
            )
            output = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "output"
            if score.metric_of(args.metric)[0].counts_errors:
                raise UsageError(
                    f"--metric {args.metric}, which is the better the lower it is, so that nothing drops",
                    fix="choose a metric that rises with quality",
                )
            scorer = score.scorer_of(
                args.metric,
                references=args.ref,
                source=self.dev,
                called={str(output): "the output"},
                tell=partial(tell, args),
            )
            scores = _Scores(scorer, len(self.records), args, output)
            scores([record.text for record in self.records])  # refuses references that do not fit
            model = load_model(self.name, args, args.dtype)
            measure = _Measure(args, model, model.strategy(args.strategy, self.options), self.records)
            measure.warm_up(self.settings[0])
            remembered = stack.enter_context(self._remembered(model, measure))
            total = len(self.settings) + 1
            rest = -(-len(self.records) // calibration.PART)
            parts = [(args.rounds, len(self.records))]
            if not args.no_prune:
                parts.append((calibration.PART_ROUNDS, rest))
            work = total * sum(rounds * sentences for rounds, sentences in parts)
            drawn = not args.quiet and sys.stderr.isatty()
            rounds_of = f"{number_of(args.rounds, 'round')} of {number_of(len(self.records), 'sentence')}"
            tell(args, f"{number_of(total - 1, 'setting')}, {rounds_of}")
            with progress("calibrating", work, drawn=drawn) as show:
                if not drawn and not args.quiet:
                    show = _Lines(total * sum(rounds for rounds, _ in parts), work, measure)
                found = calibration.sweep(
                    self.settings,
                    _shown(measure if remembered is None else remembered, show),
                    scores,
                    sentences=len(self.records),
                    rounds=args.rounds,
                    prune=not args.no_prune,
                )
            chosen, fits = calibration.choose(found.points, args.max_drop, trust=args.trust)
            strategy = replace(measure.strategy, **chosen.setting)
            facts = self._facts(model, strategy, scores.signature)
            data = facts | _as_data(found, chosen, fits)
            data["taken_over"] = 0 if remembered is None else remembered.taken
            data["dry_run"] = args.dry_run
            write(calibration.finite(data), allow_nan=False)
            if picture is not None:
                figure = _figure(found, chosen if fits else None, args.max_drop, facts["metric"])
                figure.savefig(picture, format=Path(args.plot).suffix[1:], dpi=150)
        if args.json != STDIN:
            print(_table(found, chosen if fits else None), flush=True)
        tell(self.args, LEGEND)
        if not fits:
            print(
                f"nartk: no setting keeps within --max-drop {args.max_drop:g}; "
                f"the nearest is {_verdict(chosen)}",
                file=sys.stderr,
            )
            return EXIT_FAILED
        tell(self.args, f"chosen: {_verdict(chosen)}")
        if chosen.speed <= 1:
            tell(self.args, "which is no faster than greedy search")
        if not args.dry_run:
            self._store(model, strategy, chosen, facts)
        return EXIT_OK

    @contextmanager
    def _remembered(self, model: Model, measure: _Measure) -> Iterator[Remembered | None]:
        """Remembers beside the JSON what is decoded, and was by the same calibration, if it is a file."""
        args = self.args
        # A device or a pipe has no place beside it.
        if args.json in (None, STDIN) or (os.path.exists(args.json) and not os.path.isfile(args.json)):
            yield None
            return
        path = Path(args.json + SAMPLES)
        header = json.dumps({"calibrated": self._inputs(model, measure.strategy)}).encode()
        if os.path.exists(path) and (old := Journal.header(path)) not in (None, header):
            try:
                changed = difference(json.loads(old)["calibrated"], json.loads(header)["calibrated"])
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ResumeMismatchError(
                    "not a journal of nartk-calibrate", fix="give --json another name", where=str(path)
                ) from None
            tell(args, f"{path} {changed}: everything is decoded anew")
            path.unlink()
        with Journal.open(path, header) as journal:
            found = Remembered(measure, journal)
            if found.held:
                tell(args, f"goes on after {found.held} decodings in {path}; without it all are timed anew")
            yield found

    def _inputs(self, model: Model, strategy: Any) -> dict[str, Any]:
        """What decoding depends on."""
        args = self.args
        return {
            "grid": self.grid,  # first: the signature has the values of the last setting
            "signature": model.signature(strategy),
            "sentences": measure_file(self.dev),
            **batching(args),
            "device": args.device,
            "threads": model.threads,
        }

    def _facts(self, model: Model, strategy: Any, metric: str) -> dict[str, Any]:
        """What the figures depend on."""
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

    def _store(self, model: Model, strategy: Any, chosen: Point, facts: dict[str, Any]) -> None:
        own = calibration.own_options(strategy, [*self.grid])
        entry = calibration.Calibration(
            strategy.name,
            model.checkpoint.fingerprint,
            getattr(strategy, self.drafter),
            dict(chosen.setting),
            own,
            {**facts, **_point(chosen), "nartk": __version__},
        )
        calibration.store(model.checkpoint.folder, entry)
        tell(self.args, f"stored in {model.checkpoint.folder / calibration.FILE}")
        # Where the strategy is lossless by default, only options that make it approximate make use of these.
        if make_strategy(strategy.name, own).promised.guarantee is not Guarantee.APPROXIMATE:
            flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in chosen.setting.items())
            tell(self.args, f"{strategy.name} stays identical to greedy search without flags; use {flags}")


def _grid(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values to try of each option, by name; the strategy's own grid stands where none are given."""
    types = types_of(args.strategy)
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


class _Scores:
    """Scores texts of the first sentences, and resamples of them.

    Attributes:
        signature: Of the metric.
    """

    def __init__(self, scorer: score.Scorer, sentences: int, args: argparse.Namespace, path: Path) -> None:
        self.scorer, self.sentences, self.args, self.path = scorer, sentences, args, path
        self.signature = ""

    def __call__(self, texts: Sequence[str]) -> Scored:
        first, rest = len(texts), self.sentences - len(texts)
        lines = [text.replace("\n", " ") + "\n" for text in (*texts, *[""] * rest)]
        self.path.write_bytes("".join(lines).encode("utf-8", "backslashreplace"))
        result = self.scorer(str(self.path))[0].of_lines(range(first))
        self.signature = result.signature
        return Scored(
            result.score, resampled(result, samples=self.args.bootstrap, seed=self.args.bootstrap_seed)
        )


class _Measure:
    """Decodes the first sentences with a setting.

    Attributes:
        setting: The one used last.
        done: Sentences decoded in all, without those of the warm-up.
    """

    def __init__(
        self, args: argparse.Namespace, model: Model, strategy: Any, records: Sequence[Record]
    ) -> None:
        self.args, self.model, self.records = args, model, records
        self.strategy = strategy
        self.greedy = model.strategy(REFERENCE, _strategy.shared_options(strategy, REFERENCE))
        self.setting: Setting | None = None
        self.done = 0

    def warm_up(self, setting: Setting) -> None:
        """Decodes what is decoded slowly the first time."""
        for each in (None, setting):
            self(each, min(len(self.records), self.args.batch_size))
        self.done = 0

    def __call__(self, setting: Setting | None, sentences: int) -> Sample:
        strategy = self.greedy if setting is None else replace(self.strategy, **setting)
        records, args = self.records[:sentences], self.args
        texts, results = [], []
        start = time.perf_counter()
        outcomes = self.model.stream([record.text for record in records], strategy, **batching(args))
        for record, outcome in zip(records, in_order(outcomes), strict=True):
            if isinstance(outcome, NartkError):
                outcome.where = record.where
                raise outcome
            texts.append(outcome.hypotheses[0].text)
            results.append(outcome)
        stats = summarize(results, time.perf_counter() - start)
        self.setting = setting
        self.done += sentences
        drafter_passes = stats.drafter_passes
        return Sample(stats.seconds, texts, stats.tokens, stats.passes, drafter_passes, stats.drafted)


def _shown(measure: Measure, show: Callable[[int], None]) -> Measure:
    """Measures, and shows how many sentences were asked for."""
    done = 0

    def measured(setting: Setting | None, sentences: int) -> Sample:
        nonlocal done
        sample = measure(setting, sentences)
        done += sentences
        show(done)
        return sample

    return measured


class _Lines:
    """Tells on stderr, now and then, how far a calibration is.

    Args:
        decodings, sentences: How many there are at most.
        measure: Knows how many sentences were decoded, and not remembered.
    """

    def __init__(self, decodings: int, sentences: int, measure: _Measure) -> None:
        self.decodings, self.sentences, self.measure = decodings, sentences, measure
        self.count = 0
        self.begun = self.last = time.monotonic()

    def __call__(self, done: int) -> None:
        self.count += 1
        now = time.monotonic()
        if not self.measure.done or now - self.last < EVERY:
            return
        self.last, spent = now, now - self.begun
        left = spent / self.measure.done * (self.sentences - done)
        print(
            f"nartk: decoding {self.count} of at most {self.decodings}, {_label(self.measure.setting)}: "
            f"{_clock(spent)} elapsed, about {_clock(left)} left at most",
            file=sys.stderr,
            flush=True,
        )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _label(setting: Setting | None) -> str:
    if setting is None:
        return "greedy"
    return ", ".join(f"{name} {_short(value)}" for name, value in setting.items())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _verdict(point: Point) -> str:
    drop = point.drop
    return (
        f"{_label(point.setting)}: {point.speed:.2f} times as fast, drop {drop.drop:.4g}, "
        f"at most {drop.bound:.4g}"
    )


def _point(point: Point) -> dict[str, Any]:
    return {
        "speed": point.speed,
        "speeds": point.speeds,
        "score": point.score,
        **asdict(point.drop),
        "passes_per_token": point.passes,
        "drafter_steps_per_token": point.drafter_passes,
        "drafted_per_token": point.drafted,
    }


def _as_data(found: Sweep, chosen: Point, fits: bool) -> dict[str, Any]:
    best = front([found.greedy, *found.points])
    return {
        "pruned_on": found.sentences[1],
        "greedy": _point(found.greedy),
        "points": [
            {"setting": point.setting, "front": point in best, **_point(point)} for point in found.points
        ],
        "dropped": [{"setting": setting, "beaten_by": other} for setting, other in found.dropped],
        "chosen": chosen.setting if fits else None,
        "nearest": chosen.setting,
    }


def _table(found: Sweep, chosen: Point | None) -> str:
    """The settings as a Markdown table, the fastest first, and below it those that were given up."""
    best = front([found.greedy, *found.points])
    names = [*found.points[0].setting]
    rows: list[Sequence[str]] = [
        [*names, "x greedy", "score", "drop", "at most", "passes", "steps", "drafted", "front"]
    ]
    rows.append(["---"] * len(rows[0]))
    for point in sorted([found.greedy, *found.points], key=lambda each: -each.speed):
        drop = point.drop
        cells = (
            ["greedy", *[""] * (len(names) - 1)]
            if point is found.greedy
            else [_short(value) for value in point.setting.values()]
        )
        cells += [
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
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    total, first = found.sentences
    if found.dropped:
        lines += ["", f"Given up on the first {first} of {total} sentences, slower and worse there:"]
        lines += [f"- {_label(setting)}, than {_label(other)}" for setting, other in found.dropped]
    return "\n".join(lines)


def _figure(found: Sweep, chosen: Point | None, max_drop: float, metric: str) -> Figure:
    """The drop of each setting against its speed, with their intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for point in found.points:
        drop = point.drop
        # A percentile interval need not hold the estimate; a bar has no negative length.
        across = [[point.speed - min(point.speeds)], [max(point.speeds) - point.speed]]
        along = [[max(0.0, drop.drop - drop.low)], [max(0.0, drop.high - drop.drop)]]
        axes.errorbar(
            point.speed, drop.drop, along, across, fmt="o", color="#4477aa", ecolor="#bbbbbb", elinewidth=0.8
        )
    axes.plot(1.0, 0.0, "s", color="#222222", label="greedy")
    best = front([found.greedy, *found.points])
    axes.plot(
        [point.speed for point in best], [point.drop.drop for point in best], color="#4477aa", label="front"
    )
    axes.axhline(max_drop, color="#222222", linewidth=0.8, linestyle=":", label="--max-drop")
    if chosen is not None:
        axes.plot(
            chosen.speed, chosen.drop.drop, "*", markersize=14, color="#ee6677", label=_label(chosen.setting)
        )
    axes.set_xlabel("times as fast as greedy")
    axes.set_ylabel(f"drop of {metric}")
    axes.legend()
    return figure
