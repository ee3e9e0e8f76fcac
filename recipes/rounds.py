"""Measures all systems of a recipe in one process, in turns: its flags, the systems on stdin, the rounds.

A line of stdin has columns: a system's key, its model's folder, and how it is decoded, as NAME:OPTION=VALUE.
Each round runs every system once, so that figures of a round may be compared on a busy machine; the first
round, which warms up, does not count.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from nartk.bench.engines import parse_spec
from nartk.decoders.strategy import Strategy
from nartk.errors import NartkError
from nartk.files import JsonObject
from nartk.serving.model import Model

BATCH = 32  # lines
T = TypeVar("T")
# Decodes lines with a model and a strategy in batches of a size, and returns what it measured.
Run = Callable[[Model, Strategy, Sequence[str], int], T]


def parser(description: str, source: str, noun: str) -> argparse.ArgumentParser:
    """A parser of a recipe's flags, of which `source` names the file of what is decoded."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument(source, type=Path, required=True)
    made.add_argument("--output", type=Path, required=True)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--single", type=int, default=100, help=f"{noun} decoded one by one")
    made.add_argument("--many", type=int, default=500, help=f"{noun} decoded in batches of {BATCH}")
    made.add_argument("--device", default="cpu")
    made.add_argument("--threads", type=int)
    made.add_argument("--dtype", default="fp32")
    return made


def timed(model: Model, strategy: Strategy, lines: Sequence[str], size: int, *, truncate: bool) -> float:
    """Seconds that decoding takes; raises the error of a line that fails."""
    start = time.perf_counter()
    done = [*model.stream(lines, strategy, batch_size=size, truncate=truncate)]
    taken = time.perf_counter() - start
    for _, outcome in done:
        if isinstance(outcome, NartkError):
            raise outcome
    return taken


def in_rounds(
    args: argparse.Namespace, lines: Sequence[str], load: Callable[[str], Model], run: Run[T]
) -> tuple[dict[str, dict[int, list[T]]], JsonObject]:
    """Results of each system and batch size by round, and the facts of a report."""
    systems = [line.rstrip("\n").split("\t") for line in sys.stdin]
    models = {folder: load(folder) for folder in {folder for _, folder, _ in systems}}
    work = {1: lines[: args.single], BATCH: lines[: args.many]}
    strategies = {}  # made once: some load a second model
    for key, folder, text in systems:
        spec = parse_spec(text, args.dtype)
        strategies[key] = models[folder].strategy(spec.name, spec.options)
    found: dict[str, dict[int, list[T]]] = {key: {size: [] for size in work} for key in strategies}
    for turn in range(args.rounds + 1):
        for key, folder, _ in systems:
            for size, some in work.items():
                result = run(models[folder], strategies[key], some, size)
                if turn:
                    found[key][size].append(result)
        print(f"round {turn} of {args.rounds}", file=sys.stderr, flush=True)
    return found, {
        "machine": platform.processor() or platform.machine(),
        "device": args.device,
        "dtype": args.dtype,
        "threads": next(iter(models.values())).threads if models else 0,
        "counts": {size: len(some) for size, some in work.items()},
        "signatures": {key: models[folder].signature(strategies[key]) for key, folder, _ in systems},
    }


def write(path: Path, report: JsonObject) -> None:
    """Writes a report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
