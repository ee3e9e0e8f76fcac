"""Measures decoders of speech at full size.

    python recipes/speed/speech_decoders.py [--dtype fp32 int8] [--batch-size 1 16] [--rounds N] [--help]

A Paraformer, and a Conformer with an autoregressive decoder, of the shape of AISHELL-1's recipes (12 and 6
layers of 256 features, see recipes/asr/full) with random weights, read sounds of that corpus's mean length.
Their outputs have its mean number of characters: the autoregressive decoder stops there, and the Paraformer's
predictor is given the rate at which so many fire. The encoder is measured beside its network in PyTorch, with
the same weights. One process, one thread, CPU time, in turns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nartk
from nartk.architectures import architecture
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import TimedCall, in_turns
from nartk.checkpoints.saving import save_checkpoint
from nartk.data.audio.stored import write_features
from nartk.errors import EXIT_OK
from nartk.vocab import SPECIALS, Vocab

CHARACTERS, BINS = 4233, 80  # of AISHELL-1's recipes
# Of AISHELL-1's test set, 7,176 sounds: 10.0 hours, 104,765 characters.
FRAMES, OUTPUT = 502, 14.6
SIZES = {"aishell": {}, "test": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn": 32}}
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "paraformer": ("paraformer", {}),
    "greedy": ("conformer", {"max_len": round(OUTPUT)}),
    "beam": ("conformer", {"max_len": round(OUTPUT), "beam_size": 5}),
}
_SUBSAMPLED = (FRAMES - 3) // 4  # positions of the encoder


def save_random_model(
    folder: Path, name: str, settings: Mapping[str, Any], *, words: int = CHARACTERS, seed: int
) -> torch.nn.Module:
    """Writes a model of an architecture with random weights, which reads stored features; gives its network.

    Args:
        settings: Settings other than those of the architecture's first preset.
        words: Size of the vocabulary.
    """
    found = architecture(name)
    preset = found.presets[f"nartk_{name}"]
    config = found.config(tgt_vocab=words, **{**preset, "share_embeddings": "none", **settings})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = found.network(config).eval()
        if (predictor := getattr(network, "cif", None)) is not None:
            rate = OUTPUT / _SUBSAMPLED
            predictor.out.weight.mul_(0.1)
            predictor.out.bias.fill_(math.log(rate / (1 - rate)))
    save_checkpoint(
        folder,
        architecture=name,
        settings=asdict(config),
        tensors=network.state_dict(),
        source_vocab=None,
        target_vocab=Vocab.from_words([f"w{i}" for i in range(words - len(SPECIALS))]),
        card=f"# A random {name}, for measurements of speed\n",
        input={"name": "audio", "features": "stored", "bins": BINS, "cmvn": "none"},
    )
    return network


class Measured:
    """A model, whose encoder's time is taken apart."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = nartk.load(folder, dtype=dtype, threads=1)
        self.encoder = self.model.passes.encode = TimedCall(self.model.passes.encode)

    def run(self, lines: Sequence[str], strategy: str, batch_size: int) -> tuple[float, float, float]:
        """CPU seconds of the encoder and of the rest for a sound, and the mean length of outputs."""
        self.encoder.seconds = 0.0
        _, options = STRATEGIES[strategy]
        decode = TimedCall(self.model.decode)
        found = decode(lines, strategy=strategy, batch_size=batch_size, **options)
        rest = decode.seconds - self.encoder.seconds
        length = statistics.mean(len(each.tokens) for each in found)
        return self.encoder.seconds / len(lines), rest / len(lines), length


