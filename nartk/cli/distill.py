"""`nartk-distill`: a teacher says every training source anew, and the corpus of what it said is written."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.checkpoints.names import WORD_COUNTS
from nartk.checkpoints.word_counts import write_counts
from nartk.cli import _strategy
from nartk.cli._common import Parser, command
from nartk.cli._files import read_files
from nartk.cli._input import add_computation, batching, load_model, split_inputs
from nartk.cli._output import add_output, add_verbose, progress, tell
from nartk.cli._resume import measure_file, require_same
from nartk.data.readers import Fields, Record
from nartk.errors import EXIT_OK, EXIT_SOME_FAILED, LengthMismatchError, NartkError, UsageError, number_of
from nartk.files import STDIN, JsonObject, make_folder, write_json, writing
from nartk.journal import Journal
from nartk.registry import make_strategy
from nartk.serving.distillation import REASONS, Choice, Filters
from nartk.unpacking import suffix_of

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy
    from nartk.serving.model import Model

DESCRIPTION = """Decodes a training source with a teacher and writes the corpus that a student learns from:
DIR/train.SRC and DIR/train.TGT, line by line parallel, DIR/report.json, which accounts for every line, and
DIR/word_counts.json, how often each word is written (for a drafter: nartk-convert --word-counts).
A run that was broken off goes on where it was when the same command is given again."""
EXAMPLES = """  nartk-distill teacher train.en --target-lang de --strategy beam --output distilled
  nartk-distill teacher train.en --target train.de --drop-ratio 3 --drop-repeats 4 --output distilled
  nartk-distill teacher train.en --target train.de --nbest 5 --choose closest --output distilled
      of each five outputs, the one that is closest to the reference
  nartk-distill teacher train.en --target train.de --min-bleu 5 --output distilled
      where the output has little in common with the reference, the reference stays"""
WINDOW = 1024  # sentences a record of the journal; as many are lost, at most, when a run is killed
JOURNAL = "journal"


def _parser() -> Parser:
    parser = Parser(prog="nartk-distill", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s TEACHER SOURCE --output DIR [--target REFERENCE] [--strategy NAME] [options]"
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="TEACHER SOURCE",
        help="a model folder, and a text file of one sentence a line",
    )
    parser.add_argument("--target", metavar="REFERENCE", help="the translations of SOURCE, line by line")
    add_output(parser, "DIR", "folder of the distilled corpus and of the journal")
    add_verbose(parser)
    parser.add_argument("--source-lang", metavar="SRC", help="suffix of train.SRC (default: SOURCE's own)")
    parser.add_argument("--target-lang", metavar="TGT", help="suffix of train.TGT (default: REFERENCE's own)")
    add_computation(parser)
    parser.add_argument("--truncate", action="store_true", help="cut sentences too long for the model")
    choice = parser.add_argument_group("choice of the text")
    choice.add_argument(
        "--choose",
        choices=("best", "closest"),
        default="best",
        help="closest: of the --nbest outputs the one with the highest sentence BLEU against REFERENCE "
        "(default: %(default)s)",
    )
    choice.add_argument(
        "--min-bleu",
        type=float,
        default=0.0,
        metavar="X",
        help="keep REFERENCE where the output's sentence BLEU against it, 0 to 100, is below X (default: 0)",
    )
    choice.add_argument(
        "--bleu-tokenize", default="13a", metavar="NAME", help="sacrebleu's tokeniser (default: %(default)s)"
    )
    filters = parser.add_argument_group("filters, each 0 (off) by default; empty and failed lines always go")
    for item in dataclasses.fields(Filters):
        filters.add_argument(
            "--" + item.name.replace("_", "-"),
            type=type(item.default),
            default=item.default,
            metavar="N" if isinstance(item.default, int) else "X",
            help=item.metadata["help"],
        )
    filters.add_argument(
        "--refilter",
        action="store_true",
        help="choose and filter anew, with other settings, what has been decoded",
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    args, options = _strategy.parse(_parser(), argv, default="beam")
    job = _Distillation(args, options)
    failed = job.run()
    return EXIT_SOME_FAILED if failed else EXIT_OK


class _Distillation:
    """A distillation: its settings checked, its inputs measured, its model loaded."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]) -> None:
        self.args, self.options = args, options
        if args.output is None:
            raise UsageError("--output is missing", fix="name the folder to write")
        if len(args.inputs) != 2:
            raise UsageError(
                f"TEACHER and SOURCE, but {len(args.inputs)} arguments are given",
                fix="name a model and a file",
            )
        for what, name in (("SOURCE", args.inputs[1]), ("--target", args.target)):
            if name == STDIN:
                raise UsageError(f"{what} is stdin, which is read more than once", fix="name a file")
        self.folder = Path(args.output)
        self.teacher, (self.source,) = split_inputs(args.inputs, "nartk-distill")
        if args.target is not None:
            split_inputs([args.inputs[0], args.target], "nartk-distill")
        self.names = [
            f"train.{_language(lang, file, side)}"
            for lang, file, side in (
                (args.source_lang, self.source, "source"),
                (args.target_lang, args.target, "target"),
            )
        ]
        if self.names[0] == self.names[1]:
            raise UsageError(
                f"source and target would both be {self.names[0]}", fix="give --source-lang and --target-lang"
            )
        self.filters = Filters(
            **{item.name: getattr(args, item.name) for item in dataclasses.fields(Filters)}
        )
        self.nbest: int = getattr(make_strategy(args.strategy, options), "nbest", 1)
        self.choice = self._choice()
        self.inputs = {"source": measure_file(self.source)}
        if args.target is not None:
            self.inputs["target"] = measure_file(args.target)
            lines = {side: found["lines"] for side, found in self.inputs.items()}
            if lines["source"] != lines["target"]:
                raise LengthMismatchError(
                    f"{args.target} has {number_of(lines['target'], 'line')}, "
                    f"but {self.source} has {lines['source']}",
                    fix="give files with the same sentences in the same order",
                )
        self.lines: int = self.inputs["source"]["lines"]

    def _choice(self) -> Choice:
        args = self.args
        if not 0 <= args.min_bleu <= 100:
            raise UsageError(f"--min-bleu is {args.min_bleu}", fix="give a value between 0 and 100")
        closest = args.choose == "closest"
        if closest and self.nbest < 2:
            raise UsageError("--choose closest with one output a sentence", fix="add --nbest 5")
        if not closest and args.min_bleu == 0:
            return Choice()
        if args.target is None:
            flag = "--choose closest" if closest else "--min-bleu"
            raise UsageError(f"{flag} compares with a reference", fix="name it with --target")
        from nartk.metrics.sacre import sentence_bleu

        return Choice(closest, args.min_bleu, sentence_bleu(args.bleu_tokenize))

    def run(self) -> int:
        """Decodes what is missing and writes the corpus; returns how many lines failed."""
        model = load_model(self.teacher, self.args, self.args.dtype)
        strategy = model.strategy(self.args.strategy, self.options, tell=partial(tell, self.args))
        settings = self._settings(model, strategy)
        self._require_same(settings)
        make_folder(self.folder)
        # What stands there, once `_require_same` has let it pass.
        header = json.dumps(settings, ensure_ascii=False).encode() if self._old is None else self._old
        with Journal.open(self.folder / JOURNAL, header) as journal:
            self._decode(model, strategy, journal)
            report = self._write(model, settings, journal)
        dropped = ", ".join(f"{count} {name}" for name, count in report["dropped"].items() if count)
        tell(
            self.args,
            f"{number_of(report['lines'], 'line')}, {report['kept']} kept"
            + (f", dropped: {dropped}" if dropped else "")
            + (f"\n{settings['decoding']['signature']}" if self.args.verbose else ""),
        )
        if report["lines"] and not report["kept"]:
            raise UsageError(
                "no pair was kept: there is nothing to train on",
                fix="train the teacher further, or loosen the filters; report.json counts what was dropped",
            )
        failed: int = report["dropped"]["failed"]
        return failed

    def _settings(self, model: Model, strategy: Strategy) -> JsonObject:
        """All that the corpus depends on, in two parts."""
        args = self.args
        return {
            "decoding": {
                "signature": model.signature(strategy),
                "device": args.device,
                **batching(args),
                "window": WINDOW,
                "source": self.inputs["source"],
            },
            "filtering": {
                "target": self.inputs.get("target"),
                "choose": args.choose,
                "min_bleu": args.min_bleu,
                "bleu_tokenize": args.bleu_tokenize if self.choice.bleu is not None else None,
                **dataclasses.asdict(self.filters),
                "files": self.names,
            },
        }

    def _require_same(self, settings: JsonObject) -> None:
        """Refuses a folder that was begun with other settings; writes nothing."""
        fix = "give the settings of that run, or another --output"
        fixes = {"decoding": fix, "filtering": f"{fix}, or --refilter to filter anew what has been decoded"}
        parts = {name: settings[name] for name in fixes if name == "decoding" or not self.args.refilter}
        self._old = require_same(self.folder / JOURNAL, "nartk-distill", parts, fixes)

    def _decode(self, model: Model, strategy: Strategy, journal: Journal) -> None:
        """Decodes the windows that the journal does not hold, and adds them to it."""
        start = journal.count * WINDOW
        if start and start < self.lines:
            tell(self.args, f"goes on after {start} of {self.lines} lines")
        drawn = not self.args.quiet and sys.stderr.isatty()
        begun = time.perf_counter()
        records = islice(self._records(self.source), start, None)
        with progress("distilling", self.lines - start, drawn=drawn) as show:
            written = 0
            while window := list(islice(records, WINDOW)):
                found: list[Any] = [None] * len(window)
                outcomes = self._outcomes(model, strategy, window, start + written)
                for finished, (index, outcome) in enumerate(outcomes, start=1):
                    found[index] = outcome
                    show(written + finished)
                journal.append(json.dumps(found, ensure_ascii=False).encode())
                written += len(window)
        if written:
            seconds = time.perf_counter() - begun
            speed = f"in {seconds:.1f} s ({written / seconds:.1f} a second)"
            tell(self.args, f"{number_of(written, 'line')} {speed}")

    def _outcomes(
        self, model: Model, strategy: Strategy, window: Sequence[Record], first: int
    ) -> Iterator[tuple[int, list[str] | None]]:
        """The place in the window and the outputs of each record, best first; None where it failed.

        `first` lines came before. An unreadable line has no text and takes a place.
        """
        for index, outcome in model.stream(
            [record.text for record in window], strategy, **batching(self.args), first=first
        ):
            error = window[index].error
            if error is None and isinstance(outcome, NartkError):
                error = outcome
                error.where = window[index].where
            if error is not None:
                print(f"nartk: {error}", file=sys.stderr)
                yield index, None
            elif not isinstance(outcome, NartkError):
                yield index, [each.text for each in outcome.hypotheses[: self.nbest]]

    def _write(self, model: Model, settings: JsonObject, journal: Journal) -> JsonObject:
        """Chooses, filters and writes the corpus and its report."""
        origins: Counter[str] = Counter()
        counts: Counter[int] = Counter()
        dropped = dict.fromkeys(REASONS, 0)
        tokens = model.tokenization.tokens
        encode, write = model.checkpoint.text.tokenizer.encode, model.checkpoint.output.encode
        outputs = (found for payload in journal.records() for found in json.loads(payload))
        references: Iterator[Record | None] = iter([None] * self.lines)
        if self.choice.bleu is not None:
            references = self._records(self.args.target)
        with writing(self.folder / self.names[0]) as sources, writing(self.folder / self.names[1]) as targets:
            for record, found, reference in zip(self._records(self.source), outputs, references, strict=True):
                if found is None or (reference is not None and reference.error is not None):
                    dropped["failed"] += 1
                    continue
                text, origin = self.choice(found, None if reference is None else reference.text)
                reason = self.filters.reason(tokens(record.text), tokens(text), encode, write)
                if reason is not None:
                    dropped[reason] += 1
                    continue
                origins[origin] += 1
                counts.update(write(tokens(text)))
                for file, line in ((sources, record.text), (targets, text)):
                    # Both end a line, the first for many readers.
                    file.write(line.replace("\r", " ").replace("\n", " ") + "\n")
        words = model.checkpoint.target_vocab.words
        write_counts(self.folder / WORD_COUNTS, {words[id]: count for id, count in sorted(counts.items())})
        report = {
            "lines": self.lines,
            "kept": origins.total(),
            "dropped": dropped,
            "kept_from": {name: origins[name] for name in ("best", "other", "reference")},
            **settings,
        }
        with writing(self.folder / "report.json") as file:
            write_json(file, report, ensure_ascii=False)
        return report

    def _records(self, name: str) -> Iterator[Record]:
        return read_files([name], "txt", Fields())


def _language(given: str | None, file: str | None, side: str) -> str:
    """The suffix of one side's file."""
    name = given if given is not None else suffix_of("" if file is None else file).removeprefix(".")
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"the {side}'s language is {name!r}", fix=f"name it with --{side}-lang")
    return name
