"""Measures all systems of the recipe in one process, in turns: latency one by one, throughput in batches.

    python recipes/mt/speed.py --source FILE --output JSON [--rounds 3] [--single 100] [--many 500] < RUNS

RUNS has a line of columns for each system: its key, its model's folder, and how it is decoded, as
NAME:OPTION=VALUE. Each round runs every system once, so that figures of a round may be compared on a busy
machine; the first round, which warms up, does not count.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch

import nartk
from nartk.bench.engines import parse_spec
from nartk.errors import NartkError

BATCH = 32  # sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", type=int, default=100, help="sentences decoded one by one")
    parser.add_argument("--many", type=int, default=500, help=f"sentences decoded in batches of {BATCH}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    lines = [line for line in args.source.read_text(encoding="utf-8").split("\n") if line.strip()]
    runs = [line.rstrip("\n").split("\t") for line in sys.stdin]
    models = {
        folder: nartk.load(folder, device=args.device, threads=args.threads)
        for folder in {run[1] for run in runs}
    }
    work = ((1, lines[: args.single]), (BATCH, lines[: args.many]))
    seconds: dict[str, dict[int, list[float]]] = {key: {size: [] for size, _ in work} for key, _, _ in runs}
    strategies = {}  # made once: some load a second model
    for key, folder, text in runs:
        spec = parse_spec(text, "fp32")
        strategies[key] = models[folder].strategy(spec.name, spec.options)
    for turn in range(args.rounds + 1):
        for key, folder, _ in runs:
            for size, sentences in work:
                start = time.perf_counter()
                done = list(models[folder].stream(sentences, strategies[key], batch_size=size, truncate=True))
                if turn:
                    seconds[key][size].append(time.perf_counter() - start)
                for _, outcome in done:
                    if isinstance(outcome, NartkError):
                        raise outcome
        print(f"round {turn} of {args.rounds}", file=sys.stderr, flush=True)
    report = {
        "machine": platform.processor() or platform.machine(),
        "device": args.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sentences": {str(size): len(sentences) for size, sentences in work},
        "seconds": seconds,
        "signatures": {key: models[folder].signature(strategies[key]) for key, folder, _ in runs},
    }
    args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
