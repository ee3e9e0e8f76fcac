"""`nartk-bench`: measures strategies, and other libraries with the same weights, against each other."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.cli._common import Parser, run
from nartk.cli._input import add_input, fields_of, read_files, split_inputs
from nartk.errors import EXIT_FAILED, EXIT_OK, InputFileError, UsageError
from nartk.files import writing

if TYPE_CHECKING:
    from nartk.bench.engines import Spec
    from nartk.bench.runner import Cell

DESCRIPTION = """Decodes the same sentences with several engines and compares their speed and their outputs.
Each engine has a process of its own, one is active at a time, and rounds are interleaved, so that ratios
hold on a busy machine. Greedy search always runs; it is what the others are compared with.

An engine is NAME or NAME:OPTION=VALUE:... The options of a strategy are those of nartk-decode. Peers are
  hf           transformers, eager     beam=N, lookup=N (prompt lookup), int8=1 (dynamic)
  ctranslate2  CTranslate2             beam=N, int8=1, replicas=N
  fairseq      its own SequenceGenerator, fp32   beam=N"""
EXAMPLES = """  nartk-bench gec-en in.txt --strategies greedy,iad,iad:anchor=unique --limit 200
  nartk-bench MODEL in.txt --dtype fp32,bf16 --peers hf,ctranslate2,ctranslate2:int8=1 --output bench.json
  nartk-bench --random base --forced-edits 0,1,3 --peers hf,ctranslate2,fairseq
      random weights of Transformer-base; outputs are the sources with 0, 1 and 3 words replaced"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(_command, argv)


