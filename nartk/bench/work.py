"""Jobs of a benchmark: sentences with their limits, and random models with scripted outputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nartk.architectures import architecture
from nartk.architectures.settings import both
from nartk.checkpoints.saving import save_checkpoint
from nartk.files import JsonObject
from nartk.vocab import SPECIALS, Vocab

_LENGTHS, _SURE = "lengths.bias", 1000.0  # what predicts lengths, and nats that leave no other
RANDOM: dict[str, tuple[int, dict[str, Any]]] = {  # words, and what differs from the default shape
    "base": (32_000, {"d_model": 512, **both(ffn=2048)}),
    # Of OPUS-MT's models, and of T5 base, as they come in from Hugging Face.
    "marian": (
        58_101,
        {
            "d_model": 512,
            "activation": "silu",
            "output_bias": True,
            "encoder_norm_first": False,
            "decoder_norm_first": False,
            "encoder_positions": "learned",
            "decoder_positions": "learned",
        },
    ),
    "t5": (
        32_128,
        {
            "d_model": 768,
            **both(layers=12, ffn=3072, heads=12),
            "norm": "rms",
            "norm_eps": 1e-6,
            "bias": False,
            "scale_attention": False,
            "encoder_positions": "relative",
            "decoder_positions": "relative",
            "scale_embedding": False,
            "scale_output": True,
        },
    ),
    "small": (8_000, {"d_model": 256, **both(layers=3, ffn=1024, heads=4)}),
    "tiny": (200, {"d_model": 32, **both(layers=1, ffn=64, heads=2)}),
}


@dataclass(frozen=True)
class Workload:
    """Sentences to decode.

    Attributes:
        lines: The sentences as the model reads them.
        limits: Longest output of each, tokens with eos.
        forced: The output that each gets whatever the model says, eos included; None: the model decides.
        drafts: Drafts of each output, for strategies that read drafts; None: none are given.
        prefixes: Forced beginning of each output; None: none are given.
        truncate: Cut sentences too long for the model, instead of refusing them.
    """

    lines: tuple[str, ...]
    limits: tuple[int, ...]
    forced: tuple[str, ...] | None = None
    drafts: tuple[tuple[str, ...], ...] | None = None
    prefixes: tuple[str, ...] | None = None
    truncate: bool = False

    def part(self, start: int, end: int) -> Workload:
        """The sentences from `start` up to `end`."""
        names = ("lines", "limits", "forced", "drafts", "prefixes")
        columns = {name: getattr(self, name) for name in names}
        return replace(self, **{name: each[start:end] for name, each in columns.items() if each is not None})

    @classmethod
    def from_dict(cls, values: JsonObject) -> Workload:
        """Reads what `dataclasses.asdict` and JSON made of a job."""
        tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        if "drafts" in tuples:
            tuples["drafts"] = tuple(map(tuple, tuples["drafts"]))
        return cls(**(values | tuples))


def save_random_model(folder: Path, size: str, *, seed: int, name: str = "transformer") -> None:
    """Writes a model of a size of `RANDOM` with random weights; its words are w0, w1 and so on.

    Args:
        name: Its architecture; of a length that it predicts, the source's own is by far the likeliest.
    """
    import torch

    words, shape = RANDOM[size]
    vocab = Vocab.from_words([f"w{i}" for i in range(words - len(SPECIALS))])
    found = architecture(name)
    config = found.config(src_vocab=words, tgt_vocab=words, dropout=0.0, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tensors = found.network(config).state_dict()
    if _LENGTHS in tensors:
        tensors[_LENGTHS][len(tensors[_LENGTHS]) // 2] = _SURE
    save_checkpoint(
        folder,
        architecture=name,
        settings=asdict(config),
        tensors=tensors,
        source_vocab=vocab,
        target_vocab=vocab,
        card=f"# A random {size} {name}, for measurements of speed\n",
    )


def random_job(
    size: str, *, sentences: int, source_len: int, edits: int | None, seed: int, limit: int
) -> Workload:
    """Random sentences of `source_len` words for a model of `save_random_model`.

    Args:
        edits: Forces as output the source with so many words replaced: every engine makes as many tokens, and
            a drafter meets a known number of rejections. None: the model decides, up to `limit` tokens.
    """
    rng = random.Random(f"{seed}.{source_len}")
    words = RANDOM[size][0] - len(SPECIALS)
    sources = [[rng.randrange(words) for _ in range(source_len)] for _ in range(sentences)]
    lines = tuple(_text(source) for source in sources)
    if edits is None:
        return Workload(lines, (limit,) * sentences)
    forced = []
    for source in sources:
        output = list(source)
        for position in rng.sample(range(source_len), edits):
            output[position] = (output[position] + rng.randrange(1, words)) % words
        forced.append(f"{_text(output)} {SPECIALS[2]}")
    return Workload(lines, (source_len + 1,) * sentences, tuple(forced))


def _text(words: Sequence[int]) -> str:
    return " ".join(f"w{word}" for word in words)
