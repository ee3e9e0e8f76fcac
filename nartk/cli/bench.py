"""`nartk-bench`: measures strategies, and other libraries with the same weights, against each other."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nartk import engine
from nartk.architectures import architectures
from nartk.checkpoints.names import model_folder
from nartk.cli._bench_jobs import file_cells, random_cells, random_models
from nartk.cli._common import Parser, command, require_least, with_model
from nartk.cli._drafter_report import MAX_DRAFT, drafter_report
from nartk.cli._files import read_sentences
from nartk.cli._input import (
    add_drafts,
    add_input,
    add_languages,
    add_pretokenized,
    are_tokenized,
    languages,
    require_own,
    split_inputs,
)
from nartk.cli._output import add_json, json_writer, tell
from nartk.errors import EXIT_FAILED, EXIT_OK, InputFileError, UsageError, named
from nartk.files import STDIN, require_storable, writing
from nartk.registry import METRICS, make_strategy, options_of
from nartk.serving.scorers import TYPES

if TYPE_CHECKING:
    from nartk.bench.quality import Quality
    from nartk.bench.specs import Spec

DESCRIPTION = """Decodes the same sentences with several engines, compares their speed and their outputs, and
prints a table in Markdown. Each engine has a process of its own (with --together all strategies have one),
one is active at a time, and rounds are interleaved, so that ratios hold on a busy machine. Greedy search
always runs; it is what the others are compared with. Of ordinary text all decode the same sentences, as the
model reads them; quality is that of whole lines.

