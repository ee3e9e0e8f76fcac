"""`nartk-decode`: turns lines into lines with a model and any strategy; one line out for every line in."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from nartk.cli import _strategy
from nartk.cli._common import Parser, command
from nartk.cli._input import (
    add_computation,
    add_drafts,
    add_input,
    add_languages,
    add_sound,
    batching,
    count_sentences,
    load_model,
    read_for,
    read_scored,
    require_exact,
    split_inputs,
    with_manifest,
)
from nartk.cli._output import add_output, line_writer, progress, tell
from nartk.errors import EXIT_OK, EXIT_SOME_FAILED, NartkError, UsageError
from nartk.guarantee import Guarantee
from nartk.hypothesis import WINDOW, DecodeStats, Hypothesis, Result
from nartk.registry import make_strategy, reads_drafts
from nartk.tracing import describe, describe_error, finite, head, provenance

if TYPE_CHECKING:
    from nartk.data.readers import Record
    from nartk.pipeline import Model

DESCRIPTION = """Decodes lines from files or stdin and prints one line for each, in their order.
A line that cannot be decoded gives an empty line, an error on stderr, and exit code 3 at the end.

Of models that know how their text was tokenised, such as gec-en, lines are ordinary text, of any number of
sentences, which are decoded on their own. What the model leaves alone is written as it was read: quotation
marks, white space, numbers, URLs, words that it cannot read, sentences that are not English. With
--pretokenized a line is one sentence of tokens with spaces between.

Of a line of several sentences, tokens, log-probabilities and traces follow each other, scores and counts are
sums, and the i-th output has each sentence's i-th. A sentence that is too long is cut by --truncate; without
it the whole line fails. A line with a prefix or with drafts counts as one sentence. What is drawn for a line
does not depend on others.

With a model of speech a sound file (wav, flac, ogg, mp3) is a line, and so is each file of a manifest, each
array of an .npz of features, and each path in a text. Sound is converted to the model's rate and one channel.

