"""Measures Whisper's encoder and greedy decoder beside other libraries.

    python recipes/speed/whisper_engines.py [--size tiny base] [--dtype fp32 int8] [--rounds N] [--help]

All read one folder, a Whisper of a published shape with random weights, and decode the same 30 s of frames
with one thread each. Each engine runs in a process of its own, one at a time, in turns. Figures are medians
of the rounds, and of paired ratios, of CPU time: with one thread that is wall time on an idle machine.

The keys and values of the sound that the decoder's layers attend to are a part of nartk's encoder, and of the
other libraries' first pass of the decoder. So there are two figures that compare the same work: `first`, from
frames to the first word, and `step`, of each further word. All outputs have the same number of words: logits
of eos and of what follows it are below the others, so that no library needs a rule to keep them out.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nartk.adapters.hf import import_transformers
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import apart, in_turns
from nartk.errors import EXIT_FAILED, EXIT_OK

sys.path.append(str(Path(__file__).parents[1]))
from whisper_libraries import LIBRARIES, SHIFT

_STEPS = 50  # times a second that words name
_SPREAD = 0.1  # of the vectors of words, those of positions being 1: larger ones repeat the word before
_GAIN = 1.5  # of random layers, so that sound and earlier words decide what comes next
_PUSH = 4.0  # its square is what logits of eos and of later words lack
_WEIGHTS = """which numbers weights are; all libraries read them in fp32. OpenAI's are fp16 numbers, as
    which nartk stores them (default: fp16)"""


@dataclass(frozen=True)
class Size:
    """The shape of a Whisper. Words of text come first, then eos and the words of prompts, then times."""

    layers: int
    d_model: int
    heads: int
    text: int = 50_257
    languages: int = 99
    bins: int = 80
    seconds: int = 30

    @property
    def special(self) -> list[str]:
        """Words from eos to the one that says that an output has no times."""
        names = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
        languages = ["en", *(f"x{i}" for i in range(1, self.languages))]
        return [f"<|{name}|>" for name in ("endoftext", "startoftranscript", *languages, *names)]

    @property
    def words(self) -> int:
        """All words, with the times from 0.00 s on."""
        return self.text + len(self.special) + self.seconds * _STEPS + 1

    def id_of(self, name: str) -> int:
        """The id of a special word."""
        return self.text + self.special.index(f"<|{name}|>")

    @property
    def prompt(self) -> list[int]:
        """Prompt tokens of outputs in English without times."""
        return [self.id_of(name) for name in ("startoftranscript", "en", "transcribe", "notimestamps")]


# Radford et al. 2023, https://arxiv.org/abs/2212.04356, table 1, with the words of the multilingual models.
SIZES = {
    "tiny": Size(4, 384, 6),
    "base": Size(6, 512, 8),
    "small": Size(12, 768, 12),
    "test": Size(1, 32, 2, text=259, languages=2, bins=8, seconds=1),
}


def config_of(size: Size) -> Any:
    """transformers' configuration of a size."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", size.layers),
            ("attention_heads", size.heads),
            ("ffn_dim", 4 * size.d_model),
        )
    }
    return import_transformers().WhisperConfig(
        vocab_size=size.words,
        num_mel_bins=size.bins,
        d_model=size.d_model,
        max_source_positions=size.seconds * _STEPS,
        **sides,
        **_ids(size),
    )


def _ids(size: Size) -> dict[str, int]:
    eos = size.id_of("endoftext")
    return {
        "decoder_start_token_id": size.id_of("startoftranscript"),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), eos),
    }


