"""Measures a decoder's pass on a GPU: as the reference scorer runs it, and by steps that CUDA graphs replay.

    python recipes/speed/captured_pass.py [--dtype fp32,bf16] [--device cuda] [--quick] [--help]

A Transformer of base size with random weights scores N tokens, one a row, each of which attends to 32 cells
of its output and 32 of its source. On a CPU nothing is captured: the same steps are computed in turn, so that
all but the capture is tested. Medians of microseconds, host and device together.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nartk.architectures import architecture
from nartk.bench.work import save_random_model
from nartk.checkpoints.loading import load_checkpoint
from nartk.models.reference import DTYPES, PassesOnTorch
from nartk.protocols.passes import ROOT, Pass, TextSource, Want
from nartk.serving.scorers import load_network, words_of

_CELLS = 32  # that a token attends to, of its output and of its source


class Rows:
    """Rows of a scorer that have output `_CELLS` - 1 tokens and are to score the next."""

    def __init__(self, scorer: PassesOnTorch, count: int) -> None:
        draw = np.random.default_rng(count)
        sources = [draw.integers(4, scorer.limits.words, _CELLS - 1).tolist() for _ in range(count)]
        self.scorer, self.count = scorer, count
        self.memory = scorer.encode([TextSource((*source, scorer.vocab.eos)) for source in sources])
        self.contexts = scorer.open(count)
        for position in range(_CELLS - 1):
            self.words = draw.integers(4, scorer.limits.words, count).astype(np.int32)
            scorer.commit(self.run(position), np.arange(count))

    def work(self, position: int) -> Pass:
        """A pass over one token of each row."""
        positions, parents = (np.full(self.count, value, np.int32) for value in (position, ROOT))
        return Pass(self.words, positions, self.memory, self.contexts, parents)

    def run(self, position: int = _CELLS - 1) -> Any:
        """Scores the tokens, as decoding does."""
        return self.scorer.run(self.work(position), Want())

    def again(self) -> Any:
        """Scores the tokens, and keeps nothing of them."""
        scores = self.run()
        self.scorer.commit(scores, ())
        return scores


def measured(function: Callable[[], object], rounds: int) -> float:
    """The median time of a call, microseconds."""
    for _ in range(3):
        function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main(argv: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--dtype", default="fp32,bf16", help="with commas (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny model, few rounds")
    options = parser.parse_args(argv)
    rounds = 5 if options.quick else 200
    print("| type | N | reference, us | steps, us | times as fast | other words | log-probabilities apart |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        save_random_model(Path(folder), "tiny" if options.quick else "base", seed=1)
        checkpoint = load_checkpoint(Path(folder))
        found = architecture(checkpoint.architecture)
        for dtype in options.dtype.split(","):
            given = {"dtype": DTYPES[dtype], "device": options.device, **words_of(checkpoint)}
            for count in (1, 8, 32) if options.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256):
                both = [
                    Rows(scorer(load_network(checkpoint), checkpoint.target_vocab, **given), count)
                    for scorer in (found.scorer, found.device_scorer)
                ]
                one, two = (rows.again() for rows in both)
                reference, captured = (measured(rows.again, rounds) for rows in both)
                differ = int((one.best != two.best).sum())
                apart = float(np.abs(one.log_probs - two.log_probs).max())
                times = f"{reference:.0f} | {captured:.0f} | {reference / captured:.1f}"
                print(f"| {dtype} | {count} | {times} | {differ} | {apart:.1e} |")


if __name__ == "__main__":
    main()
