#!/usr/bin/env python
"""Compares the default draft lengths of `iad` with the best fixed length, on busy machines too.

    recipes/gec/drafts.py jfleg/dev.src --output recipes/gec/results/bench.drafts.md [--quick]

Runs `nartk-bench --together`, which takes the CPU's time, on corrections by the shipped model and on random
weights of base size whose outputs are forced with an edit: greedy search, the default, and drafts of at most
1 to 16 tokens, fp32 and int8, batches of 1, 8 and 32, of 60 sentences and of 2, one thread. Then greedy
search and the default alone, once beside two busy processes and once pinned to one core: the passes must be
equal. Exits with 1 where they are not. On 2 idle cores of an AMD EPYC it takes half an hour or so; --quick
takes few lengths and one round, which shows passes and no speed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BUSY = "while True: pass"
BEST, GREEDY = 0.97, 0.98  # of the best fixed length at batch 1, of greedy search in batches

Key = tuple[str, int, str, int]  # model, sentences, type, batch


@contextlib.contextmanager
def busy() -> Iterator[list[str]]:
    """Two processes that compute beside what is run."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        yield []
    finally:
        for each in others:
            each.kill()
            each.wait()


@contextlib.contextmanager
def pinned() -> Iterator[list[str]]:
    """One core, by a prefix of commands."""
    yield ["taskset", "-c", str(min(os.sched_getaffinity(0)))]


CONDITIONS: dict[str, Callable[[], contextlib.AbstractContextManager[list[str]]]] = {
    "alone": lambda: contextlib.nullcontext([]),
    "beside two": busy,
    "on one core": pinned,
}


def bench(
    source: str, model: str, count: int, *, lengths: Sequence[int], rounds: int, prefix: Sequence[str]
) -> dict:
    """Figures of nartk-bench."""
    fixed = [f"iad:adaptive=0:max_draft={length}" for length in lengths]
    inputs = [source, "--pretokenized"] if model == "gec-en" else ["--random", model, "--forced-edits", "1"]
    command = ["nartk-bench", *([model] if model == "gec-en" else []), *inputs, "--limit", str(count)]
    command += ["--threads", "1", "--batch-size", "1,8,32", "--dtype", "fp32,int8", "--together", "--quiet"]
    command += ["--strategies", ",".join(["greedy", "iad", *fixed]), "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        subprocess.run([*prefix, *command, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
        found: dict = json.loads(path.read_text())
    return found


def engines(found: dict, model: str, count: int) -> Iterator[tuple[Key, dict]]:
    for cell in found["cells"]:
        for engine in cell["engines"]:
            yield (model, count, engine["dtype"], cell["batch_size"]), engine


def rounds_of(model: str, count: int, args: argparse.Namespace) -> int:
    if args.quick:
        return 1
    rounds = args.rounds if args.rounds is not None else 9 if model == "gec-en" else 3
    return rounds if count > 2 else 5 * rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="JFLEG's dev.src")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--models", default="gec-en,base", help="with commas (default: %(default)s)")
    parser.add_argument("--counts", default="60,2", help="of sentences, with commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="of 60 sentences; of 2, five times as many")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    lengths = (2, 4) if args.quick else LENGTHS
    passes: dict[Key, dict[str, float]] = {}
    speeds: dict[Key, dict[str, float]] = {}
    load: list[float] = []
    for condition, entered in CONDITIONS.items():
        for model in args.models.split(","):
            for count in map(int, args.counts.split(",")):
                is_first = condition == "alone"
                rounds = rounds_of(model, count, args) if is_first else 1
                with entered() as prefix:
                    found = bench(
                        args.source,
                        model,
                        count,
                        lengths=lengths if is_first else (),
                        rounds=rounds,
                        prefix=prefix,
                    )
                load.append(found["environment"]["load_average"])
                print(condition, model, count, f"load {load[-1]:.1f}", file=sys.stderr)
                for key, engine in engines(found, model, count):
                    if engine["engine"] == "iad":
                        passes.setdefault(key, {})[condition] = engine["passes_per_sentence"] * count
                    if is_first and engine["over_greedy"] is not None:
                        speeds.setdefault(key, {})[engine["engine"]] = engine["over_greedy"]["median"]
    hardware = found["environment"]["cpu"]
    page = [
        "# Default draft lengths",
        f"- command: `recipes/gec/drafts.py {' '.join(sys.argv[1:])}`",
        f"- hardware: {hardware}, one thread; load average at starts: {min(load):.1f} to {max(load):.1f}",
        "- default, best fixed: `iad` as it is, and `--no-adaptive --max-draft` at its best; times as fast "
        "as greedy search, medians of paired rounds of the CPU's time",
        f"- passes of the verifier by the default: {', '.join(CONDITIONS)}",
        "",
        "| model | sentences | type | batch | default | best fixed | of it | passes | equal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    unequal = below = 0
    for key, counts in passes.items():
        default = speeds[key].pop("iad")
        best = max(speeds[key], key=lambda name: speeds[key][name])
        share = default / max(speeds[key][best], 1.0)
        is_equal = len({*counts.values()}) == 1
        unequal += not is_equal
        below += share < BEST if key[3] == 1 else default < GREEDY
        numbers = " / ".join(f"{count:.0f}" for count in counts.values())
        fixed = f"{speeds[key][best]:.2f} ({best.rpartition('=')[2]})"
        page.append(
            f"| {' | '.join(map(str, key))} | {default:.2f} | {fixed} | {share:.2f} | {numbers} | "
            f"{'yes' if is_equal else 'NO'} |"
        )
    page += [
        "",
        f"Rows with unequal passes: {unequal}. Rows below {BEST} of the best fixed length, or of greedy "
        f"search where that is faster, at batch 1, or below {GREEDY} of greedy search in batches: {below} of "
        f"{len(passes)}.",
    ]
    args.output.write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))
    return int(unequal > 0)


sys.exit(main())
