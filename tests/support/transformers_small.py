"""Small random Transformers for the tests, and a drafter that knows what greedy search will say."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from nartk.decoders.tensor_loop import Draft, DraftAndVerify, Drafter
from nartk.guarantee import IDENTICAL
from nartk.hypothesis import Request
from nartk.models.transformer import Transformer, TransformerConfig
from nartk.scorer import Seq2SeqScorer, Source
from nartk.vocab import Vocab
from support.scripted import same_words

PAD, EOS = 1, 2

M = TypeVar("M", bound=torch.nn.Module)


def vocabulary(size: int) -> Vocab:
    return Vocab.from_words([f"w{i}" for i in range(size - 4)])


def random_config(rng: random.Random) -> TransformerConfig:
    """A small model of any shape, odd sizes among them."""
    heads = rng.choice([1, 2, 4])
    words = rng.randint(12, 90)
    share = rng.choice(["all", "decoder", "none"])
    return TransformerConfig(
        src_vocab=words,
        tgt_vocab=words,
        d_model=heads * rng.choice([8, 9, 16, 20, 32]),
        encoder_layers=rng.choice([1, 1, 2]),
        decoder_layers=rng.choice([1, 1, 2]),
        encoder_ffn=rng.choice([16, 50, 64]),
        decoder_ffn=rng.choice([16, 50, 96]),
        encoder_heads=heads,
        decoder_heads=heads,
        encoder_norm_first=rng.random() < 0.5,
        decoder_norm_first=rng.random() < 0.5,
        activation=rng.choice(["relu", "gelu"]),
        encoder_positions=rng.choice(["sinusoidal", "learned", "none"]),
        decoder_positions=rng.choice(["sinusoidal", "learned"]),
        max_source_len=128,
        max_target_len=128,
        share_embeddings=share,
        norm_embedding=rng.random() < 0.3,
    )


def random_model(config: TransformerConfig, seed: int) -> Transformer:
    """Random weights that make the next word depend on all that was said, not on the last word alone."""
    torch.manual_seed(seed)
    return stir(Transformer(config).eval())


def stir(model: M) -> M:
    """Makes a model's weights, in place, such that what it says depends on everything it reads."""
    with torch.no_grad():
        for name, weight in in_order(model):
            if "layers" in name and weight.dim() == 2:
                weight.mul_(3.0)
            elif name.endswith("bias"):
                weight.normal_(std=0.1)
    return model


def padded(rows: Sequence[Sequence[int]], *, left: bool = False) -> Tensor:
    """[B,S] of rows of different lengths, padded on the right, or on the left as fairseq's sources are."""
    width = max(map(len, rows))
    gaps = ([PAD] * (width - len(row)) for row in rows)
    pairs = zip(rows, gaps, strict=True)
    return torch.tensor([[*gap, *row] if left else [*row, *gap] for row, gap in pairs])


def random_requests(
    rng: random.Random, count: int, words: int, *, longest: int = 30, limits: Sequence[int] = (6,)
) -> list[Request]:
    return [
        Request(
            index,
            (*(rng.randrange(4, words) for _ in range(rng.randint(0, longest))), EOS),
            rng.choice(limits),
        )
        for index in range(count)
    ]


@dataclasses.dataclass(frozen=True)
class KnownState:
    known: Tensor  # [B,T] what will be said


@dataclasses.dataclass(frozen=True)
class Knowing(Drafter):
    """Drafts what greedy search will say, of random length, with some tokens spoilt."""

    answers: Mapping[tuple[int, ...], Sequence[int]]
    words: int
    longest: int
    spoilt: float
    generator: torch.Generator

    def start(self, source: Source, requests: Sequence[Request]) -> KnownState:
        words, lengths = same_words(source)
        rows = zip(words.tolist(), lengths.tolist(), strict=True)
        answers = [self.answers[tuple(tokens[:size])] for tokens, size in rows]
        width = max(map(len, answers)) + self.longest
        return KnownState(
            torch.tensor([[*a, *[-1] * (width - len(a))] for a in answers], device=lengths.device)
        )

    def draft(
        self, state: KnownState, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, KnownState]:
        batch = len(lengths)
        index = lengths[:, None] + torch.arange(self.longest, device=lengths.device)
        tokens = state.known.gather(1, index.clamp(max=state.known.shape[1] - 1))
        wrong = torch.rand(batch, self.longest, generator=self.generator).to(lengths.device) < self.spoilt
        noise = torch.randint(self.words, (batch, self.longest), generator=self.generator).to(lengths.device)
        counts = torch.randint(self.longest + 1, (batch,), generator=self.generator).to(lengths.device)
        return Draft(torch.where(wrong, noise, tokens), counts), state


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftsWhatIsKnown(DraftAndVerify):
    """A lossless strategy whose drafts are accepted in parts of any length."""

    promise = IDENTICAL
    name = "knowing"

    answers: Mapping[tuple[int, ...], Sequence[int]]
    words: int
    longest: int
    spoilt: float = 0.2
    seed: int = 0

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        generator = torch.Generator().manual_seed(self.seed)
        return Knowing(self.answers, self.words, self.longest, self.spoilt, generator)
