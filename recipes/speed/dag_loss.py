"""Measures the DA-Transformer's loss against the plain way to write it.

    python recipes/speed/dag_loss.py [--shape B,T,L ...] [--device cuda] [--rounds N] [--json] [--help]

The plain way is a log-sum-exp over [B,L,L] for each token, with the gradient by autograd. Each way runs in a
process of its own, one at a time, in turns; a figure is the median of paired ratios, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nartk.bench.report import ratio
from nartk.bench.turns import apart, in_turns
from nartk.bench.worker import MB, peak_mb, reset_peak
from nartk.models.dag import dag_log_likelihood

_WIDE_MATCH = 3.0  # nats, the standard deviation of the random words' scores


def plain_log_likelihood(
    match: Tensor, links: Tensor, target_lengths: Tensor, graph_lengths: Tensor
) -> Tensor:
    """`nartk.models.dag.dag_log_likelihood` as the paper writes the recursion, unrolled over tokens."""
    vertex = torch.arange(match.shape[2], device=match.device)
    forward = match[:, 0].masked_fill(vertex > 0, -math.inf)
    forwards = [forward]
    for t in range(1, match.shape[1]):
        forward = torch.logsumexp(forward[:, :, None] + links, 1) + match[:, t]
        forwards.append(forward)
    rows = torch.arange(match.shape[0], device=match.device)
    return torch.stack(forwards, 1)[rows, target_lengths - 1, graph_lengths - 1]


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "nartk": dag_log_likelihood,
    "plain": plain_log_likelihood,
}


def random_graph(shape: tuple[int, int, int], device: str, seed: int) -> tuple[Tensor, ...]:
    """Scores and full lengths of random graphs of shape (B, T, L), their links normalised."""
    batch, length, width = shape
    generator = torch.Generator().manual_seed(seed)
    match = torch.randn(batch, length, width, generator=generator) * _WIDE_MATCH - 8.0
    links = torch.randn(batch, width, width, generator=generator)
    later = torch.ones(width, width, dtype=torch.bool).triu(1)
    # The last vertex has no link, and the log-softmax of nothing is NaN.
    links = links.masked_fill(~later, -math.inf).log_softmax(-1).masked_fill(~later, -math.inf)
    lengths = torch.full((batch,), length), torch.full((batch,), width)
    return tuple(x.to(device) for x in (match, links, *lengths))


def contender(name: str, shape: Sequence[int], device: str, threads: int) -> Callable[[], Any]:
    """Makes a random graph; a call returns the seconds of a forward and backward pass, the MB, the value."""
    torch.set_num_threads(threads)
    match, links, *lengths = random_graph(tuple(shape), device, seed=1)
    match.requires_grad_()
    links.requires_grad_()
    cuda = device.startswith("cuda")
    peak = 0.0  # of all calls: later ones may reuse what the first one left

    def run() -> tuple[float, float, float]:
        nonlocal peak
        match.grad = links.grad = None
        _wait(cuda)
        reset_peak(cuda=cuda)
        before = peak_mb(cuda=cuda)
        start = time.perf_counter()
        value = IMPLEMENTATIONS[name](match, links, *lengths)
        value.sum().backward()
        _wait(cuda)
        seconds = time.perf_counter() - start
        peak = max(peak, peak_mb(cuda=cuda) - before)
        return seconds, peak, value.detach().double().sum().item()

    return run


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def measure(shape: tuple[int, int, int], *, device: str, rounds: int, threads: int) -> dict[str, Any]:
    """Runs both ways in turns; returns the medians.

    Returns:
        ``speedup`` and ``memory`` (plain over ours), ``seconds`` and ``peak_mb`` of each way, and
        ``difference``, the relative difference of the values.
    """
    settings = {"shape": shape, "device": device, "threads": threads}
    makers = {name: partial(contender, name=name, **settings) for name in IMPLEMENTATIONS}
    with apart(makers, threads=threads) as contenders:
        samples = in_turns(contenders, rounds)
    seconds = {name: [taken for taken, _, _ in each] for name, each in samples.items()}
    peak_mb, values = ({name: each[-1][i] for name, each in samples.items()} for i in (1, 2))
    return {
        "shape": list(shape),
        "speedup": ratio(seconds["plain"], seconds["nartk"])["median"],
        "memory": peak_mb["plain"] / max(peak_mb["nartk"], 1 / MB),
        "seconds": {name: statistics.median(found) for name, found in seconds.items()},
        "peak_mb": peak_mb,
        "difference": abs(values["nartk"] - values["plain"]) / abs(values["plain"]),
    }


def _shape(text: str) -> tuple[int, int, int]:
    sizes = [int(size) for size in text.split(",")]
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not B,T,L")
    return sizes[0], sizes[1], sizes[2]


def main(argv: list[str] | None = None) -> None:
    """Measures the shapes asked for and prints a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape",
        nargs="+",
        type=_shape,
        default=[(32, 32, 256), (32, 64, 512)],
        metavar="B,T,L",
        help="rows, target tokens and vertices (default: 32,32,256 32,64,512; the plain way takes 2.3 GB)",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured rounds after one to warm up (default 5)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each process (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args(argv)
    for shape in options.shape:
        found = measure(shape, device=options.device, rounds=options.rounds, threads=options.threads)
        if options.json:
            print(json.dumps(found))
            continue
        spent = ", ".join(
            f"{name} {found['seconds'][name] * 1e3:.1f} ms {found['peak_mb'][name]:.0f} MB"
            for name in IMPLEMENTATIONS
        )
        print(
            f"B,T,L {','.join(map(str, shape))}: {found['speedup']:.1f}x the speed, "
            f"1/{found['memory']:.1f} of the memory ({spent}; values differ by {found['difference']:.0e})"
        )


if __name__ == "__main__":
    main()
