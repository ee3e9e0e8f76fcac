"""`nartk-trace`: draws what `nartk-decode --trace` wrote, as a page or a picture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.cli._common import Parser, command, with_model
from nartk.cli._output import add_output, tell
from nartk.errors import EXIT_OK, EXIT_SOME_FAILED, InputFileError, InputTooLongError, NartkError, UsageError
from nartk.files import JsonObject, reading, shown, writing
from nartk.tracing import Traced, page, plot, read_trace

if TYPE_CHECKING:
    from nartk.tracing.speech import Alignment

DESCRIPTION = """Draws a trace: where each output token came from, in which pass, and how close a call it was.
The page needs no network. Without --html, --png and --svg it prints the figures alone.
A damaged line is left out with an error on stderr, and exit code 3 at the end; so is the spectrogram of a
recording that is missing, or longer than a minute."""
EXAMPLES = """  nartk-decode gec-en-medium in.txt --trace trace.jsonl --output out.txt
  nartk-trace trace.jsonl -o trace.html              every sentence, to be searched and sorted
  nartk-trace trace.jsonl --png tokens.png           how many tokens passes settled
  nartk-trace trace.jsonl --line 12 --svg line.svg   the passes of the 12th sentence
  nartk-trace trace.jsonl --model asr-digits --html heard.html
      of speech, the spectrogram with the tokens, and CTC's posteriors, a Paraformer's weights or a graph
  nartk-trace trace.jsonl --line 12 --model asr-digits --png heard.png
  head -n 50 trace.jsonl | nartk-trace - --html some.html"""


FORMS = ("html", "png", "svg")


def _parser() -> Parser:
    parser = Parser(prog="nartk-trace", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("trace", metavar="TRACE", help="what nartk-decode --trace wrote, - for stdin")
    parser.add_argument("--html", metavar="FILE", help="write a page with all sentences")
    for form in ("png", "svg"):
        parser.add_argument(
            f"--{form}", metavar="FILE", help=f"draw how many tokens passes settled, as {form.upper()}"
        )
    add_output(parser, text=f"one of these, by its suffix: {', '.join(f'.{form}' for form in FORMS)}")
    parser.add_argument(
        "--line", type=int, metavar="N", help="draw sentence N of the input alone; as a picture, its passes"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="the model of speech that wrote the trace: the page, and with --line the picture, align tokens "
        "to the recordings, which are read again",
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    argv = with_model(argv)
    args = _parser().parse_args(argv)
    if args.line is not None and args.line < 1:
        raise UsageError(f"--line is {args.line}", fix="count sentences from 1")
    if args.output is not None:
        form = Path(args.output).suffix[1:].lower()
        if form not in FORMS:
            raise UsageError(
                f"--output is {args.output!r}", fix=f"end it in {', '.join(f'.{each}' for each in FORMS)}"
            )
        if getattr(args, form) is not None:
            raise UsageError(f"--output {args.output} with --{form}", fix="leave one of them out")
        setattr(args, form, args.output)
    pictures = [(getattr(args, form), form) for form in ("png", "svg") if getattr(args, form) is not None]
    if args.model is not None:
        if args.html is None and not pictures:
            raise UsageError("--model, but nothing is drawn", fix="give --html, --png or --svg")
        if pictures and args.line is None:
            raise UsageError(
                f"--model and --{pictures[0][1]} without --line", fix="say which sentence is to be drawn"
            )
    if pictures:
        plot.require_matplotlib()
    trace, damaged = _read(args.trace)
    if args.line is not None:
        trace = _only(trace, args.line)
    align_line = None if args.model is None else _aligner(args.model)
    unaligned = 0
    if args.html is not None:
        name = Path(shown(args.trace)).name
        speech: dict[int, JsonObject] = {}
        if align_line is not None:
            speech, unaligned = _aligned(align_line, trace)
        with writing(Path(args.html)) as file:
            file.write(page.page(trace, name=name, damaged=damaged, speech=speech))
    for path, form in pictures:
        if align_line is not None:
            _plot_speech(align_line, trace[0], Path(path), form)
        elif args.line is None:
            plot.plot_histogram(trace, Path(path), form)
        else:
            plot.plot_passes(trace[0], Path(path), form)
    tell(args, page.summary(trace))
    return EXIT_SOME_FAILED if damaged or unaligned else EXIT_OK


def _aligner(name: str) -> Callable[[Traced], Alignment]:
    """Returns a function that aligns a decoded line to its recording."""
    from nartk.serving.loading import load
    from nartk.tracing.speech import align

    model = load(name)
    words = model.checkpoint.target_vocab
    return lambda traced: align(model, traced.source_text, words.ids(traced.output), traced.graph)


def _aligned(
    align_line: Callable[[Traced], Alignment], trace: Sequence[Traced]
) -> tuple[dict[int, JsonObject], int]:
    """The alignments for a page by index, and the number of recordings without one."""
    from nartk.tracing.speech import for_page

    found: dict[int, JsonObject] = {}
    unaligned = 0
    for index, traced in enumerate(trace):
        if traced.error is not None:
            continue
        try:
            found[index] = for_page(align_line(traced))
        except (InputFileError, InputTooLongError, UsageError) as error:
            unaligned += 1
            error.where = error.where or f"line {traced.line}"
            print(f"nartk: {error}", file=sys.stderr)
    return found, unaligned


def _plot_speech(align_line: Callable[[Traced], Alignment], traced: Traced, path: Path, form: str) -> None:
    """Draws the alignment of a line to its recording."""
    from nartk.tracing.speech import plot_speech

    if traced.error is not None:
        raise UsageError(f"line {traced.line} failed when it was decoded", fix="choose another one")
    plot_speech(align_line(traced), path, form)


def _read(name: str) -> tuple[list[Traced], int]:
    """Reads a trace: its valid lines, and the number of damaged ones, whose errors it prints.

    Raises:
        InputFileError: It cannot be read, is empty, no trace, or one of another version.
    """
    trace: list[Traced] = []
    damaged = 0
    with reading(name) as file:
        for found in read_trace(file, shown(name)):
            if isinstance(found, NartkError):
                damaged += 1
                print(f"nartk: {found}", file=sys.stderr)
            else:
                trace.append(found)
    return trace, damaged


def _only(trace: Sequence[Traced], line: int) -> list[Traced]:
    """The sentence of that number; more than one where traces were put together."""
    found = [traced for traced in trace if traced.line == line]
    if not found:
        low, high = (each(traced.line for traced in trace) for each in (min, max))
        raise UsageError(f"--line is {line}, not in the trace", fix=f"choose from {low} to {high}")
    return found
