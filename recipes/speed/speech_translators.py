"""Measures translators of speech at full size: all words at once, and one by one.

    python recipes/speed/speech_translators.py [--dtype fp32 int8] [--rounds N] [--help]

DASpeech's first part as published (an encoder of 12 layers of 256 features, a decoder of 4 layers of 512),
whose graph has half a vertex a frame, and one with a quarter, beside a decoder of the same shape that gives
one word after the other. They translate 5 s of sound into 60 phonemes or into 20 subwords. Then, with a
decoder of 6 layers of 256 features, nartk beside fairseq's Conformer and transformers' Speech2Text. Weights
are random: outputs are as long as is asked for, and a graph's path is as long as chance has it. The times
of the encoder, of passes of the decoder, and of all else (the search) are apart. One process, one thread, CPU
time, in turns; with OMP_NUM_THREADS=1, as in recipes/speed.sh: other threads of NumPy count while they wait.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nartk
from nartk.adapters.hf import import_transformers
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import TimedCall, in_turns
from nartk.data.audio.stored import write_features
from nartk.errors import EXIT_OK
from nartk.vocab import Vocab

sys.path.append(str(Path(__file__).parent))
from speech_decoders import BINS, save_random_model

FRAMES = 500  # 5 s
OUTPUTS = {"phonemes": (60, 80), "subwords": (20, 8000)}  # how many, and of how many
_ENCODER = {"d_model": 256, "encoder_layers": 12, "encoder_ffn": 2048, "encoder_heads": 4, "conv_kernel": 31}
# Fang et al. 2023, https://arxiv.org/abs/2310.07403, and its program's README.
_DECODER = {"decoder_features": 512, "decoder_layers": 4, "decoder_ffn": 2048, "decoder_heads": 8}
_GRAPH = {
    **_ENCODER,
    **_DECODER,
    "decoder_positions": "learned",
    "activation": "gelu",
    "decoder_input": "mask",
    "link_features": "feature:position",
    "max_target_len": 1024,
}
_EVEN = {"decoder_features": 0, "decoder_layers": 6, "decoder_ffn": 2048, "decoder_heads": 4}
SIZES: dict[str, Mapping[str, Any]] = {
    "published": {},
    "test": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "decoder_features": 0},
}


@dataclass(frozen=True)
class Contender:
    """A model and how it is decoded.

    Attributes:
        vertices: A graph's vertices for each position of the encoder, which has 4 frames; 0: no graph, one
            word at a time.
    """

    strategy: str
    vertices: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Strategy and graph, as tables name them."""
        beams = self.options.get("beam_size")
        return (
            f"`{self.strategy}`"
            + (f" {beams}" if beams else "")
            + (f", {self.vertices / 4:g} vertices a frame" if self.vertices else "")
        )


BEAM = Contender("beam", options={"beam_size": 5})
_GRAPHS = ("dag-greedy", "dag-lookahead", "dag-viterbi", "dag-joint-viterbi", "dag-beam")
DECODINGS = (Contender("greedy"), BEAM, *(Contender(name, n) for n in (1, 2) for name in _GRAPHS))
PEERS = (Contender("greedy"), BEAM)


class TimedParts:
    """A model of nartk, whose encoder and passes of the decoder are timed apart."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = nartk.load(folder, dtype=dtype, threads=1)
        passes = self.model.passes
        self.encoder = passes.encode = TimedCall(passes.encode)
        names = [name for name in ("run", "commit", "graphs", "words") if hasattr(passes, name)]
        self.decoder = [TimedCall(getattr(passes, name)) for name in names]
        for name, call in zip(names, self.decoder, strict=True):
            setattr(passes, name, call)

    def run(self, line: str, decoding: Contender, length: int) -> tuple[float, float, float, int]:
        """CPU seconds of the encoder, of passes and of the search, and the tokens of the output."""
        for call in (self.encoder, *self.decoder):
            call.seconds = 0.0
        limit = {} if decoding.vertices else {"min_len": length, "max_len": length}
        decode = TimedCall(self.model.decode)
        (found,) = decode([line], strategy=decoding.strategy, **decoding.options, **limit)
        encoder, decoder = self.encoder.seconds, sum(call.seconds for call in self.decoder)
        return encoder, decoder, decode.seconds - encoder - decoder, len(found.tokens)


def measure(size: str, *, dtypes: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Runs all models in turns, each round once.

    Args:
        size: One of `SIZES`.

    Returns:
        For each type and kind of output ``dtype``, ``output`` and ``decodings``: by title ``encoder``,
        ``decoder`` and ``search``, seconds by round, and the ``length`` of the output.
    """
    cells = []
    with tempfile.TemporaryDirectory() as scratch:
        root, line = Path(scratch), _sound(Path(scratch))
        for output, (length, words) in OUTPUTS.items():
            for vertices in (0, 1, 2):
                settings = {**_ENCODER, **_DECODER}
                if vertices:
                    settings = {**_GRAPH, "upsample_scale": str(vertices)}
                save_random_model(
                    root / f"{output}.{vertices}",
                    "speech_dag" if vertices else "conformer",
                    {**settings, **SIZES[size]},
                    words=words,
                    seed=1,
                )
            for dtype in dtypes:
                models = {n: TimedParts(root / f"{output}.{n}", dtype) for n in (0, 1, 2)}
                contenders = {
                    decoding.title: partial(models[decoding.vertices].run, line, decoding, length)
                    for decoding in DECODINGS
                }
                cells.append({"dtype": dtype, "output": output, "decodings": _apart(contenders, rounds)})
    return cells