def measure(
    size: str, *, dtypes: Sequence[str], sizes: Sequence[int], count: int, rounds: int
) -> list[dict[str, Any]]:
    """Runs all strategies in turns, each round once.

    Args:
        size: One of `SIZES`.
        sizes: Batch sizes, sounds.
        count: Sounds.

    Returns:
        For each type and size of batch ``dtype``, ``batch``, ``torch``, the seconds that PyTorch's encoder
        takes each round, and ``strategies``: by name ``encoder`` and ``decoder``, seconds by round, and
        ``length``, the mean of outputs. All are of one sound.
    """
    rng = np.random.default_rng(1)
    features = {f"s{i}": rng.standard_normal((FRAMES, BINS)).astype(np.float32) for i in range(count)}
    cells = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_features(root / "f.npz", features)
        lines = [f"{root}/f.npz#{name}" for name in features]
        names = {model for model, _ in STRATEGIES.values()}
        networks = {name: save_random_model(root / name, name, SIZES[size], seed=1) for name in sorted(names)}
        for dtype in dtypes:
            models = {name: Measured(root / name, dtype) for name in networks}
            for batch in sizes:
                contenders: dict[str, Callable[[], Any]] = {
                    strategy: partial(models[name].run, lines, strategy, batch)
                    for strategy, (name, _) in STRATEGIES.items()
                }
                contenders["torch"] = partial(
                    _encode_in_torch, networks["conformer"], list(features.values()), batch
                )
                samples = in_turns(contenders, rounds)
                eager, found = samples.pop("torch"), {}
                for strategy, each in samples.items():
                    encoder, decoder, lengths = (list(column) for column in zip(*each, strict=True))
                    found[strategy] = {"encoder": encoder, "decoder": decoder, "length": lengths[-1]}
                cells.append({"dtype": dtype, "batch": batch, "torch": eager, "strategies": found})
    torch.set_num_threads(threads)
    return cells


def _encode_in_torch(network: Any, sounds: Sequence[Any], batch: int) -> float:
    """CPU seconds of PyTorch's encoder for a sound."""
    encode = TimedCall(network.encoder)
    with torch.inference_mode():
        for begin in range(0, len(sounds), batch):
            frames = torch.from_numpy(np.stack(sounds[begin : begin + batch]))
            encode(frames, torch.full((len(frames),), FRAMES))
    return encode.seconds / len(sounds)


def page(found: dict[str, Any]) -> str:
    """Page of the figures, in Markdown."""
    columns = [
        "type",
        "batch",
        "strategy",
        "encoder ms",
        "x torch fp32",
        "decoder ms",
        "x beam 5's",
        "tokens",
    ]
    rows = []
    for cell in found["cells"]:
        for strategy, each in cell["strategies"].items():
            encoder, decoder = (statistics.median(each[part]) for part in ("encoder", "decoder"))
            rows.append(
                [
                    cell["dtype"],
                    str(cell["batch"]),
                    f"`{strategy}`",
                    f"{1000 * encoder:.1f}",
                    times(ratio(cell["torch"], each["encoder"])),
                    f"{1000 * decoder:.2f}",
                    times(ratio(cell["strategies"]["beam"]["decoder"], each["decoder"])),
                    f"{each['length']:.1f}",
                ]
            )
    facts = {
        "a sound": f"{FRAMES / 100} s",
        "rounds": found["rounds"],
        "time": "of the CPU, one thread, a sound",
    }
    return "\n".join(
        [
            *heading("Decoders of speech at AISHELL-1's size, random weights", found, facts),
            *markdown(columns, rows),
            "",
            "Ratios are medians of the rounds (lowest-highest), paired: how many times as fast as PyTorch's",
            "encoder in fp32, and as the decoder of beam 5.",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = recipe_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="aishell", help="shape (default: %(default)s)")
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16", "int8"), default=["fp32", "int8"])
    parser.add_argument("--batch-size", nargs="+", type=int, default=[1, 16], help="sounds (default: 1 16)")
    parser.add_argument("--count", type=int, default=16, help="sounds (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the page."""
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    around = environment("cpu")
    settings = {"dtypes": options.dtype, "sizes": options.batch_size, "count": options.count}
    found = {
        "command": ["python", "recipes/speed/speech_decoders.py", *argv],
        "environment": around,
        "rounds": options.rounds,
        "cells": measure(options.size, rounds=options.rounds, **settings),
    }
    publish(found, page(found), options)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
