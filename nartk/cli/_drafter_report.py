"""`nartk-bench --drafter-report`: the share of a drafter's tokens that a model accepts, and its bounds."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nartk.checkpoints.names import CONFIG, model_folder
from nartk.cli._bench_jobs import file_cells
from nartk.cli._input import languages
from nartk.cli._output import json_writer, tell
from nartk.errors import EXIT_OK, UsageError, named
from nartk.files import STDIN, writing

MAX_DRAFT = 5  # tokens, unless `--max-draft` says otherwise


def drafter_report(argv: Sequence[str], args: argparse.Namespace, dtypes: Sequence[str]) -> int:
    """Measures each drafter in each type, and writes the tables where the flags say.

    Raises:
        UsageError: No drafter is named, and the model's folder has none; outputs have forced beginnings,
            which no drafter chose; or several numbers of threads are named, which change no figure.
    """
    from nartk.bench import drafters, report, runner
    from nartk.bench.specs import Setup

    if len(args.thread_counts) > 1:
        raise UsageError(f"{named('threads', args.threads)}: no figure depends on it", fix="name one number")
    with ExitStack() as stack:
        write = stack.enter_context(json_writer(args.json))
        markdown = None if args.markdown is None else stack.enter_context(writing(Path(args.markdown)))
        model, (cell, *_), _ = file_cells(args, [], Path(stack.enter_context(tempfile.TemporaryDirectory())))
        if cell.job.prefixes is not None:
            raise UsageError("the sentences have prefixes, which are no drafter's", fix="leave them out")
        setup = Setup(model, args.device, args.thread_counts[0], languages=languages(args))
        longest = MAX_DRAFT if args.max_draft is None else args.max_draft
        settings = {"max_draft": longest, "max_len": args.max_len}
        figures = []
        for drafter in args.drafter or [_within(model)]:
            for dtype in dtypes:
                figures.append(drafters.DrafterReport(drafter, setup, **settings).figures(cell.job, dtype))
                tell(args, f"{drafter} {dtype}: measured")
        around = runner.environment(args.device)
        found = {
            "command": ["nartk-bench", *argv],
            "model": model,
            "sentences": len(cell.job.lines),
            "environment": around,
            "drafters": figures,
        }
        write(found)
        tables, legend = drafters.tables(figures), drafters.legend(figures)
        if markdown is not None:
            facts = {"model": f"`{model}`", "sentences": found["sentences"]}
            hardware = around["gpu"] or around["cpu"]
            signed = [each for each in [*figures, *(each["sampling"] for each in figures)] if each]
            signatures = [f"- `{each['signature']}`" for each in signed]
            top = report.heading("Drafters", found, facts, hardware=hardware)
            markdown.write("\n".join([*top, tables, "", legend, "", "Signatures:", *signatures, ""]))
    if args.json != STDIN:
        print(tables)
    if not args.quiet:
        print(legend, file=sys.stderr)
    return EXIT_OK


def _within(model: str) -> str:
    """Folder of the drafter in a model's own folder."""
    from nartk.decoders.drafters.small_model import WITHIN

    folder = model_folder(model) / WITHIN
    if not (folder / CONFIG).is_file():
        raise UsageError(
            f"{model!r} has no drafter in its folder, and {named('drafter')} names none",
            fix=f"name one with {named('drafter')}",
        )
    return str(folder)