def save_random_whisper(folder: Path, size: Size, *, seed: int, halves: bool) -> None:
    """Writes a folder as transformers does, with random weights whose outputs vary.

    Args:
        halves: Round weights to fp16 numbers, as OpenAI's are; all libraries read them in fp32.

    Raises:
        MissingDependencyError: transformers is not installed.
    """
    library = import_transformers()
    eos = size.id_of("endoftext")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = library.WhisperForConditionalGeneration(config_of(size)).eval()
        for name, weight in model.named_parameters():
            if name.endswith("encoder.embed_positions.weight"):
                continue  # sinusoids
            noise = torch.randn_like(weight)
            if weight.dim() == 1:
                weight.add_(0.1 * noise)
            elif "embed_tokens" in name:
                weight.copy_(_SPREAD * noise)
            elif "embed_positions" in name:
                weight.copy_(noise)
            else:
                weight.copy_(_GAIN / math.sqrt(weight[0].numel()) * noise)
        words, push = model.proj_out.weight, torch.nn.functional.normalize(torch.randn(size.d_model), dim=0)
        words.sub_(torch.outer(words @ push, push))  # else it would prefer some words of the text
        words[eos:] -= _PUSH * push
        model.model.decoder.layer_norm.bias.add_(_PUSH * push)
        if halves:
            for weight in model.parameters():
                weight.copy_(weight.half())
    model.generation_config = library.GenerationConfig(
        **_ids(size),
        no_timestamps_token_id=size.id_of("notimestamps"),
        is_multilingual=True,
        lang_to_id={"<|en|>": size.id_of("en")},
        task_to_id={name: size.id_of(name) for name in ("transcribe", "translate")},
        language="en",
        task="transcribe",
        suppress_tokens=[],
        begin_suppress_tokens=[],
        max_length=448,
    )
    model.save_pretrained(folder)
    _tokenizer(library, size).save_pretrained(folder)
    library.WhisperFeatureExtractor(feature_size=size.bins, chunk_length=size.seconds).save_pretrained(folder)


def _tokenizer(library: Any, size: Size) -> Any:
    """A tokenizer of bytes, of words that no text has, and of Whisper's own."""
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    words = [*alphabet, *(f"w{i}" for i in range(size.text - len(alphabet)))]
    made = library.WhisperTokenizer(vocab={word: id for id, word in enumerate(words)}, merges=[])
    times = [f"<|{step / _STEPS:.2f}|>" for step in range(size.seconds * _STEPS + 1)]
    for names, special in ((size.special, True), (times, False)):
        made.add_tokens(
            [AddedToken(name, special=special, normalized=False) for name in names], special_tokens=special
        )
    return made


PARTS = ("encoder", "first", "step", "decoder", "whole")
_FACTORS = ("encoder", "decoder", "whole")
_LEGEND = """ms: CPU time, median of the rounds. encoder: the library's own call, nartk's with the keys and
values of the sound, which are a part of the others' decoder. first: from frames to the first word, so of the
same work. step: of each further word. RTF: real-time factors of the encoder, the decoder and the whole,
seconds for a second of sound and {count} words. x hf: how many times as fast as hf in fp32, median of the
rounds (lowest-highest), paired. differ: words of outputs in fp32 that are not hf's; int8 is another model."""


def contender(engine: str, folder: str, size: str, dtype: str, count: int) -> Callable[[], Any]:
    """Loads an engine; a call returns the seconds of each part, and the words of an output."""
    shape = SIZES[size]
    rng = np.random.default_rng(1)
    frames = rng.normal(size=(round(shape.seconds * 1000 / SHIFT), shape.bins)).astype(np.float32)
    made = LIBRARIES[engine](Path(folder), dtype)

    def run() -> tuple[dict[str, float], list[int]]:
        one, all_ = (made.run(frames, shape.prompt, each) for each in (1, count))
        encoder = (one.encoder + all_.encoder) / 2
        seconds = {
            "encoder": encoder,
            "first": encoder + one.decoder,
            "step": (all_.decoder - one.decoder) / (count - 1),
            "decoder": all_.decoder,
            "whole": encoder + all_.decoder,
        }
        return seconds, all_.tokens

    return run


