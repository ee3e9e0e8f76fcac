"""Measures all systems of the speech recipe in one process, in turns: one sound at a time, and in batches.

    python recipes/asr/speed.py --manifest FILE --output JSON [--rounds 3] [--single 100] [--many 500] < RUNS

RUNS has a line of columns for each system: its key, its model's folder, and how it is decoded, as
NAME:OPTION=VALUE. Each round runs every system once, so that figures of a round may be compared on a busy
machine; the first round, which warms up, does not count. Beside the whole time, from files to text, it
measures what reading sound and computing features takes of it, and what the encoder takes; the rest is the
decoder's, with a second model's encoder where one drafts. A Paraformer's predictor counts as encoder.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import nartk
from nartk.bench.engines import parse_spec
from nartk.bench.turns import TimedCall
from nartk.data.audio.manifests import read_manifest
from nartk.errors import NartkError

BATCH = 32  # sounds
PARTS = ("whole", "reading", "encoder", "decoder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", type=int, default=100, help="sounds decoded one by one")
    parser.add_argument("--many", type=int, default=500, help=f"sounds decoded in batches of {BATCH}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="fp32")
    args = parser.parse_args()
    with args.manifest.open("rb") as file:
        lines = [record.text for record in read_manifest(file, str(args.manifest))]
    runs = [line.rstrip("\n").split("\t") for line in sys.stdin]
    models, clocks = {}, {}
    for folder in {run[1] for run in runs}:
        model = nartk.load(folder, device=args.device, threads=args.threads, dtype=args.dtype)
        models[folder] = model
        timed = model.checkpoint.input.read, model.passes.encode
        clocks[folder] = [TimedCall(call, time.perf_counter) for call in timed]
        model.checkpoint.input.read, model.passes.encode = clocks[folder]
    strategies = {}  # made once: some load a second model
    for key, folder, text in runs:
        spec = parse_spec(text, args.dtype)
        strategies[key] = models[folder].strategy(spec.name, spec.options)
    work = ((1, lines[: args.single]), (BATCH, lines[: args.many]))
    seconds: dict[str, dict[str, dict[int, list[float]]]] = {
        key: {part: {size: [] for size, _ in work} for part in PARTS} for key, _, _ in runs
    }
    sound = {}
    for turn in range(args.rounds + 1):
        for key, folder, _ in runs:
            for size, paths in work:
                begun = [clock.seconds for clock in clocks[folder]]
                heard, start = models[folder].checkpoint.input.seconds, time.perf_counter()
                done = list(models[folder].stream(paths, strategies[key], batch_size=size))
                taken = time.perf_counter() - start
                sound[size] = models[folder].checkpoint.input.seconds - heard
                reading, encoding = (
                    clock.seconds - before for clock, before in zip(clocks[folder], begun, strict=True)
                )
                for _, outcome in done:
                    if isinstance(outcome, NartkError):
                        raise outcome
                if turn:
                    for part, each in zip(
                        PARTS, (taken, reading, encoding, taken - reading - encoding), strict=True
                    ):
                        seconds[key][part][size].append(each)
        print(f"round {turn} of {args.rounds}", file=sys.stderr, flush=True)
    report = {
        "machine": platform.processor() or platform.machine(),
        "device": args.device,
        "dtype": args.dtype,
        "threads": next(iter(models.values())).threads if models else 0,
        "sounds": {size: len(paths) for size, paths in work},
        "sound_seconds": sound,
        "seconds": seconds,
        "signatures": {key: models[folder].signature(strategies[key]) for key, folder, _ in runs},
    }
    args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
