"""Compares the bits of a token that is computed alone with its bits among others, kernel by kernel.

    python recipes/speed/batch_invariance.py [--device cuda] [--dtype fp32,bf16,fp16] [--quick] [--help]

A decoder is exact in batches only if every kernel gives a row the same bits whatever shares its batch. The
table names the batch sizes where that holds, for the kernels of a Transformer of base size and for a pass of
the reference scorer; "tiled" is a kernel in Triton that has one tile shape whatever N. Rows of a batch are
compared with each row alone, and with the same rows moved by one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None

from nartk.bench.work import save_random_model
from nartk.checkpoints.loading import load_checkpoint
from nartk.models.reference import DTYPES
from nartk.protocols.passes import ROOT, Pass, PassScorer, TextSource, Want
from nartk.serving.scorers import reference_scorer

_SIZES = (2, 3, 4, 8, 16, 17, 32, 64, 65, 128, 256)
_QUICK = (2, 3, 8)
_BASE = {"d_model": 512, "ffn": 2048, "heads": 8, "words": 32_000}
_TINY = {"d_model": 16, "ffn": 32, "heads": 2, "words": 40}
_SEEN = 40  # cells that a token attends to


if triton is not None:

    @triton.jit
    def _tiled_kernel(  # type: ignore[no-untyped-def]
        rows,
        weights,
        output,
        count,
        width: tl.constexpr,
        outputs,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
        DEPTH: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for begin in range(0, width, DEPTH):
            depth = begin + tl.arange(0, DEPTH)
            left = tl.load(
                rows + row[:, None] * width + depth[None, :],
                mask=(row < count)[:, None] & (depth < width)[None, :],
                other=0.0,
            )
            right = tl.load(
                weights + column[None, :] * width + depth[:, None],
                mask=(column < outputs)[None, :] & (depth < width)[:, None],
                other=0.0,
            )
            total += tl.dot(left, right, input_precision="ieee")
        kept = (row < count)[:, None] & (column < outputs)[None, :]
        tl.store(output + row[:, None] * outputs + column[None, :], total, mask=kept)


def tiled_linear(rows: Tensor, weights: Tensor) -> Tensor:
    """A linear layer of one tile shape for every number of rows: rows [N,D], weights [V,D] -> [N,V] fp32."""
    output = torch.empty(len(rows), len(weights), device=rows.device)
    grid = (triton.cdiv(len(rows), 16), triton.cdiv(len(weights), 64))
    _tiled_kernel[grid](rows, weights, output, len(rows), rows.shape[1], len(weights), 16, 64, 64)
    return output


def kernels(shape: dict[str, int], dtype: torch.dtype, device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions of rows [N,d_model], by name."""
    width, ffn, heads = shape["d_model"], shape["ffn"], shape["heads"]
    draw = torch.Generator().manual_seed(1)

    def weights(*size: int) -> Tensor:
        return (torch.randn(*size, generator=draw) / size[-1] ** 0.5).to(device, dtype)

    qkv, up, down, words = (
        weights(*size) for size in ((3 * width, width), (ffn, width), (width, ffn), (shape["words"], width))
    )
    keys, values = weights(heads, _SEEN, width // heads), weights(heads, _SEEN, width // heads)

    def attend(rows: Tensor) -> Tensor:
        q = rows.unflatten(1, (heads, 1, -1))  # [N,H,1,D]
        k, v = (each.expand(len(rows), -1, -1, -1).contiguous() for each in (keys, values))
        mask = torch.ones(len(rows), 1, 1, _SEEN, dtype=torch.bool, device=device)
        return F.scaled_dot_product_attention(q, k, v, mask).flatten(1)

    tiled = (
        {}
        if triton is None or device == "cpu"
        else {
            f"tiled linear {width} to {3 * width}": lambda rows: tiled_linear(rows, qkv),
            f"tiled linear {width} to {shape['words']} (words)": lambda rows: tiled_linear(rows, words),
        }
    )
    return {
        **tiled,
        f"linear {width} to {3 * width}": lambda rows: F.linear(rows, qkv),
        f"linear {width} to {ffn} to {width}": lambda rows: F.linear(F.linear(rows, up).relu(), down),
        f"linear {width} to {shape['words']} (words)": lambda rows: F.linear(rows, words),
        "layer norm": lambda rows: F.layer_norm(rows, rows.shape[1:]),
        "attention": attend,
        "log-softmax of the words": lambda rows: rows.repeat(1, shape["words"] // width).log_softmax(1),
    }


def same_bits(kernel: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[bool, bool]:
    """Tells if rows have the bits that they have alone, and if those depend on the place in the batch."""
    together = kernel(rows)
    alone = torch.cat([kernel(rows[i : i + 1]) for i in range(len(rows))])
    moved = kernel(rows.roll(1, 0)).roll(-1, 0)
    return torch.equal(together, alone), torch.equal(together, moved)


def scorer(size: str, dtype: str, device: str) -> PassScorer:
    """The reference scorer of a random Transformer."""
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(Path(folder), size, seed=1)
        model = reference_scorer(load_checkpoint(Path(folder)), device, dtype)
    assert isinstance(model, PassScorer)
    return model


def passes(model: PassScorer, size: int) -> tuple[bool, bool]:
    """Tells if tokens of a pass have the words and the log-probabilities that they have alone."""
    draw = torch.Generator().manual_seed(size)
    words = torch.randint(4, model.limits.words, (size, 30), generator=draw).tolist()
    sources = [TextSource((*source, model.vocab.eos)) for source in words]

    def run(chosen: list[TextSource]) -> tuple[Tensor, Tensor]:
        memory, contexts = model.encode(chosen), model.open(len(chosen))
        tokens, positions, parents = (np.full(len(chosen), x, np.int32) for x in (model.start_token, 0, ROOT))
        scores = model.run(Pass(tokens, positions, memory, contexts, parents), Want())
        found = torch.tensor(scores.best), torch.tensor(scores.log_probs)
        model.close(contexts)
        model.free(memory)
        return found

    best, log_probs = run(sources)
    single = [run([source]) for source in sources]
    return (
        torch.equal(best, torch.cat([words for words, _ in single])),
        torch.equal(log_probs, torch.cat([scores for _, scores in single])),
    )


def main(argv: list[str] | None = None) -> None:
    """Prints a table a type."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--dtype", default="fp32,bf16,fp16", help="with commas (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny model and three sizes")
    options = parser.parse_args(argv)
    shape, sizes = (_TINY, _QUICK) if options.quick else (_BASE, _SIZES)
    print("| type | kernel | batch sizes with a row's own bits | whose bits do not depend on the place |")
    print("|---|---|---|---|")
    with torch.inference_mode():
        for name in options.dtype.split(","):
            dtype = DTYPES[name]
            draw = torch.Generator().manual_seed(2)
            rows = torch.randn(max(sizes), shape["d_model"], generator=draw).to(options.device, dtype)
            for kernel, function in kernels(shape, dtype, options.device).items():
                found = [same_bits(function, rows[:size]) for size in sizes]
                print(f"| {name} | {kernel} | {_holding(sizes, found, 0)} | {_holding(sizes, found, 1)} |")
            model = scorer("tiny" if options.quick else "base", name, options.device)
            found = [passes(model, size) for size in sizes if size <= 64]
            words, bits = _holding(sizes, found, 0), _holding(sizes, found, 1)
            print(f"| {name} | a pass of the scorer | {bits}; words {words} | |")


def _holding(sizes: tuple[int, ...], found: list[tuple[bool, bool]], which: int) -> str:
    """The sizes for which an answer was yes."""
    held = [str(size) for size, each in zip(sizes, found, strict=False) if each[which]]
    return f"all {len(found)}" if len(held) == len(found) else " ".join(held) or "none"


if __name__ == "__main__":
    main()