def measure(
    size: str, chosen: Sequence[tuple[str, str]], *, count: int, rounds: int, halves: bool
) -> dict[str, Any]:
    """Runs engines in turns on a random Whisper of a size; returns what they took.

    Args:
        size: One of `SIZES`.
        chosen: Names of `LIBRARIES`, each with its type; ``("hf", "fp32")`` is among them.
        count: Words of an output.
        halves: Round weights, see `save_random_whisper`.

    Returns:
        ``size``, ``sound`` (seconds), and ``engines``: of each its ``engine``, ``dtype``, ``seconds`` by part
        and round, ``over_hf`` by part (``median``, ``low``, ``high``), and ``differ``: in fp32 the words of
        an output that are not hf's.

    Raises:
        MissingDependencyError: transformers is not installed.
        EngineError: Another library is not installed, or an engine failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_random_whisper(Path(folder), SIZES[size], seed=1, halves=halves)
        settings = {"folder": folder, "size": size, "count": count}
        makers = {
            (engine, dtype): partial(contender, engine=engine, dtype=dtype, **settings)
            for engine, dtype in chosen
        }
        with apart(makers) as contenders:
            samples = in_turns(contenders, rounds)
    seconds = {
        name: {part: [taken[part] for taken, _ in each] for part in PARTS} for name, each in samples.items()
    }
    outputs = {name: each[-1][1] for name, each in samples.items()}
    base = ("hf", "fp32")
    return {
        "size": size,
        "sound": SIZES[size].seconds,
        "engines": [
            {
                "engine": name[0],
                "dtype": name[1],
                "seconds": seconds[name],
                "over_hf": {part: ratio(seconds[base][part], seconds[name][part]) for part in PARTS},
                "differ": _differing(outputs[name], outputs[base]) if name[1] == "fp32" else None,
            }
            for name in chosen
        ],
    }


def _differing(mine: Sequence[int], theirs: Sequence[int]) -> int:
    same = sum(a == b for a, b in zip(mine, theirs, strict=False))
    return max(len(mine), len(theirs)) - same


def page(found: dict[str, Any]) -> str:
    """Page of the figures, in Markdown."""
    columns = [
        *("size", "engine", "type", "encoder ms", "first ms", "step ms"),
        *(f"RTF {part}" for part in _FACTORS),
        *(f"{part} x hf" for part in PARTS),
        "differ",
    ]
    rows = [_row(cell, engine) for cell in found["cells"] for engine in cell["engines"]]
    facts = {"rounds": found["rounds"], "time": "of the CPU"}
    return "\n".join(
        [
            *heading("Whisper with random weights", found, facts),
            *markdown(columns, rows),
            "",
            _LEGEND.format(count=found["tokens"]),
        ]
    )


def _row(cell: dict[str, Any], engine: dict[str, Any]) -> list[str]:
    middle = {part: statistics.median(each) for part, each in engine["seconds"].items()}
    ratios = (engine["over_hf"][part] for part in PARTS)
    return [
        cell["size"],
        engine["engine"],
        engine["dtype"],
        *(f"{1000 * middle[part]:.{2 if part == 'step' else 0}f}" for part in ("encoder", "first", "step")),
        *(f"{middle[part] / cell['sound']:.4f}" for part in _FACTORS),
        *map(times, ratios),
        "-" if engine["differ"] is None else str(engine["differ"]),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = recipe_parser(__doc__)
    parser.add_argument(
        "--size", nargs="+", choices=SIZES, default=["tiny", "base"], help="shapes (default: tiny base)"
    )
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16", "int8"), default=["fp32", "int8"])
    parser.add_argument(
        "--peers", nargs="*", choices=("ctranslate2",), default=["ctranslate2"], help="beside hf"
    )
    parser.add_argument("--tokens", type=int, default=64, help="words of an output (default: 64)")
    parser.add_argument("--weights", choices=("fp16", "fp32"), default="fp16", help=_WEIGHTS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the sizes asked for, prints the page, and gives the exit status: 1 where outputs differ."""
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    chosen = [("nartk", dtype) for dtype in options.dtype]
    chosen.append(("hf", "fp32"))
    chosen += [(peer, dtype) for peer in options.peers for dtype in options.dtype]
    settings = {"count": options.tokens, "rounds": options.rounds, "halves": options.weights == "fp16"}
    found = {
        "command": ["python", "recipes/speed/whisper_engines.py", *argv],
        "environment": environment("cpu"),
        "rounds": options.rounds,
        "tokens": options.tokens,
        "cells": [measure(size, chosen, **settings) for size in options.size],
    }
    publish(found, page(found), options)
    differing = [
        f"{cell['size']}, {engine['engine']}: {engine['differ']} words are not those of transformers"
        for cell in found["cells"]
        for engine in cell["engines"]
        if engine["differ"]
    ]
    print(*differing, sep="\n", file=sys.stderr, end="\n" if differing else "")
    return EXIT_FAILED if differing else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