With --score nothing is decoded: a line is the natural log-probability of each given output of its line, eos
included, with tabs between; in JSONL also each token's. It takes one pass and no strategy. A line is one
sentence then, and outputs are written as the model writes them."""
EXAMPLES = """  echo 'She go to school yesterday.' | nartk-decode
  nartk-decode in.txt --output out.txt --stats stats.json
  nartk-decode MODEL in.tsv --column 2 --strategy greedy --max-len 100
  nartk-decode MODEL in.jsonl --output-format jsonl     with scores and tokens
  nartk-decode gec-en dev.src --pretokenized            JFLEG's text: She go to school yesterday .
  nartk-decode MODEL in.txt --trace trace.jsonl         where every token came from
  nartk-decode MODEL in.txt --strategy verify --drafts drafts.txt
      another system's outputs, put right where the model says otherwise
  nartk-decode MODEL in.txt --score out.txt             how likely the model finds out.txt
  nartk-decode SPEECH_MODEL a.wav b.flac --strategy ctc-greedy
  nartk-decode SPEECH_MODEL --manifest test.tsv --stats stats.json"""
_IN_COLUMNS = str.maketrans("\n\t", "  ")
WARM_UP = ("Warm up .", "The first sentences take longer .")
WINDOW_OF_FEATURES = 256  # sources in memory at a time: a minute of sound takes 2 MB, a sentence nothing


def _parser() -> Parser:
    parser = Parser(prog="nartk-decode", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s [MODEL] [FILE ...] [--strategy NAME] [options]"
    add_input(parser)
    add_drafts(parser)
    add_computation(parser)
    add_languages(parser)
    add_sound(parser)
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="engines of one thread that share the weights and decode at the same time, each with batches of "
        "its own: more sentences a second, the same output (CPU, default: %(default)s)",
    )
    add_output(parser)
    parser.add_argument(
        "--output-format",
        choices=("text", "jsonl"),
        default="text",
        help="text: the best output, or with n-best lists lines of number, score and text in columns; "
        "jsonl: all there is (default: %(default)s)",
    )
    parser.add_argument(
        "--score",
        metavar="FILE",
        help="print the log-probability of given outputs: a line for each sentence; several of it with tabs "
        "between",
    )
    parser.add_argument("--stats", metavar="FILE", help="write counts, speed and latency as JSON")
    parser.add_argument(
        "--trace", metavar="FILE", help="write where each token came from as JSONL: nartk-trace draws it"
    )
    parser.add_argument("--stream", action="store_true", help="answer each line before the next is read")
    parser.add_argument(
        "--assert-lossless",
        action="store_true",
        help="refuse what is not identical to greedy search: strategies, options of theirs, and torch where "
        "the engine might be",
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    # NumPy's BLAS, which decoding never calls, would start a thread a core: 0.1 s of them at each start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    args, options = _strategy.parse(_parser(), argv, by_model=True)
    name, files = split_inputs(args.inputs, "nartk-decode", optional=True)
    files = with_manifest(args, files)
    if args.score is not None:
        _require_scoring(args, options, _strategy.strategy_named(argv))
        records = read_scored(args, files)
    else:
        checked = make_strategy(args.strategy, _strategy.of_model(args, options))
        if args.assert_lossless:
            _require_lossless(checked)
        records = read_for(checked, args, files, partial(tell, args))
    with ExitStack() as outputs:
        # Opened before the model is: a place that cannot be written to is found out before the work.
        write = outputs.enter_context(line_writer(args.output))
        write_trace, write_stats = (
            None if path is None else outputs.enter_context(line_writer(path))
            for path in (args.trace, args.stats)
        )
        model = load_model(name, args, args.dtype, files=files, replicas=args.replicas)
        if args.assert_lossless:
            require_exact(model, "--assert-lossless")
        if args.score is not None:
            strategy = model.scoring()
        else:
            strategy = model.strategy(args.strategy, options, tell=partial(tell, args))
        job = _Job(args, model, strategy, write, write_trace)
        if write_stats is not None:
            records = job.warm_up(records)
        drawn = (
            not args.quiet and sys.stderr.isatty() and (args.output is not None or not sys.stdout.isatty())
        )
        with progress(
            "scoring" if job.scores else "decoding",
            count_sentences(files, args.format) if drawn else None,
            drawn=drawn,
        ) as done:
            job.decode(records, done)
        if write_stats is not None:
            write_stats(json.dumps(job.report(), indent=2))
    tell(args, f"{job.summary()}\n{job.signature}")
    return EXIT_SOME_FAILED if job.failed else EXIT_OK


def _require_lossless(strategy: Any) -> None:
    if strategy.promised.guarantee is not Guarantee.IDENTICAL:
        raise UsageError(
            f"--assert-lossless, but the promise of {strategy.name!r} is {str(strategy.promised)!r}",
            fix="choose a strategy that is identical to greedy",
        )


def _require_scoring(args: argparse.Namespace, options: dict[str, Any], strategy: str | None) -> None:
    """Refuses what does nothing where nothing is decoded."""
    given = {
        f"--strategy {strategy}": strategy is not None,
        "--drafts": args.drafts is not None,
        "--draft-columns": bool(args.draft_columns),
        "--prefix-column": args.prefix_column is not None,
        "--trace": args.trace is not None,
        **{f"--{name.replace('_', '-')}": True for name in options},
    }
    for flag, is_given in given.items():
        if is_given:
            raise UsageError(f"--score with {flag}: nothing is decoded", fix="leave one of them out")


class _Job:
    """Decodes records, or scores their outputs, and writes what comes out in their order.

    Attributes:
        lines: Sentences written, blank and failed ones included.
        failed: Sentences that had an error.
        windows: What the others took, in parts.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        model: Model,
        strategy: Any,
        write: Callable[[str], None],
        write_trace: Callable[[str], None] | None,
    ) -> None:
        self.args, self.model, self.strategy = args, model, strategy
        self.write, self.write_trace = write, write_trace
        self.nbest: int = getattr(strategy, "nbest", 1)  # strategies that can find several have this option
        self.scores = args.score is not None
        self.reads_text = model.checkpoint.input.vocab is not None
        self.reads_drafts = reads_drafts(strategy)
        self.lines = self.failed = 0
        self.warmed = 0.0  # seconds of sound
        self.signature = model.signature(strategy)
        self.windows: list[DecodeStats] = []

    def warm_up(self, records: Iterator[Record]) -> Iterator[Record]:
        """Decodes a little that does not count; gives the records back."""
        lines: Sequence[str] = WARM_UP
        if not self.reads_text:
            first = [*islice(records, 1)]
            records = chain(first, records)
            lines = [record.text for record in first]
        targets = WARM_UP[: len(lines)] if self.scores else None
        deque(self.model.stream(lines, self.strategy, targets=targets, truncate=True), maxlen=0)
        self.warmed = self._sound_read()
        return records

    def _sound_read(self) -> float:
        """Seconds of sound that have been read since warming up; 0 of text."""
        return getattr(self.model.checkpoint.input, "seconds", 0.0) - self.warmed

    def decode(self, records: Iterator[Record], done: Callable[[int], None]) -> None:
        """Decodes all records; tells `done` how many sentences are written."""
        size = 1 if self.args.stream else WINDOW if self.reads_text else WINDOW_OF_FEATURES
        while window := list(islice(records, size)):
            self._decode_window(window, done)

    def _decode_window(self, window: Sequence[Record], done: Callable[[int], None]) -> None:
        from nartk.pipeline import in_order, summarize

        start = time.perf_counter()
        finished: list[Result] = []
        given = [record.drafts for record in window]
        # A record with an error has no text and takes a place: what a line gives, sampled or not, does not
        # depend on whether those before it can be read.
        outcomes = self.model.stream(
            [record.text for record in window],
            self.strategy,
            prefixes=None if self.scores else [record.prefix for record in window],
            drafts=given if self.reads_drafts else None,
            targets=given if self.scores else None,
            **batching(self.args),
            trace=self.write_trace is not None,
            first=self.lines,
        )
        for record, found in zip(window, in_order(outcomes), strict=True):
            outcome = found if record.error is None else record.error
            if not isinstance(outcome, NartkError):
                finished.append(outcome)
            self._write(record, outcome)
            done(self.lines)
        self.windows.append(summarize(finished, time.perf_counter() - start))

    def _write(self, record: Record, outcome: Result | NartkError) -> None:
        self.lines += 1
        name = {"id": self.lines if record.id is None else record.id}
        hypotheses: Sequence[Hypothesis] = ()
        if isinstance(outcome, NartkError):
            self.failed += 1
            outcome.where = record.where
            print(f"nartk: {outcome}", file=sys.stderr)
            failure = {"error": describe_error(outcome)}
        else:
            hypotheses = outcome.hypotheses if self.scores else outcome.hypotheses[: self.nbest]
        if self.args.output_format == "jsonl":
            found = {"source": record.text, "hypotheses": [self._describe(each) for each in hypotheses]}
            self.write(_to_json(name | (found if hypotheses else failure)))
        elif self.scores:
            self.write("\t".join(f"{each.score:.6f}" for each in hypotheses))
        elif self.nbest == 1:
            # The text of a JSONL record may have line breaks.
            self.write(hypotheses[0].text.replace("\n", " ") if hypotheses else "")
        else:
            scores = ["" if each.score is None else f"{each.score:.6f}" for each in hypotheses]
            pairs = zip(scores, hypotheses, strict=True)
            columns = [f"{self.lines}\t{score}\t{each.text.translate(_IN_COLUMNS)}" for score, each in pairs]
            self.write("\n".join(columns) if columns else f"{self.lines}\t\t")
        if self.write_trace is not None:
            traced = failure if isinstance(outcome, NartkError) else self._describe_trace(record, outcome)
            self.write_trace(_to_json(head(self.lines, name["id"], self.signature) | traced))

    def _describe(self, hypothesis: Hypothesis) -> dict[str, Any]:
        scores = hypothesis.positional_scores
        described = {
            "text": hypothesis.text,
            "tokens": hypothesis.pieces,
            "score": finite(hypothesis.score),
            "positional_scores": None if scores is None else [*map(finite, scores)],
        }
        return described | provenance(hypothesis)

    def _describe_trace(self, record: Record, result: Result) -> dict[str, Any]:
        from nartk.passes import texts_of

        checkpoint = self.model.checkpoint
        source: list[str] = []  # of what is no text
        if checkpoint.input.vocab is not None:
            paragraph = self.model.tokenization.paragraph(
                record.text, prefix=record.prefix, drafts=record.drafts
            )
            for sentence in paragraph.sentences:
                ids = texts_of([self.model.encode(sentence.text, truncate=self.args.truncate)])[0]
                source += checkpoint.input.vocab.to_words(ids)
        return describe(
            result,
            nbest=self.nbest,
            text=record.text,
            source=source,
            words=checkpoint.target_vocab.to_words,
        )

    def stats(self) -> DecodeStats:
        """What all sentences took."""
        return DecodeStats.total(self.windows)

    def report(self) -> dict[str, Any]:
        """What `--stats` writes, without loading and warm-up; blank and failed lines are no sentences."""
        stats, args = self.stats(), self.args
        sound = self._sound_read()
        timed = {"sound_seconds": sound, "real_time_factor": stats.seconds / sound} if sound else {}
        return {
            "seconds": stats.seconds,
            **timed,
            "lines": self.lines,
            "failed": self.failed,
            "sentences": stats.sentences,
            "tokens": stats.tokens,
            "passes": stats.passes,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "accepted_per_pass": stats.accepted / stats.passes if stats.passes else 0.0,
            "tokens_per_second": stats.tokens_per_second,
            "latency_ms": stats.latency_ms,
            "strategy": self.strategy.name,
            "guarantee": self.strategy.promised.guarantee.value,
            "batch_size": args.batch_size,
            "max_tokens": args.max_tokens,
            "drafts": args.drafts,
            "device": args.device,
            "dtype": self.model.dtype,
            "threads": self.model.threads,
            "replicas": self.model.replicas,
            "signature": self.signature,
        }

    def summary(self) -> str:
        """The run in a line."""
        stats = self.stats()
        drafted = f", {stats.accepted} of {stats.drafted} drafted tokens accepted" if stats.drafted else ""
        failed = f", {self.failed} lines failed" if self.failed else ""
        sound = self._sound_read()
        factor = f", real-time factor {stats.seconds / sound:.4f}" if sound else ""
        return (
            f"{stats.sentences} sentences, {stats.tokens} tokens in {stats.seconds:.2f} s "
            f"({stats.tokens_per_second:.0f} tokens/s), {stats.passes} passes{drafted}{factor}{failed}"
        )


def _to_json(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)
