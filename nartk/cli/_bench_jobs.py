"""Sentences that `nartk-bench` decodes: those of files, with what scores their outputs, or random ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import model_folder
from nartk.cli import score
from nartk.cli._files import read_sentences
from nartk.cli._input import are_tokenized, languages, reads_stdin, split_inputs
from nartk.cli._output import tell
from nartk.errors import InputFileError, UsageError, number_of
from nartk.processors.text import AsGiven
from nartk.registry import make_strategy, reads_drafts, strategy_class

if TYPE_CHECKING:
    from nartk.bench.quality import Quality
    from nartk.bench.runner import Cell
    from nartk.bench.specs import Spec
    from nartk.bench.work import Workload
    from nartk.data.readers import Record
    from nartk.protocols.paragraph import Paragraph


def file_cells(
    args: argparse.Namespace, strategies: Sequence[Spec | str], folder: Path
) -> tuple[str, list[Cell], list[Quality]]:
    """The model's name, the sentences of the files at each batch size, and how their outputs are scored.

    Args:
        folder: For texts to score.

    Raises:
        NartkError: There is no sentence, or references or drafts do not fit.
    """
    from nartk.bench.runner import GREEDY, Cell
    from nartk.bench.work import Workload

    model, files = split_inputs(args.inputs, "nartk-bench", optional=True)
    reads = any(isinstance(spec, str) or reads_drafts(strategy_class(spec.name)) for spec in strategies)
    if (args.drafts is not None or args.draft_columns) and not reads:
        labels = ", ".join(spec.label for spec in strategies if not isinstance(spec, str))
        raise UsageError(f"drafts are given, but none of {labels} reads them", fix="add verify")
    records = [*read_sentences(args, files, drafts=reads)]
    checkpoint = load_checkpoint(model_folder(model), **languages(args))
    longest = checkpoint.settings["max_source_len"]
    limit = make_strategy(GREEDY, {"max_len": args.max_len}).limit
    if reads_stdin(args, files):
        raise UsageError("sound from stdin, which is read more than once", fix="give a file")
    text = AsGiven() if are_tokenized(checkpoint, args, files) else checkpoint.tokenization
    rows: list[int] = []
    paragraphs: list[Paragraph] = []
    limits: list[int] = []
    drafts: list[tuple[str, ...]] = []
    prefixes: list[str] = []
    left_out = 0
    for row, record in enumerate(records):
        if len(rows) == args.limit:
            break
        paragraph = text.paragraph(record.text, prefix=record.prefix, drafts=record.drafts)
        lengths = []
        if record.error is None and record.text.strip():
            read = partial(checkpoint.input.read, longest=sys.maxsize)
            lengths = [len(read(sentence.text)) for sentence in paragraph.sentences]
        if args.truncate:
            lengths = [min(length, longest) for length in lengths]
        if not lengths or not all(1 < length <= longest for length in lengths):
            left_out += 1
            continue
        rows.append(row)
        paragraphs.append(paragraph)
        limits += [min(limit(length), checkpoint.settings["max_target_len"]) for length in lengths]
        drafts += [tuple(map(text.tokens, filter(None, record.drafts)))] * len(lengths)
        prefixes += [text.beginning(record.prefix)] * len(lengths)
    if left_out:
        reasons = "blank or unreadable" if args.truncate else "blank, unreadable or too long"
        tell(args, f"{number_of(left_out, 'line')} left out: {reasons}")
    if not rows:
        raise InputFileError("no sentence to decode", fix="give a file with at least one")
    job = Workload(
        lines=tuple(sentence.text for paragraph in paragraphs for sentence in paragraph.sentences),
        limits=tuple(limits),
        drafts=tuple(drafts) if any(drafts) else None,
        prefixes=tuple(prefixes) if any(prefixes) else None,
        truncate=args.truncate,
    )

    def join(outputs: Sequence[str]) -> list[str]:
        rest = iter(outputs)
        return [paragraph.join([next(rest) for _ in paragraph.sentences]) for paragraph in paragraphs]

    return (
        model,
        [Cell(job, size, None) for size in args.batch_sizes],
        _qualities(args, records, rows, job, join, folder),
    )


def _qualities(
    args: argparse.Namespace,
    records: Sequence[Record],
    rows: Sequence[int],
    job: Workload,
    join: Callable[[Sequence[str]], Sequence[str]],
    folder: Path,
) -> list[Quality]:
    """Metrics for the outputs of the records `rows`; references that do not fit are refused."""
    if not args.metric:
        return []
    from nartk.bench.quality import Quality

    source, output = folder / "source", folder / "output"
    called = {str(source): "the input", str(output): "the output"}
    texts = [record.text.replace("\n", " ") for record in records]
    source.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "backslashreplace"))
    found = []
    for metric in dict.fromkeys(args.metric):
        scorer = score.scorer_of(
            metric, references=args.ref, source=str(source), called=called, tell=partial(tell, args)
        )
        quality = Quality(metric, scorer, rows, len(records), output, join)
        quality.of(job.lines)
        found.append(quality)
    return found


def random_models(args: argparse.Namespace, specs: Sequence[Spec], folder: Path) -> list[Spec]:
    """Engines whose model is an architecture's name, with one that is written to a folder below `folder`."""
    from nartk.bench.work import save_random_model

    for name in {spec.model for spec in specs if spec.model}:
        save_random_model(folder / name, args.random, seed=args.seed, name=name)
    return [replace(spec, model=str(folder / spec.model)) if spec.model else spec for spec in specs]


def random_cells(args: argparse.Namespace, folder: Path) -> list[Cell]:
    """Writes a random model to `folder`; gives random sentences for each number of edits and batch size."""
    from nartk.bench.runner import GREEDY, Cell
    from nartk.bench.work import random_job, save_random_model

    save_random_model(folder, args.random, seed=args.seed)
    settings: dict[str, Any] = {
        "sentences": max(args.batch_sizes) if args.limit is None else args.limit,
        "source_len": args.source_len,
        "seed": args.seed,
        "limit": make_strategy(GREEDY, {"max_len": args.max_len}).limit(args.source_len + 1),
    }
    if args.source_len >= settings["limit"]:
        raise UsageError(
            f"--max-len is {args.max_len}, too short for an output of --source-len {args.source_len} words",
            fix="raise it",
        )
    return [
        Cell(random_job(args.random, edits=edits, **settings), size, edits)
        for edits in ([None] if args.edits is None else args.edits)
        for size in args.batch_sizes
    ]
