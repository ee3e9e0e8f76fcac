"""Measures what speaks phonemes, at full size: all frames at once, and step by step.

    python recipes/speed/acoustic.py [--dtype fp32 bf16 int8] [--rounds N] [--help]

FastSpeech 2 as published; Transformer TTS of as many features, 6 layers a side and 1, 2 and 4 frames a step;
and that of fairseq's size. Their weights are random, and each speaks the same phonemes in as many frames:
FastSpeech 2 is given its durations, and the steps do not stop by themselves. Whole sentences are measured,
from ids to log-mel frames. FastSpeech 2 is measured in PyTorch too, with the same weights. One process, one
thread, CPU time, in turns.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from nartk.architectures import architecture
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import TimedCall, in_turns
from nartk.errors import EXIT_OK
from nartk.protocols.passes import TextSource
from nartk.vocab import SPECIALS, Vocab

PHONEMES, EACH = 50, 5  # of the sentence, and frames of a phoneme
FRAMES = PHONEMES * EACH
SYMBOLS = 76  # of ARPAbet with stress
HOP = 256 / 22050  # seconds of a frame
BASE = "fastspeech2"
_NARROW = {  # as wide as FastSpeech 2
    "d_model": 256,
    **{
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("ffn", 1024), ("heads", 4))
    },
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: (BASE, {}),
    **{f"{n} a step": ("transformer_tts", {**_NARROW, "frames_per_step": n}) for n in (1, 2, 4)},
    "1 a step, 512 features": ("transformer_tts", {}),
}
SIZES: dict[str, Mapping[str, Any]] = {
    "published": {},
    "test": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "acoustic_encoder_layers": 1},
}


def random_network(name: str, size: str, *, seed: int) -> Any:
    """A network of `MODELS` with random weights, which speaks the sentence in `FRAMES` frames.

    Args:
        size: One of `SIZES`.
    """
    base, changes = MODELS[name]
    found = architecture(base)
    words = SYMBOLS + len(SPECIALS)
    settings = {**found.presets[f"nartk_{base}"], **changes, "max_mel_len": FRAMES}
    known = found.config.__dataclass_fields__
    smaller = {key: value for key, value in SIZES[size].items() if key in known}
    config = found.config(src_vocab=words, tgt_vocab=words, **{**settings, **smaller})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = found.network(config).eval()
        if base == BASE:
            out = network.acoustic.variance.duration.out
            out.weight.zero_()
            out.bias.fill_(math.log(EACH + 1))
        else:
            network.decoder.out.bias[-1] = -1e9
    return network


def speaker(network: Any, name: str, dtype: str) -> Callable[[], tuple[float, int]]:
    """Speaks the sentence on the engine; gives the CPU seconds and the frames."""
    vocab = Vocab.from_words([f"w{i}" for i in range(SYMBOLS)])
    arrays = {key: weight.numpy() for key, weight in network.state_dict().items()}
    engine = architecture(MODELS[name][0]).engine
    scorer = engine(network.config, arrays, vocab, source_vocab=vocab, type=dtype, threads=1)
    source = TextSource(sentence())

    def speak() -> int:
        memory = scorer.encode([source])
        try:
            (mel,) = scorer.spectrograms(scorer.encoded(memory))
        finally:
            scorer.free(memory)
        return len(mel)

    return partial(_timed, speak)


def sentence() -> tuple[int, ...]:
    """Ids of the phonemes, and eos."""
    return (*(len(SPECIALS) + i % SYMBOLS for i in range(PHONEMES)), 2)


def _in_torch(network: Any) -> int:
    with torch.inference_mode():
        source = network.encode(torch.tensor([sentence()]))
        (mel,) = network.acoustic.mel(source.memory, source.kept)
    return len(mel)


def _timed(speak: Callable[[], int]) -> tuple[float, int]:
    timed = TimedCall(speak)
    frames = timed()
    return timed.seconds, frames


def measure(size: str, *, dtypes: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Runs all models in turns, each round once.

    Args:
        size: One of `SIZES`.

    Returns:
        For each type ``dtype`` and ``models``: by name ``seconds`` by round and ``frames``; ``torch`` is
        FastSpeech 2 in PyTorch, in fp32.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    networks = {name: random_network(name, size, seed=1) for name in MODELS}
    cells = []
    for dtype in dtypes:
        contenders = {name: speaker(network, name, dtype) for name, network in networks.items()}
        contenders["torch"] = partial(_timed, partial(_in_torch, networks[BASE]))
        found = {}
        for name, samples in in_turns(contenders, rounds).items():
            seconds, frames = zip(*samples, strict=True)
            found[name] = {"seconds": [*seconds], "frames": frames[-1]}
        cells.append({"dtype": dtype, "models": found})
    torch.set_num_threads(threads)
    return cells


def page(found: dict[str, Any]) -> str:
    """Page of the figures, in Markdown."""
    rows = []
    for cell in found["cells"]:
        models = cell["models"]
        for name, each in models.items():
            seconds = statistics.median(each["seconds"])
            rows.append(
                [
                    cell["dtype"],
                    f"{BASE} in PyTorch, fp32" if name == "torch" else name,
                    f"{1000 * seconds:.1f}",
                    f"{seconds / (each['frames'] * HOP):.4f}",
                    times(ratio(models[BASE]["seconds"], each["seconds"])),
                    times(ratio(models["torch"]["seconds"], each["seconds"])),
                ]
            )
    facts = {
        "a sentence": f"{PHONEMES} phonemes, {FRAMES} frames, {FRAMES * HOP:.1f} s",
        "rounds": found["rounds"],
        "time": "of the CPU, one thread, from ids to frames",
    }
    columns = ["type", "model", "ms", "real-time factor", "x fastspeech2", "x PyTorch"]
    return "\n".join(
        [
            *heading("Acoustic models at full size, random weights", found, facts),
            *markdown(columns, rows),
            "",
            "Ratios are medians of the rounds (lowest-highest), paired: how many times as fast as",
            "FastSpeech 2 on the engine in the same type, and in PyTorch in fp32. N a step: Transformer TTS.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the page."""
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="published", help="shape (default: %(default)s)")
    parser.add_argument(
        "--dtype", nargs="+", choices=("fp32", "bf16", "int8"), default=["fp32", "bf16", "int8"]
    )
    options = parser.parse_args(argv)
    found = {
        "command": ["python", "recipes/speed/acoustic.py", *argv],
        "environment": environment("cpu"),
        "rounds": options.rounds,
        "cells": measure(options.size, dtypes=options.dtype, rounds=options.rounds),
    }
    publish(found, page(found), options)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
