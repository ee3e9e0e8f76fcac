"""`nartk-trace`: draws what `nartk-decode --trace` wrote, as a page or a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nartk.cli._common import Parser, command
from nartk.cli._output import tell
from nartk.errors import EXIT_OK, EXIT_SOME_FAILED, NartkError, UsageError
from nartk.files import reading, shown, writing
from nartk.tracing import Traced, page, plot, read_trace

DESCRIPTION = """Draws a trace: where each output token came from, in which pass, and how close a call it was.
The page needs no network. Without --html, --png and --svg it says the figures alone.
A damaged line is left out with an error on stderr, and exit code 3 at the end."""
EXAMPLES = """  nartk-decode gec-en in.txt --trace trace.jsonl --output out.txt
  nartk-trace trace.jsonl --html trace.html          every sentence, to be searched and sorted
  nartk-trace trace.jsonl --png tokens.png           how many tokens passes settled
  nartk-trace trace.jsonl --line 12 --svg line.svg   the passes of the 12th sentence
  nartk-trace trace.jsonl --line 12 --model MODEL --png heard.png
      of speech, the spectrogram with the tokens, and CTC's posteriors or a Paraformer's weights
  head -n 50 trace.jsonl | nartk-trace - --html some.html"""


def _parser() -> Parser:
    parser = Parser(prog="nartk-trace", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("trace", metavar="TRACE", help="what nartk-decode --trace wrote, - for stdin")
    parser.add_argument("--html", metavar="FILE", help="write a page with all sentences")
    for form in ("png", "svg"):
        parser.add_argument(
            f"--{form}", metavar="FILE", help=f"draw how many tokens passes settled, as {form.upper()}"
        )
    parser.add_argument(
        "--line", type=int, metavar="N", help="draw sentence N of the input alone; as a picture, its passes"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="the model of speech that wrote the trace: with --line, the picture shows what it heard where",
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    args = _parser().parse_args(argv)
    if args.line is not None and args.line < 1:
        raise UsageError(f"--line is {args.line}", fix="count sentences from 1")
    if args.model is not None and args.line is None:
        raise UsageError("--model without --line", fix="say which sentence is to be drawn")
    pictures = [(getattr(args, form), form) for form in ("png", "svg") if getattr(args, form) is not None]

    if pictures:
        plot.require_matplotlib()
    trace, damaged = _read(args.trace)
    if args.line is not None:
        trace = _only(trace, args.line)
    if args.html is not None:
        name = Path(shown(args.trace)).name
        with writing(Path(args.html)) as file:
            file.write(page.page(trace, name=name, damaged=damaged))
    for path, form in pictures:
        if args.model is not None:
            _plot_speech(args.model, trace[0], Path(path), form)
        elif args.line is None:
            plot.plot_histogram(trace, Path(path), form)
        else:
            plot.plot_passes(trace[0], Path(path), form)
    tell(args, page.summary(trace))
    return EXIT_SOME_FAILED if damaged else EXIT_OK


def _plot_speech(name: str, traced: Traced, path: Path, form: str) -> None:
    """Draws what a model heard in the recording of a line."""
    from nartk.pipeline import load
    from nartk.tracing.speech import heard, plot_speech

    if traced.error is not None:
        raise UsageError(f"line {traced.line} failed when it was decoded", fix="choose another one")
    model = load(name)
    tokens = model.checkpoint.target_vocab.ids(traced.output)
    plot_speech(heard(model, traced.source_text, tokens), path, form)


def _read(name: str) -> tuple[list[Traced], int]:
    """The sound lines of a trace, and how many others there are, whose errors it prints.

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
