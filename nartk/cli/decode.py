"""`nartk-decode`: turns lines into lines with a model and any strategy; one line out for every line in."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.cli import _strategy
from nartk.cli._cluster import add_cluster, cluster, require_clustered, with_strategy
from nartk.cli._common import Parser, command, with_model
from nartk.cli._config import add_config, with_config
from nartk.cli._files import count_sentences, read_for, read_scored
from nartk.cli._input import (
    add_computation,
    add_drafts,
    add_guard,
    add_input,
    add_languages,
    add_sound,
    load_model,
    require_exact,
    split_inputs,
    with_manifest,
)
from nartk.cli._job import Job
from nartk.cli._output import add_output, add_verbose, line_writer, progress, tell
from nartk.errors import EXIT_OK, EXIT_SOME_FAILED, UsageError, named
from nartk.files import STDIN
from nartk.protocols.guarantee import Guarantee
from nartk.registry import is_streamed, make_strategy, strategies, strategy_class
from nartk.serving.transcripts import FORMATS

if TYPE_CHECKING:
    from nartk.cli._journal import LineJournal
    from nartk.decoders.strategy import Decoding

DESCRIPTION = """Decodes lines from files or stdin and prints one line for each, in their order.
A line that cannot be decoded gives an empty line, an error on stderr, and exit code 3 at the end.

Of models that know how their text was tokenised, such as gec-en, lines are ordinary text, of any number of
sentences, which are decoded on their own. What the model leaves alone is written as it was read: quotation
marks, white space, numbers, URLs, words that it cannot read, sentences that are not English. A line of white
space alone comes out empty. With --pretokenized a line is one sentence of tokens with spaces between.

Of a line of several sentences, tokens, log-probabilities and traces follow each other, scores and counts are
sums, and the i-th output has each sentence's i-th. A sentence that is too long is cut by --truncate; without
it the whole line fails. With a guard it is decoded in pieces instead, or kept. A line with a prefix or with
drafts counts as one sentence. What is drawn for a line does not depend on others.

A model whose output should resemble its input, such as gec-en, has a guard. An output that is not sound, by
its log-probabilities, length, repetitions, or the words that it loses or invents, is not taken: the sentence
is decoded again in pieces, and what is not sound even so, or too long, stays as it is. Single edits are
undone that make a word that exists nowhere. Where the model has a speller, it reads misspelt words spelled.
--stats and JSONL (as "guard") say what was done; tokens and log-probabilities are then those of the pieces.
A line with a prefix is not guarded. --no-guard takes all.

With a model of speech a sound file (wav, flac, ogg, mp3; with the extra `media` also m4a, webm and others) is
a line, and so are stdin where it brings sound, each file of a manifest, each array of an .npz of features and
each path in a text. A file is sound by its suffix or its first bytes. It is converted to the model's rate and
to one channel: the mean of several or, where that cancels them, the loudest.

Where nobody speaks a recording gives an empty line, and stderr says so; with --no-vad it gives what the model
makes of silence, noise and hum.

With --partials a recording is decoded while it is read: stderr gets a text for each chunk, as of the sound
until then and --look-ahead-ms more, stdout the last one when the recording has ended. A wav that stdin brings
may have no end; so may mp3, flac and ogg with the extra `media`, without which they are read to their end
first. In JSONL a hypothesis holds its partial texts, of each how many tokens of the one before it "revised"
and which it "added"; --stats has the latency of tokens, and the real-time factor of the model's computing
beside that of the whole.