def _parser() -> Parser:
    parser = Parser(prog="nartk-bench", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s MODEL FILE [FILE ...] [options], or --random SIZE [options]"
    add_input(parser)
    parser.add_argument(
        "--strategies", metavar="LIST", default="greedy,iad", help="with commas (default: %(default)s)"
    )
    parser.add_argument("--peers", metavar="LIST", default="", help="other libraries, with commas")
    parser.add_argument(
        "--dtype", metavar="LIST", default="fp32", help="fp32, bf16, fp16, with commas (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size", metavar="LIST", default="1,32", help="sentences at a time (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N sentences alone")
    parser.add_argument(
        "--max-len", type=int, default=256, metavar="N", help="longest output, tokens (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads of an engine (default: torch's)"
    )
    random = parser.add_argument_group("random weights, in place of MODEL and FILE")
    random.add_argument("--random", choices=("base", "small", "tiny"), help="size of a random Transformer")
    random.add_argument(
        "--forced-edits", metavar="LIST", help="force as output the source with so many words replaced"
    )
    random.add_argument(
        "--source-len", type=int, default=30, metavar="N", help="words of a source (default: %(default)s)"
    )
    random.add_argument("--seed", type=int, default=1, metavar="N", help="of words and weights (default: 1)")
    parser.add_argument("--output", metavar="FILE", help="write all figures and the environment as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the ratios (.png, .svg or .pdf)")
    parser.add_argument("--quiet", action="store_true", help="errors alone on stderr")
    return parser


def _command(argv: Sequence[str]) -> int:
    args = _parser().parse_intermixed_args(argv)
    _check(args)

    from nartk.bench import report, runner
    from nartk.bench.engines import Setup

    specs = _specs(args)
    if args.plot is not None:
        report.require_plot(Path(args.plot))
    with ExitStack() as stack:
        # Opened before the work: a place that cannot be written to is found out first.
        output = None if args.output is None else stack.enter_context(writing(Path(args.output)))
        if args.random is not None:
            model = stack.enter_context(tempfile.TemporaryDirectory())
            cells = _random_cells(args, Path(model))
        else:
            model, cells = _file_cells(args)
        setup = Setup(model, args.device, _threads(args.threads))
        environment = runner.environment(setup)
        runner.measure(
            cells,
            specs,
            setup,
            rounds=args.rounds,
            tell=lambda line: None if args.quiet else print(f"nartk: {line}", file=sys.stderr, flush=True),
        )
        summaries = [report.summarize(cell) for cell in cells]
        if output is not None:
            found = {
                "command": ["nartk-bench", *argv],
                "model": args.random if args.random is not None else model,
                "rounds": args.rounds,
                "environment": environment,
                "cells": summaries,
            }
            json.dump(found, output, indent=2)
            output.write("\n")
        if args.plot is not None:
            report.plot(summaries, Path(args.plot))
    print(report.table(summaries))
    if not args.quiet:
        print(report.LEGEND, file=sys.stderr)
    broken = report.broken(summaries)
    for line in broken:
        print(f"nartk: {line}", file=sys.stderr)
    return EXIT_FAILED if broken else EXIT_OK


def _check(args: argparse.Namespace) -> None:
    """Refuses what cannot be done, before anything is."""
    for flag, value in (
        ("--rounds", args.rounds),
        ("--limit", args.limit),
        ("--max-len", args.max_len),
        ("--source-len", args.source_len),
        ("--threads", args.threads),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{flag} is {value}", fix="give at least 1")
    args.batch_sizes = _integers("--batch-size", args.batch_size, low=1)
    args.edits = None
    if args.forced_edits is not None:
        args.edits = _integers("--forced-edits", args.forced_edits, low=0)
        if args.random is None:
            raise UsageError("--forced-edits without --random", fix="add --random base")
        if max(args.edits) > args.source_len:
            raise UsageError(
                f"--forced-edits is {max(args.edits)}, above --source-len {args.source_len}",
                fix="replace fewer words",
            )
    if args.random is not None and args.inputs:
        raise UsageError("--random with a MODEL or a FILE", fix="leave one of them out")


def _integers(flag: str, text: str, *, low: int) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < low:
        raise UsageError(f"{flag} is {text!r}", fix=f"give numbers from {low} on, with commas")
    return values


def _threads(wanted: int | None) -> int:
    import torch

    return torch.get_num_threads() if wanted is None else wanted


def _specs(args: argparse.Namespace) -> list[Spec]:
    """All engines in all types; greedy search first."""
    from nartk.bench.engines import PEERS, parse_spec
    from nartk.pipeline import DTYPES
    from nartk.registry import make_strategy, options_of

    dtypes = args.dtype.split(",")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(
                f"--dtype is {args.dtype!r}", fix=f"choose from {', '.join(DTYPES)}, with commas"
            )
    strategies = [name for name in args.strategies.split(",") if name]
    if "greedy" not in strategies:
        strategies.insert(0, "greedy")
    peers = [name for name in args.peers.split(",") if name]
    for peer in peers:
        if peer.partition(":")[0] not in PEERS:
            raise UsageError(f"no peer {peer!r}", fix=f"choose from {', '.join(PEERS)}")
    specs = []
    for dtype in dtypes:
        for text in dict.fromkeys([*strategies, *peers]):
            spec = parse_spec(text, dtype)
            if not spec.peer:
                if "max_len" in options_of(spec.name):
                    spec.options.setdefault("max_len", args.max_len)
                make_strategy(spec.name, spec.options)
            specs.append(spec)
    return specs


def _file_cells(args: argparse.Namespace) -> tuple[str, list[Cell]]:
    """The model's name, and the sentences of the files at each batch size."""
    from nartk.bench.runner import Cell
    from nartk.bench.work import Job
    from nartk.checkpoint import load_checkpoint
    from nartk.pipeline import model_folder
    from nartk.registry import make_strategy

    model, files = split_inputs(args.inputs, "nartk-bench")
    checkpoint = load_checkpoint(model_folder(model))
    longest = checkpoint.settings["max_source_len"]
    limit = make_strategy("greedy", {"max_len": args.max_len}).limit
    lines: list[str] = []
    limits: list[int] = []
    left_out = 0
    for record in read_files(files, args.format, fields_of(args)):
        if args.limit is not None and len(lines) == args.limit:
            break
        length = len(checkpoint.source_tokenizer.encode(record.text)) + 1 if record.error is None else 0
        if not 1 < length <= longest:
            left_out += 1
            continue
        lines.append(record.text)
        limits.append(min(limit(length), checkpoint.settings["max_target_len"]))
    if left_out and not args.quiet:
        print(f"nartk: {left_out} lines left out: blank, unreadable or too long", file=sys.stderr)
    if not lines:
        raise InputFileError("no sentence to decode", fix="give a file with at least one")
    job = Job(tuple(lines), tuple(limits))
    return model, [Cell(job, size, None) for size in args.batch_sizes]


def _random_cells(args: argparse.Namespace, folder: Path) -> list[Cell]:
    """Writes a random model to `folder`; gives random sentences for each number of edits and batch size."""
    from nartk.bench.runner import Cell
    from nartk.bench.work import random_job, save_random_model
    from nartk.registry import make_strategy

    save_random_model(folder, args.random, seed=args.seed)
    settings: dict[str, Any] = {
        "sentences": max(args.batch_sizes) if args.limit is None else args.limit,
        "source_len": args.source_len,
        "seed": args.seed,
        "limit": make_strategy("greedy", {"max_len": args.max_len}).limit(args.source_len + 1),
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
