"""Corrects recipes/gec/sample.txt with the shipped model, and measures it against greedy search."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import nartk
from nartk.protocols.hypothesis import Hypothesis

ROUNDS = 5


def timed(model: nartk.Model, lines: list[str], strategy: str) -> tuple[float, list[Hypothesis]]:
    start = time.process_time()  # of the process alone, whatever else the machine does
    found = model.decode(lines, strategy=strategy, batch_size=1)
    return time.process_time() - start, found


def _printed(hypothesis: Hypothesis) -> tuple[object, ...]:
    return hypothesis.tokens, hypothesis.positional_scores


def main() -> int:
    sample = Path(__file__).resolve().parent.parent / "recipes" / "gec" / "sample.txt"
    lines = sample.read_text(encoding="utf-8").splitlines()
    print("loading the shipped model gec-en-medium", file=sys.stderr)
    model = nartk.load("gec-en-medium", pretokenized=True, threads=1)
    for strategy in ("greedy", "iad"):
        model.decode(lines[:4], strategy=strategy)  # warm-up

    run = model.run(lines, "iad", batch_size=1, trace=True)
    for line, (best,) in zip(lines, run.hypotheses, strict=True):
        drafted = sum(token.origin == "draft" for token in best.trace)
        print(f"  {line}\n> {best.text}\n  [{drafted} of {len(best.tokens)} tokens from the draft]\n")
    stats = run.stats
    print(
        f"{stats.sentences} sentences, {stats.tokens} tokens in {stats.passes} verifier passes: "
        f"{stats.tokens / stats.passes:.1f} tokens a pass, "
        f"{stats.accepted} of {stats.drafted} drafted accepted"
    )

    ratios = []
    for _ in range(ROUNDS):
        slow, reference = timed(model, lines, "greedy")
        fast, found = timed(model, lines, "iad")
        ratios.append(slow / fast)
    speedup = statistics.median(ratios)
    print(f"speed-up over greedy, one sentence at a time, one thread: {speedup:.2f}x (median of {ROUNDS})")
    same = [_printed(each) for each in reference] == [_printed(each) for each in found]
    print("identical to greedy" if same else "NOT identical to greedy")
    print(run.signature, file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
