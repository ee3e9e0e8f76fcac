"""Scores the outputs of one model with another, over tensors: noisy parallel decoding (Gu et al. 2018).

Symbols: R outputs, B sources, T tokens, V words.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nartk.decoders.tensor_loop import log_probs
from nartk.errors import StrategyMismatchError
from nartk.scorer import Seq2SeqScorer, Source
from nartk.sums import tree_sum

_LENGTHS = 32  # outputs are scored together whose lengths round up to the same multiple of this, tokens
_ELEMENTS = 1 << 26  # logits at a time, at most


def require_reranker(scorer: Any, flag: str) -> None:
    """Refuses a model that cannot score a given output, before anything is decoded."""
    if not isinstance(scorer, Seq2SeqScorer):
        raise StrategyMismatchError(
            f"{flag} needs a Seq2SeqScorer, the model it names is none", fix="name an autoregressive model"
        )


@torch.inference_mode()
def teacher_forced(
    scorer: Seq2SeqScorer, source: Source, rows: Tensor, tokens: Tensor, lengths: Tensor
) -> Tensor:
    """The log-probability that an autoregressive model gives to each token of given outputs -> [R,T] fp32.

    An output's bits depend on it and its source alone, if the scorer is in exact mode.

    Args:
        source: [B,S], of one bucket.
        rows: [R] int64, the source of each output, in ascending order.
        tokens: [R,T] int64, eos included, of which lengths [R] count; the others get 0.
    """
    found = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    eos = torch.full_like(tokens[:, :1], scorer.vocab.eos)  # fairseq's models begin with eos
    given = torch.cat([eos, tokens[:, :-1]], 1)
    widths = -(-lengths // _LENGTHS) * _LENGTHS
    for width in widths.unique().tolist():
        group = (widths == width).nonzero().squeeze(1)
        most = max(1, _ELEMENTS // (width * scorer.vocab.size))
        for some in group.split(most):
            owners, place = rows[some].unique(return_inverse=True)
            state = scorer.encode(Source(source.tokens[owners], source.lengths[owners]), width)
            count = lengths[some]
            longest = int(count.max())
            logits, _ = scorer.verify(
                given[some, :longest], scorer.select(state, place), count.tolist()
            )  # [N,V]
            kept = torch.arange(longest, device=tokens.device) < count[:, None]
            scores = found.new_zeros(kept.shape)
            scores[kept] = log_probs(logits, tokens[some, :longest][kept])
            found[some, :longest] = scores
    return found


def mean_of(scores: Tensor, lengths: Tensor) -> Tensor:
    """The mean of the first lengths [R] of scores [R,T], of which the others are 0 -> [R]."""
    return tree_sum(scores) / lengths
