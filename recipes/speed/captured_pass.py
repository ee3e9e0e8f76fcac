"""Measures a decoder's pass on a GPU: as the reference scorer runs it, and captured in a CUDA graph.

    python recipes/speed/captured_pass.py [--dtype fp32,bf16] [--device cuda] [--quick] [--help]

A Transformer of base size with random weights scores N tokens, one a row, each of which attends to 32 cells
of its output and 32 of its source. Captured, one block of numbers goes to the device, the graph is replayed
over buffers that stay where they are, and one block comes back. On a CPU nothing is captured: the same
buffers are computed in turn, so that all but the capture is tested. Medians of microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nartk.bench.work import save_random_model
from nartk.checkpoints.loading import load_checkpoint
from nartk.models.reference import PassesOnTorch, _Cache
from nartk.protocols.passes import ROOT, Pass, TextSource, Want
from nartk.serving.scorers import reference_scorer

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
            scores = self.run(position)
            scorer.commit(scores.waiting, np.arange(count))  # type: ignore[attr-defined]

    def work(self, position: int) -> Pass:
        """A pass over one token of each row."""
        positions, parents = (np.full(self.count, value, np.int32) for value in (position, ROOT))
        return Pass(self.words, positions, self.memory, self.contexts, parents)

    def run(self, position: int = _CELLS - 1) -> object:
        """Scores the tokens, as decoding does."""
        return self.scorer.run(self.work(position), Want())

    def eager(self) -> tuple[Tensor, Tensor]:
        """Scores the tokens, and keeps nothing of them."""
        scores = self.run()
        self.scorer.commit(scores.waiting, ())  # type: ignore[attr-defined]
        return torch.tensor(scores.best), torch.tensor(scores.log_probs)  # type: ignore[attr-defined]


class Captured:
    """The same pass over buffers that stay where they are."""

    def __init__(self, rows: Rows) -> None:
        self.scorer, work = rows.scorer, rows.work(_CELLS - 1)
        waiting = self.scorer.begin(work, self.scorer._memories)
        cells, seen, _, source, _ = self.scorer._listed(work, waiting)
        columns = [torch.tensor(each)[:, None] for each in (work.tokens, work.positions)]
        numbers = torch.cat([*columns, *(each.cpu() for each in (cells[:, None], seen, source))], 1)
        self.scorer.commit(waiting, ())
        cuda = self.scorer.device.type == "cuda"
        self.sent = numbers.int()
        self.sent = self.sent.pin_memory() if cuda else self.sent
        self.block = self.sent.to(self.scorer.device)
        for store in self.scorer._target_stores:  # buffers must not move once they are captured
            store.grow(self.scorer.size)
        self.result = self.step()
        self.fetched = torch.empty(self.result.shape, pin_memory=cuda)
        self.replay: Callable[[], object] = self.again
        if cuda:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                self.again()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.result = self.step()
            self.replay = graph.replay

    def again(self) -> None:
        """Computes the step without a graph."""
        self.result = self.step()

    def step(self) -> Tensor:
        """Best words and their log-probabilities [2,N] of the block."""
        model, block = self.scorer.model, self.block.long()
        tokens, positions, cells = block[:, :3].unbind(1)
        seen, source = block[:, 3 : 3 + _CELLS], block[:, 3 + _CELLS :]
        all_seen = torch.ones(len(block), 1, 1, _CELLS, dtype=torch.bool, device=block.device)
        x = model.decoder.embedding(tokens, positions)[:, None]
        stores = zip(self.scorer._target_stores, self.scorer._source_stores, strict=True)
        for layer, (target, memory) in zip(model.decoder.layers, stores, strict=True):
            source_kv = memory.gather(source, layer.cross_attention.heads)
            x = layer(x, source_kv, all_seen, cache=_Cache(target, cells, seen, all_seen))
        logits = model.output(model.decoder.finish(x)[:, 0]).float()
        best = logits.argmax(1, keepdim=True)
        return torch.cat([best.float(), logits.log_softmax(1).gather(1, best)], 1).T.contiguous()

    def run(self) -> tuple[Tensor, Tensor]:
        """Sends the block, computes and fetches."""
        self.block.copy_(self.sent, non_blocking=True)
        self.replay()
        self.fetched.copy_(self.result, non_blocking=True)
        if self.scorer.device.type == "cuda":
            torch.cuda.synchronize()
        return self.fetched[0].int(), self.fetched[1].clone()


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
    print(
        "| type | N | reference, us | captured, us | times as fast | other words | log-probabilities apart |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        save_random_model(Path(folder), "tiny" if options.quick else "base", seed=1)
        checkpoint = load_checkpoint(Path(folder))
        for dtype in options.dtype.split(","):
            for count in (1, 8, 32) if options.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256):
                rows = Rows(reference_scorer(checkpoint, options.device, dtype), count)
                captured = Captured(rows)
                (words, scores), (same, close) = rows.eager(), captured.run()
                eager, graph = measured(rows.eager, rounds), measured(captured.run, rounds)
                differ, apart = int((words != same).sum()), (scores - close).abs().max().item()
                times = f"{eager:.0f} | {graph:.0f} | {eager / graph:.1f}"
                print(f"| {dtype} | {count} | {times} | {differ} | {apart:.1e} |")


if __name__ == "__main__":
    main()