An engine is NAME or NAME:OPTION=VALUE:... The options of a strategy are those of nartk-decode, model=NAME to
decode with another model (with --random, of an architecture: model=ctc), and replicas=N for so many engines
of one thread. A strategy that drafts with
another model is put to each --drafter that it takes. Among the strategies, all stands for every one that
MODEL allows, and that a --drafter allows where MODEL does not (a non-autoregressive model's own); verify
needs --drafts. Peers, of which all stands for the usual ways to run them, are
  hf           transformers            beam=N, lookup=N (prompt lookup), assistant=MODEL, int8=1 (dynamic),
                                       static=1 (cache; on a GPU steps are compiled); of a Hugging Face folder
                                       its own model
  ctranslate2  CTranslate2             beam=N, int8=1 (its fastest type on a CPU), replicas=N
  fairseq      its own SequenceGenerator, fp32   beam=N
A --peer NAME=COMMAND is a program, started once a type with {model}, {dtype} and {threads} in COMMAND filled
in. It reads a JSON line for each job, {"lines": [...], "limits": [...], "batch_size": N}: sentences, and the
most tokens of each one's output. It answers with one, {"seconds": S, "tokens": [[ID, ...], ...], "texts":
[...]}: the time from text to text, and ids with eos as greedy search writes them; or {"error": "why"}."""
EXAMPLES = """  nartk-bench gec-en-medium in.txt --strategies greedy,iad,iad:anchor=unique --limit 200
  nartk-bench MODEL in.txt --dtype fp32,int8 --peers hf,ctranslate2 --json bench.json
  nartk-bench MODEL in.en --strategies all --drafter SMALL --drafter NAR --drafts old.de --peers all \\
      --batch-size 1,4,8,32 --ref in.de --metric bleu --metric chrf \\
      --markdown bench.md --json bench.json --plot bench.png
      all there is to compare, its speed and its quality
  nartk-bench gec-en-medium in.txt --strategies all --metric 'm2 --gold gold.m2'
  nartk-bench gec-en-medium in.txt --strategies greedy,iad --together --rounds 15 --limit 50
      differences of a few per cent; greedy search by itself shows how many are noise
  nartk-bench gec-en-medium in.txt --dtype fp32,int8 --threads 1,2 --peers ctranslate2 \\
      --peer 'mine=./mine --weights {model} --type {dtype} --threads {threads}'
  nartk-bench MODEL in.txt --tune --dtype fp32,int8 --threads 1,2
  nartk-bench MODEL in.txt --drafter-report --drafter SMALL --max-draft 6 --markdown drafters.md
  nartk-bench --random base --strategies greedy,ctc-greedy:model=ctc --forced-edits 0
  nartk-bench --random base --forced-edits 0,1,3 --peers hf,ctranslate2,fairseq
      random weights of Transformer-base; outputs are the sources with 0, 1 and 3 words replaced"""
DEFAULT_METRIC = "bleu"
DEFAULT = "greedy,iad"  # strategies
_ALWAYS = (
    *("inputs", "format", "column", "key", "truncate", "pretokenized", "limit"),
    *("source_lang", "target_lang", "source_prefix", "dtype", "device", "threads", "quiet", "debug"),
)
HEEDED = {  # the arguments that a flag heeds which measures something else, and what it measures
    "tune": (_ALWAYS, "passes of MODEL alone"),
    "drafter_report": ((*_ALWAYS, "drafter", "max_draft", "max_len", "json", "markdown"), "drafts alone"),
}


def _parser() -> Parser:
    parser = Parser(prog="nartk-bench", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s [MODEL] FILE [FILE ...] [options], or --random SIZE [options]"
    add_input(parser)
    parser.add_argument(
        "--strategies", metavar="LIST", help=f"with commas; all (default: {DEFAULT}, or those of --strategy)"
    )
    parser.add_argument(
        "--strategy",
        metavar="NAME[:OPTION=VALUE]",
        action="append",
        default=[],
        help="one more, whose options may hold commas, as union:drafters=ngram,recycling; may be given again",
    )
    parser.add_argument(
        "--drafter",
        metavar="MODEL",
        action="append",
        default=[],
        help="another model, for the strategies that draft with one of its architecture; may be given again",
    )
    add_drafts(parser)
    add_pretokenized(parser)
    add_languages(parser)
    parser.add_argument("--peers", metavar="LIST", default="", help="other libraries, with commas; all")
    parser.add_argument(
        "--peer",
        metavar="NAME=COMMAND",
        action="append",
        default=[],
        help="a program that answers as said above; may be given again",
    )
    parser.add_argument(
        "--dtype",
        metavar="LIST",
        default="fp32",
        help="fp32, bf16 and on a CPU int8, on a GPU fp16, with commas (default: fp32)",
    )
    parser.add_argument(
        "--batch-size",
        metavar="LIST",
        default="1,32",
        help="sentences at a time, such as 1,4,8,32 (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N sentences alone")
    parser.add_argument(
        "--max-len", type=int, default=256, metavar="N", help="longest output, tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--costs",
        action="store_true",
        help="decode once more in each round, and tell what the time goes to: sources, drafts, passes",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="only measure what passes of MODEL take here with the first sentences of FILE, in each --dtype "
        "and with each of --threads, and keep it in MODEL's folder: draft lengths are then decided by it",
    )
    parser.add_argument(
        "--drafter-report",
        action="store_true",
        help="only decode with drafts of each --drafter, or of the one in MODEL's folder, and tell which "
        "share of their tokens is accepted, tokens a pass, and the most that drafts can give",
    )
    parser.add_argument(
        "--max-draft",
        type=int,
        metavar="N",
        help=f"longest drafts of --drafter-report, tokens (default: {MAX_DRAFT})",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="put all strategies into one process, and take the CPU's time if it decodes: the least noise",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--threads",
        metavar="LIST",
        help="CPU threads of an engine, such as 1,2 (default: as many as torch takes, without it all cores)",
    )
    quality = parser.add_argument_group("quality")
    quality.add_argument(
        "--ref",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="references of the sentences, a line for each of FILE",
    )
    texts = [name for name, metric in METRICS.all().items() if not getattr(metric, "reads_sound", False)]
    quality.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{', '.join(texts)}, with its options of nartk-score if need be, in quotes; of several "
        f"scores the first; may be given again (default, with --ref: {DEFAULT_METRIC})",
    )
    random = parser.add_argument_group("random weights, in place of MODEL and FILE")
    random.add_argument(
        "--random", choices=("base", "marian", "t5", "small", "tiny"), help="size of a random Transformer"
    )
    random.add_argument(
        "--forced-edits", metavar="LIST", help="force as output the source with so many words replaced"
    )
    random.add_argument(
        "--source-len", type=int, default=30, metavar="N", help="words of a source (default: %(default)s)"
    )
    random.add_argument("--seed", type=int, default=1, metavar="N", help="of words and weights (default: 1)")
    add_json(parser)
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the table with command, environment and signatures"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the ratios, and quality against speed (.png, .svg or .pdf)"
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    argv = with_model(argv)
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    for flag, (heeded, measured) in HEEDED.items():
        for name, value in vars(args).items() if getattr(args, flag) else ():
            if name not in (*heeded, flag) and value != parser.get_default(name):
                raise UsageError(
                    f"{named(flag)} with {named(name)}: it measures {measured}", fix="leave one of them out"
                )
    _check(args)
    if args.tune:
        return _tune(args)
    if args.drafter_report:
        return drafter_report(argv, args, _dtypes(args))

    from nartk.bench import report, runner
    from nartk.bench.specs import Setup

    strategies, peers = _named(args)
    if args.plot is not None:
        report.require_plot(Path(args.plot))
    with ExitStack() as stack:
        # Opened before the work: a place that cannot be written to is found out first.
        write = stack.enter_context(json_writer(args.json))
        markdown = None if args.markdown is None else stack.enter_context(writing(Path(args.markdown)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        qualities: list[Quality] = []
        if args.random is not None:
            model, cells = str(folder), random_cells(args, folder)
        else:
            model, cells, qualities = file_cells(args, strategies, folder)
        job = cells[0].job
        if peers and job.prefixes is not None:
            raise UsageError(
                "the sentences have prefixes, which --peers cannot be given",
                fix="leave out --peers, or --prefix-column and the JSONL key",
            )
        specs = _chosen(args, strategies, peers, model, drafts=job.drafts is not None)
        if args.random is not None:
            specs = random_models(args, specs, folder)
        environment = runner.environment(args.device)
        summaries = []
        for threads in args.thread_counts:
            setup = Setup(model, args.device, threads, args.together, languages(args))
            done = partial(tell, args)
            runner.measure(cells, specs, setup, rounds=args.rounds, tell=done, costs=args.costs)
            column = threads if len(args.thread_counts) > 1 else None
            summaries += [report.summarize(cell, qualities, threads=column) for cell in cells]
        found = {
            "command": ["nartk-bench", *argv],
            "model": args.random if args.random is not None else model,
            "rounds": args.rounds,
            "threads": args.thread_counts,
            "clock": setup.clock,
            "environment": environment,
            "cells": summaries,
        }
        write(found)
        if markdown is not None:
            markdown.write(f"{report.page(found)}\n")
        if args.plot is not None:
            report.plot(summaries, Path(args.plot))
    if args.json != STDIN:
        print(report.tables(summaries))
    if not args.quiet:
        print(report.legend(summaries), file=sys.stderr)
    broken = report.broken(summaries)
    for line in broken:
        print(f"nartk: {line}", file=sys.stderr)
    return EXIT_FAILED if broken else EXIT_OK


def _tune(args: argparse.Namespace) -> int:
    """Measures the passes of a model and keeps what they take in its folder."""
    from nartk.bench.costs import SOURCES, tuned
    from nartk.checkpoints.names import COSTS
    from nartk.serving.loading import load

    name, files = split_inputs(args.inputs, "nartk-bench", optional=True)
    folder = model_folder(name)
    require_own(name, folder, fix="copy it to a folder of your own, and name that")
    require_storable(folder / COSTS, fix="copy the model to a folder that can be written")
    records = read_sentences(args, files, drafts=False)
    readable = (record.text for record in records if record.error is None and record.text.strip())
    lines = [*islice(readable, SOURCES if args.limit is None else args.limit)]
    for dtype in args.dtype.split(","):
        for threads in args.thread_counts:
            model = load(name, dtype=dtype, threads=threads, device=args.device, **languages(args))
            model = replace(model, pretokenized=are_tokenized(model.checkpoint, args, files))
            text = model.tokenization
            sentences = [each.text for line in lines for each in text.paragraph(line).sentences]
            if not sentences:
                raise InputFileError("no sentence to measure with", fix="name a file of sentences")
            found = tuned(model, sentences[:SOURCES])
            found.store(folder)
            ratios = ", ".join(
                f"{tokens}: {took / found.times[0]:.2f}"
                for tokens, took in zip(found.tokens, found.times, strict=True)
            )
            tell(args, f"{dtype}, {threads} threads: {found.times[0]:.0f} us a pass; times as long: {ratios}")
    tell(args, f"stored in {folder / COSTS}")
    return EXIT_OK


def _check(args: argparse.Namespace) -> None:
    """Refuses what cannot be done, before anything is."""
    require_least(args, 1, "rounds", "limit", "max_len", "source_len", "max_draft")
    if args.max_draft is not None and not args.drafter_report:
        raise UsageError("--max-draft without --drafter-report", fix="add it, or leave --max-draft out")
    args.batch_sizes = _integers("--batch-size", args.batch_size, low=1)
    args.thread_counts = _threads(args.threads)
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
    if args.random is not None:
        for flag, given in (
            ("a MODEL or a FILE", args.inputs),
            ("--ref", args.ref),
            ("--metric", args.metric),
            ("--drafts", args.drafts),
            ("--draft-columns", args.draft_columns),
            ("--prefix-column", args.prefix_column),
            ("--truncate", args.truncate),
            ("--peer", args.peer),
            *((f"--{name.replace('_', '-')}", given) for name, given in languages(args).items()),
        ):
            if given:
                raise UsageError(f"--random with {flag}", fix="leave one of them out")
    if args.together and (args.peers or args.peer):
        raise UsageError(
            "--together with other libraries, which need processes of their own", fix="leave one of them out"
        )
    if args.ref and not args.metric:
        args.metric = [DEFAULT_METRIC]


def _integers(flag: str, text: str, *, low: int, high: int | None = None) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < low or (high is not None and max(values) > high):
        bounds = f"from {low} on" if high is None else f"from {low} to {high}"
        raise UsageError(f"{flag} is {text!r}", fix=f"give numbers {bounds}, with commas")
    return values


def _dtypes(args: argparse.Namespace) -> list[str]:
    dtypes: list[str] = args.dtype.split(",")
    if not set(dtypes) <= {*TYPES}:
        raise UsageError(f"--dtype is {args.dtype!r}", fix=f"choose from {', '.join(TYPES)}, with commas")
    return dtypes


def _threads(wanted: str | None) -> list[int]:
    from nartk.serving.loading import MOST_THREADS

    if wanted is None:
        try:
            import torch
        except ModuleNotFoundError:
            return [engine.cores()]
        return [torch.get_num_threads()]
    return _integers("--threads", wanted, low=1, high=MOST_THREADS)


def _named(args: argparse.Namespace) -> tuple[list[Spec | str], list[Spec | str]]:
    """Strategies and peers as the user names them, in the first type; `choose.ALL` stands as it is.

    Raises:
        NartkError: One of them, or an option, does not exist.
    """
    from nartk.bench.choose import ALL
    from nartk.bench.engines import parse_spec, program
    from nartk.bench.peers import PEERS

    dtypes = _dtypes(args)
    names = [[name for name in text.split(",") if name] for text in (_listed(args), args.peers)]
    names[0] += args.strategy
    for peer in names[1]:
        if peer.partition(":")[0] not in (*PEERS, ALL):
            raise UsageError(f"no peer {peer!r}", fix=f"choose from {', '.join(PEERS)}, or {ALL}")
    strategies, peers = (
        [name if name == ALL else parse_spec(name, dtypes[0]) for name in dict.fromkeys(each)]
        for each in names
    )
    peers += [program(text, dtypes[0]) for text in args.peer]
    for spec in strategies:
        if not isinstance(spec, str):
            make_strategy(spec.name, spec.options)
            if args.random is not None and spec.model and spec.model not in architectures():
                raise UsageError(
                    f"no architecture {spec.model!r}", fix=f"choose from {', '.join(architectures())}"
                )
            if args.costs and spec.replicas > 1:
                raise UsageError(
                    f"--costs with {spec.label!r}, whose parts overlap", fix="leave one of them out"
                )
    return strategies, peers


def _listed(args: argparse.Namespace) -> str:
    """The list of strategies, without those that are named alone."""
    if args.strategies is None:
        return "" if args.strategy else DEFAULT
    return str(args.strategies)


def _chosen(
    args: argparse.Namespace,
    strategies: Sequence[Spec | str],
    peers: Sequence[Spec | str],
    model: str,
    *,
    drafts: bool,
) -> list[Spec]:
    """All engines in all types; greedy search first.

    Args:
        drafts: True if the sentences have drafts.

    Raises:
        UsageError: Strategies and drafters do not fit each other.
    """
    from nartk.bench.choose import ALL, Given
    from nartk.bench.engines import parse_spec
    from nartk.bench.runner import GREEDY

    dtypes = args.dtype.split(",")
    given = Given(model, args.drafter, drafts=drafts)
    found: list[Spec] = []
    for each in strategies:
        found += given.every(dtypes[0]) if isinstance(each, str) else given.named(each)
    if ALL not in strategies:
        found.insert(0, parse_spec(GREEDY, dtypes[0]))
    found.sort(key=lambda spec: spec.label != GREEDY)
    for spec in found:
        if "max_len" in options_of(spec.name):
            spec.options.setdefault("max_len", args.max_len)
    for each in peers:
        found += (parse_spec(name, dtypes[0]) for name in given.peers()) if isinstance(each, str) else [each]
    given.require_used()
    for line in given.reasons():
        tell(args, line)
    engines: dict[str, Spec] = {}
    for spec in found:
        engines.setdefault(spec.label, spec)
    return [replace(spec, dtype=dtype) for dtype in dtypes for spec in engines.values()]
