"""Toy scorers and networks whose scores do not tie, for strategies that add scores up or draw from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nartk.models.transformer import Transformer, TransformerConfig
from support.scripted import TableScorer

BOS, PAD, EOS, UNK = 0, 1, 2, 3


class RealTable(TableScorer):
    """A table whose scores are no small integers, so that sums hardly ever tie."""

    def __init__(self, words: int, *, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(words, seed=seed, spread=2**16, bonus=0, patience=0, device=device)

    def scores(self, *state: Tensor) -> Tensor:
        return super().scores(*state) / 2**13  # 0 to 8


def log_probs(table: RealTable, source: Sequence[int], prefix: Sequence[int]) -> list[float]:
    scores = [score / 2**13 for score in table.scores_by_hand(source, [EOS, *prefix])]
    total = math.log(sum(math.exp(score) for score in scores))
    return [score - total for score in scores]


def random_transformer(seed: int, words: int) -> Transformer:
    """A random model that ends its outputs, and never says pad, bos or unk."""
    config = TransformerConfig(
        src_vocab=words,
        tgt_vocab=words,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn=48,
        decoder_ffn=48,
        encoder_heads=2,
        decoder_heads=2,
        share_embeddings="none",
        dropout=0.0,
        max_source_len=64,
        max_target_len=64,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(config).eval()
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(3.0)
        # What the norm gives has mean 0; with a bias of 1, the mean of an output row is a bias of its word.
        assert model.decoder.norm is not None
        model.decoder.norm.bias.fill_(1.0)
        rows = model.output.weight
        rows -= rows.mean(1, keepdim=True)
        bias = torch.zeros(words)
        bias[[BOS, PAD, UNK]], bias[EOS] = -100.0, 4.0
        rows += bias[:, None] / config.d_model
    return model