def _apart(contenders: Mapping[str, Callable[[], tuple[float, float, float, int]]], rounds: int) -> Any:
    found = {}
    for title, samples in in_turns(contenders, rounds).items():
        encoder, decoder, search, lengths = ([*column] for column in zip(*samples, strict=True))
        found[title] = {"encoder": encoder, "decoder": decoder, "search": search, "length": lengths[-1]}
    return found


def _sound(folder: Path) -> str:
    frames = np.random.default_rng(1).standard_normal((FRAMES, BINS)).astype(np.float32)
    write_features(folder / "f.npz", {"a": frames})
    return f"{folder}/f.npz#a"


def measure_peers(size: str, *, dtypes: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """nartk, fairseq and transformers in turns, each of one width and with as many layers; 20 subwords.

    Returns:
        For each library and strategy ``engine``, ``dtype``, ``strategy``, and ``encoder`` and ``whole``, CPU
        seconds by round.
    """
    length, words = OUTPUTS["subwords"]
    made = {**_ENCODER, **_EVEN, **SIZES[size]}
    with tempfile.TemporaryDirectory() as scratch:
        root, line = Path(scratch), _sound(Path(scratch))
        network = save_random_model(root / "model", "conformer", made, words=words, seed=1)
        model = nartk.load(root / "model")
        config, vocab = network.config, model.checkpoint.target_vocab
        frames = torch.from_numpy(model.encode(line).frames)
        contenders: dict[tuple[str, str, str], Callable[[], tuple[float, float]]] = {}
        theirs = {
            "fairseq, s2t_conformer": Fairseq(config, vocab),
            "transformers, Speech2Text": Transformers(config, vocab),
        }
        for decoding in PEERS:
            beams = decoding.options.get("beam_size", 1)
            for dtype in dtypes:
                ours = TimedParts(root / "model", dtype)
                contenders["nartk", dtype, decoding.title] = partial(_whole, ours, line, decoding, length)
            for name, library in theirs.items():
                contenders[name, "fp32", decoding.title] = partial(library.run, frames[None], beams, length)
        samples = in_turns(contenders, rounds)
    return [
        {
            "engine": name,
            "dtype": dtype,
            "strategy": title,
            "encoder": [encoder for encoder, _ in each],
            "whole": [whole for _, whole in each],
        }
        for (name, dtype, title), each in samples.items()
    ]


def _whole(model: TimedParts, line: str, decoding: Contender, length: int) -> tuple[float, float]:
    encoder, decoder, search, tokens = model.run(line, decoding, length)
    assert tokens == length, f"{tokens} tokens where {length} are measured"
    return encoder, encoder + decoder + search


class Fairseq:
    """fairseq's `s2t_conformer` with ESPnet's relative attention, and its generator."""

    def __init__(self, config: Any, vocab: Vocab) -> None:
        from nartk.tasks.peer import random_conformer

        self.vocab, self.model = vocab, random_conformer(config, vocab)
        self.encode = self.model.encoder.forward = TimedCall(self.model.encoder.forward)

    def run(self, frames: torch.Tensor, beams: int, length: int) -> tuple[float, float]:
        """CPU seconds of the encoder and of the whole."""
        from nartk.tasks.peer import generator_of

        self.encode.seconds = 0.0
        generate = TimedCall(generator_of(self.model, self.vocab, beam_size=beams, length=length).generate)
        lengths = torch.tensor([frames.shape[1]])
        net_input = {"src_tokens": frames, "src_lengths": lengths, "prev_output_tokens": None}
        with torch.inference_mode():
            ((best, *_),) = generate([self.model], {"net_input": net_input})
        assert len(best["tokens"]) == length + 1
        return self.encode.seconds, generate.seconds


class Transformers:
    """transformers' `Speech2Text` and `generate`."""

    def __init__(self, config: Any, vocab: Vocab) -> None:
        library = import_transformers()
        settings = library.Speech2TextConfig(
            vocab_size=len(vocab.words),
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            encoder_ffn_dim=config.encoder_ffn,
            encoder_attention_heads=config.encoder_heads,
            decoder_layers=config.decoder_layers,
            decoder_ffn_dim=config.decoder_ffn,
            decoder_attention_heads=config.decoder_heads,
            input_feat_per_channel=config.input_features,
        )
        self.model = library.Speech2TextForConditionalGeneration(settings).eval()
        encoder = self.model.model.encoder
        self.encode = encoder.forward = TimedCall(encoder.forward)

    def run(self, frames: torch.Tensor, beams: int, length: int) -> tuple[float, float]:
        """CPU seconds of the encoder and of the whole."""
        self.encode.seconds = 0.0
        generate = TimedCall(self.model.generate)
        mask = torch.ones(frames.shape[:2], dtype=torch.int64)
        with torch.inference_mode():
            (found,) = generate(
                frames, attention_mask=mask, num_beams=beams, min_new_tokens=length, max_new_tokens=length
            )
        assert len(found) >= length
        return self.encode.seconds, generate.seconds


def page(found: dict[str, Any]) -> str:
    """Page of the figures, in Markdown."""
    rows = []
    for cell in found["cells"]:
        beam = _decoding(cell["decodings"][BEAM.title])
        for title, each in cell["decodings"].items():
            encoder, decoder, search = (
                f"{1000 * statistics.median(each[part]):.1f}" for part in ("encoder", "decoder", "search")
            )
            over = times(ratio(beam, _decoding(each)))
            rows.append(
                [cell["output"], cell["dtype"], title, encoder, decoder, search, over, str(each["length"])]
            )
    columns = ["output", "type", "strategy", "encoder ms", "decoder ms", "search ms", "x beam 5", "tokens"]
    facts = {
        "a sound": f"{FRAMES / 100:g} s",
        "rounds": found["rounds"],
        "time": "of the CPU, one thread",
    }
    parts = [
        *heading("Translators of speech at DASpeech's size, random weights", found, facts),
        *markdown(columns, rows),
        "",
        "x beam 5: how many times as fast as beam search's decoder and search in the same type; medians of",
        "the rounds (lowest-highest), paired.",
    ]
    if found["peers"]:
        parts += ["", "## Beside other libraries", *markdown(*_peer_table(found["peers"]))]
    return "\n".join(parts)


def _decoding(each: Mapping[str, Sequence[float]]) -> list[float]:
    """Seconds of decoder and search, by round."""
    return [sum(pair) for pair in zip(each["decoder"], each["search"], strict=True)]


def _peer_table(cells: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    base = {each["strategy"]: each for each in cells if each["engine"].startswith("fairseq")}
    rows = []
    for each in cells:
        encoder, whole = (f"{1000 * statistics.median(each[part]):.1f}" for part in ("encoder", "whole"))
        over = times(ratio(base[each["strategy"]]["whole"], each["whole"]))
        rows.append([each["engine"], each["dtype"], each["strategy"], encoder, whole, over])
    return ["library", "type", "strategy", "encoder ms", "whole ms", "x fairseq"], rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the page."""
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="published", help="shape (default: %(default)s)")
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16", "int8"), default=["fp32", "int8"])
    parser.add_argument("--no-peers", action="store_true", help="nartk alone")
    options = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    around = environment("cpu")
    settings = {"dtypes": options.dtype, "rounds": options.rounds}
    found = {
        "command": ["python", "recipes/speed/speech_translators.py", *argv],
        "environment": around,
        "rounds": options.rounds,
        "cells": measure(options.size, **settings),
        "peers": [] if options.no_peers else measure_peers(options.size, **settings),
    }
    torch.set_num_threads(threads)
    publish(found, page(found), options)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