With --score nothing is decoded: a line is the natural log-probability of each given output of its line, eos
included, with tabs between; in JSONL also each token's. It takes one pass and no strategy. A line is one
sentence then, and outputs are written as the model writes them."""
EXAMPLES = """  echo 'She go to school yesterday.' | nartk-decode
  nartk-decode in.txt --output out.txt --stats stats.json
  nartk-decode MODEL in.tsv --column 2 --strategy greedy --max-len 100
  nartk-decode MODEL in.jsonl --output-format jsonl     with scores and tokens
  nartk-decode gec-en-medium dev.src --pretokenized     JFLEG's text: She go to school yesterday .
  nartk-decode MODEL in.txt --trace trace.jsonl         where every token came from
  nartk-decode MODEL in.txt --strategy verify --drafts drafts.txt
      another system's outputs, put right where the model says otherwise
  nartk-decode MODEL in.txt --strategy speculative --drafter SMALL
  nartk-decode MODEL in.txt --strategy speculative --drafter self:layers=2
      drafts of another model, or of the model's own first layers: the output stays the same
  nartk-decode MODEL in.txt --score out.txt             how likely the model finds out.txt
  nartk-decode SPEECH_MODEL a.wav b.flac --strategy ctc-greedy
  nartk-decode SPEECH_MODEL --manifest test.tsv --stats stats.json
  nartk-decode S2S_MODEL --speech OUT a.wav             text, and its sound as OUT/a.wav
  nartk-decode TTS_MODEL --speech OUT phonemes.txt      each line's sound, as OUT/1.wav and so on
  nartk-decode MODEL in.txt -o out.txt --resume --ray   with the workers of a cluster: docs/cluster.md
  arecord -q -f S16_LE -r 8000 | nartk-decode asr-digits - --format sound --partials"""
# How recordings are cut while they come: what each time is, and its default in `stream`, ms.
CUT = {
    "chunk_ms": ("sound between two texts", 640),
    "left_ms": ("sound before it that the model sees too", 2560),
    "look_ahead_ms": ("sound behind it that is waited for", 320),
}


HOTWORDS = ("hotwords", "hotword_weight")  # options that a text as it comes heeds
M2 = "m2"
WRITTEN = ("text", "jsonl", M2, *FORMATS)  # what --output-format names, the default first
BY_SUFFIX = ("jsonl", M2, "srt", "vtt", "ctm")  # of --output, which other files than transcripts do not have


def _parser() -> Parser:
    parser = Parser(prog="nartk-decode", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s [MODEL] [FILE ...] [--strategy NAME] [options]"
    add_input(parser)
    add_drafts(parser)
    add_computation(parser)
    add_languages(parser)
    add_guard(parser)
    group = add_sound(parser)
    group.add_argument(
        "--partials",
        action="store_true",
        help="decode each recording while it is read, and print texts of what was said so far on stderr; "
        "with ctc-greedy and paraformer, and their hotwords",
    )
    for name, (text, default) in CUT.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            metavar="MS",
            help=f"with --partials, {text}, in whole positions of the model's encoder (default: {default})",
        )
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="engines of one thread that share the weights and decode at the same time, each with batches of "
        "its own: more sentences a second, the same output (CPU, default: %(default)s)",
    )
    add_cluster(parser)
    add_output(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what is decoded in OUTPUT.journal until all is, and go on after the lines that it holds",
    )
    add_verbose(parser)
    add_config(parser)
    parser.add_argument(
        "--output-format",
        choices=WRITTEN,
        help="text: the best output, or with n-best lists lines of number, score and text in columns; "
        "jsonl: all there is; m2: edits that make the output of a line of text, with ERRANT's types where "
        "the extra `score` is there; of a recording, of models that tell when words were said and of Whisper "
        "with --timestamps or --word-timestamps: srt, vtt: subtitles; json: segments, words, times and "
        "probabilities, as OpenAI's verbose_json; tsv: segments, in milliseconds; ctm: NIST's, a line a word "
        "(default: by the suffix of --output, else text)",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write a file of each recording, DIR/NAME.SUFFIX, in place of stdout; NAME is its id or its "
        "file's",
    )
    parser.add_argument(
        "--score",
        metavar="FILE",
        help="print the log-probability of given outputs: a line for each sentence; several of it with tabs "
        "between",
    )
    parser.add_argument(
        "--speech",
        metavar="FOLDER",
        help="write the sound of each output to FOLDER/NAME.wav, beside the text, with models of speech "
        "output; NAME is the id or the file of an input, else the number of its line",
    )
    parser.add_argument(
        "--vocoder",
        metavar="NAME[:FOLDER][:OPTION=VALUE]",
        help="with --speech, what makes sound of spectrograms: griffin-lim (the default), or hifi-gan and "
        "the folder of its weights; griffin-lim:iterations=60, hifi-gan:FOLDER:dtype=int8:threads=2",
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
    argv = with_model(argv)
    # NumPy's BLAS, which decoding never calls, would start a thread a core: 0.1 s of them at each start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = _parser()
    argv = with_config(parser, argv)
    args, options = _strategy.parse(parser, argv, by_model=True)
    name, files = split_inputs(args.inputs, "nartk-decode", optional=True)
    files = with_manifest(args, files)
    for time in CUT:
        if getattr(args, time) is not None and not args.partials:
            raise UsageError(f"{named(time)} without --partials", fix="give both")
    require_clustered(args, files)
    args.form_flag = f"--output-format {args.output_format}"
    if args.output_format is None:
        suffix = Path("" if args.output is None else args.output).suffix[1:].lower()
        args.output_format = suffix if suffix in BY_SUFFIX else WRITTEN[0]
        args.form_flag = f"--output {args.output}"
    if args.output_dir is not None:
        others = {"--output": args.output is not None, "--stream": args.stream}
        _require_alone(
            "--output-dir", "it writes a file of each recording, whose names are read first", others
        )
        others = {"--score": args.score is not None, "--partials": args.partials}
        _require_alone("--output-dir", "it writes outputs", others)
    if args.output_format in FORMATS:
        others = {"--score": args.score is not None, "--partials": args.partials}
        _require_alone(args.form_flag, "it has no times", others)
    if args.output_format == M2:
        others = {"--score": args.score is not None, "--output-dir": args.output_dir is not None}
        _require_alone(args.form_flag, "it holds the edits of lines", others)
    if vad := options.get("vad"):
        _require_alone(
            f"--vad {vad}", "one leaves pauses out, the other keeps them", {"--no-vad": args.no_vad}
        )
    if args.speech is None and args.vocoder is not None:
        raise UsageError("--vocoder without --speech", fix="give both")
    if args.speech is not None:
        others = {"--score": args.score is not None, "--partials": args.partials, "--stream": args.stream}
        _require_alone("--speech", "it writes a file of each output, and reads all names first", others)
    if args.score is not None:
        _require_alone("--score", "nothing is decoded", _decoding_flags(args, options, argv))
        records = read_scored(args, files)
    else:
        checked = make_strategy(args.strategy, _strategy.of_model(args, options))
        if args.partials:
            _require_streamed(args, checked, options)
        if args.assert_lossless and checked.promised.guarantee is not Guarantee.IDENTICAL:
            raise UsageError(
                f"--assert-lossless, but the promise of {checked.name!r} is {str(checked.promised)!r}",
                fix="choose a strategy that is identical to greedy",
            )
        records = read_for(checked, args, files)
    journal = None
    if args.resume:
        from nartk.cli._journal import LineJournal

        _require_alone("--resume", "the journal holds no sound", {"--speech": args.speech is not None})
        _require_alone("--resume", "the journal holds whole lines", {"--partials": args.partials})
        journal = LineJournal(args, files, options)
    with ExitStack() as outputs:
        # Opened before the model is: a place that cannot be written to is found out before the work.
        write, write_trace = _writers(args, journal, outputs)
        write_stats = None if args.stats is None else outputs.enter_context(line_writer(args.stats))
        model = load_model(name, args, args.dtype, files=files, replicas=args.replicas)
        if args.assert_lossless:
            require_exact(model, "--assert-lossless")
        model, strategy = with_strategy(model, args, options)
        job = _make_job(args, model, strategy, write, write_trace)
        if args.output_format == M2:
            from nartk.cli._edits import EditWriter

            job.edits = EditWriter(args, model, job.nbest)
        if journal is not None:
            journal.open(outputs, model, strategy, None if job.edits is None else job.edits.annotation)
            job.journal = journal
        if args.output_format in FORMATS or args.output_dir is not None:
            from nartk.cli._transcripts import Transcripts

            job.transcripts = Transcripts(args, reads_text=model.reads_text)
        if args.speech is not None:
            from nartk.cli._speech import SpeechWriter  # with NumPy, which `--help` does without

            job.speech = SpeechWriter(args, model)
            records = job.speech.checked(records)
        if args.ray is not None:
            job.cluster = outputs.enter_context(cluster(name, args, options, model, strategy))
        elif write_stats is not None:
            records = job.warm_up(records)
            if job.speech is not None:
                job.speech.time_parts()
        drawn = (
            not args.quiet
            and not args.partials
            and sys.stderr.isatty()
            and (args.output not in (None, STDIN) or not sys.stdout.isatty())
        )
        total = count_sentences(files, args.format) if drawn else None
        if total is not None and journal is not None:
            total -= journal.count
        with progress("scoring" if job.scores else "decoding", total, drawn=drawn) as done:
            job.decode(records, done)
        if journal is not None:
            journal.finish()
        if write_stats is not None:
            write_stats(json.dumps(job.report(), indent=2))
    tell(args, job.summary() + (f"\n{job.signature}" if args.verbose else ""))
    return EXIT_SOME_FAILED if job.failed else EXIT_OK


def _writers(
    args: argparse.Namespace, journal: LineJournal | None, outputs: ExitStack
) -> tuple[Callable[[str], None], Callable[[str], None] | None]:
    """Functions that write a line of the output and of the trace, the second None where none is written."""
    if journal is not None:
        return journal.write, None if args.trace is None else journal.write_trace
    write = outputs.enter_context(line_writer(args.output))
    return write, None if args.trace is None else outputs.enter_context(line_writer(args.trace))


def _make_job(args: argparse.Namespace, *given: Any) -> Job:
    if not args.partials:
        return Job(args, *given)
    from nartk.cli._partials import PartialsJob  # with NumPy, which `--help` does without

    cut = {name: getattr(args, name) for name in CUT if getattr(args, name) is not None}
    return PartialsJob(args, *given, **cut)


def _decoding_flags(
    args: argparse.Namespace, options: dict[str, Any], argv: Sequence[str]
) -> dict[str, bool]:
    """Tells of each flag that says how to decode whether it is given."""
    strategy = _strategy.strategy_named(argv)
    return {
        f"--strategy {strategy}": strategy is not None,
        "--drafts": args.drafts is not None,
        "--draft-columns": bool(args.draft_columns),
        "--prefix-column": args.prefix_column is not None,
        "--trace": args.trace is not None,
        "--partials": args.partials,
        "--no-guard": args.no_guard,
        "--min-edit-confidence": args.min_edit_confidence is not None,
        **_flags(options),
    }


def _flags(options: Iterable[str]) -> dict[str, bool]:
    return {f"--{name.replace('_', '-')}": True for name in options}


def _require_alone(flag: str, why: str, others: Mapping[str, bool]) -> None:
    """Refuses flags that do nothing, or something else, beside another one."""
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{flag} with {other}: {why}", fix="leave one of them out")


def _require_streamed(args: argparse.Namespace, strategy: Decoding, options: dict[str, object]) -> None:
    """Refuses what a recording cannot be decoded with while it comes."""
    if not is_streamed(strategy):
        fitting = [name for name in strategies() if is_streamed(strategy_class(name))]
        raise UsageError(
            f"--partials with strategy {strategy.name!r}, which reads a recording as a whole",
            fix=f"choose from {', '.join(fitting)}",
        )
    _require_alone(
        "--partials",
        "a text as it comes is the likeliest label of each frame",
        {
            "--prefix-column": args.prefix_column is not None,
            "--trace": args.trace is not None,
            "--long-form": args.long_form is not None,
            "--truncate": args.truncate,
            f"--replicas {args.replicas}": args.replicas > 1,
            **_flags(name for name in options if name not in HOTWORDS),
        },
    )
