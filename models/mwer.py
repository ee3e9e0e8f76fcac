"""Minimum word error rate training with negative samples (Gao et al. 2022, section 3.4).

https://arxiv.org/abs/2206.08317. The loss is what Prabhavalkar et al. 2018 (https://arxiv.org/abs/1712.01818)
sum over n-best lists: the errors that are expected of a few outputs, whose probabilities are made to sum
to 1, less their mean. A parallel model's greedy search has one output; others are made of it by masking the
best word at random positions, so that the second best is there. How many are masked, the paper leaves open:
here each position is, with a probability. The greedy output is one of the samples, and a sample drawn twice
counts once, so that the sum is over a set, as over an n-best list.

Symbols: B rows, K samples of each, N positions, U target tokens, V words, M outputs.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def mwer_loss(logits: Tensor, target: Tensor, *, pad: int, eos: int, samples: int, share: float) -> Tensor:
    """The expected word errors of samples less their mean, summed over rows; a word is a token.

    Args:
        logits: [B,N,V] of the target's positions, any float type; computed in fp32 or wider.
        target: [B,N] with eos, padded right.
        samples: K, the greedy output among them.
        share: Probability that a position's best word is masked in a sample, in (0, 1].
    """
    kept = target.ne(pad)
    top, words = logits.to(torch.promote_types(logits.dtype, torch.float32)).topk(2, -1)
    log_probs = (top - logits.logsumexp(-1, keepdim=True)).masked_fill(~kept[:, :, None], 0.0)
    masked = torch.rand(len(kept), samples, kept.shape[1], device=kept.device) < share
    masked[:, 0] = False
    masked &= kept[:, None]
    with torch.no_grad():
        outputs = torch.where(masked, words[:, None, :, 1], words[:, None, :, 0])
        ends = outputs.eq(eos) | ~kept[:, None]
        # Before the first eos; behind a whole row of words, everything.
        lengths = (ends.cumsum(2) == 0).sum(2)
        counts = (kept.sum(1) - 1).repeat_interleave(samples)
        errors = edit_distances(
            outputs.flatten(0, 1), lengths.flatten(), target.repeat_interleave(samples, 0), counts
        ).view(lengths.shape)
        drawn_before = (masked[:, :, None] == masked[:, None]).all(3).tril(-1).any(2)
    paths = torch.where(masked, log_probs[:, None, :, 1], log_probs[:, None, :, 0]).sum(2)
    return expected_errors(paths, errors, drawn_before).sum()


def expected_errors(log_probs: Tensor, errors: Tensor, left_out: Tensor) -> Tensor:
    """Sums the errors of a row's samples, less their mean, weighted by their share of the probability: [B].

    Args:
        log_probs: [B,K] of each sample; errors: [B,K] of each.
        left_out: [B,K] bool, samples that do not count; one of each row does.
    """
    shares = log_probs.masked_fill(left_out, -math.inf).softmax(1)
    counted = (~left_out).to(shares.dtype)
    mean = (errors * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True)
    return (shares * (errors - mean)).sum(1)


def edit_distances(outputs: Tensor, lengths: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """The Levenshtein distance of the first lengths [M] words of outputs to those of targets -> [M] int64.

    Args:
        outputs: [M,N].
        targets: [M,U], of which the first counts [M] are compared.
    """
    columns = torch.arange(targets.shape[1] + 1, device=targets.device)
    row = columns.expand(len(targets), -1)  # of the empty output to each beginning of the target
    for i in range(outputs.shape[1]):
        replaced = row[:, :-1] + (outputs[:, i : i + 1] != targets)
        best = torch.minimum(row + 1, F.pad(replaced, (1, 0), value=outputs.numel()))
        # A word that is missing costs 1 a column: the least of all columns before, plus the way from there.
        grown = (best - columns).cummin(1).values + columns
        row = torch.where(i < lengths[:, None], grown, row)
    return row.gather(1, counts[:, None]).squeeze(1)
