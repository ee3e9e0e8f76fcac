"""Losses that train a drafter for its verifier, and measures of how well they agree.

Divergences between the verifier's distribution p and the drafter's q at each word, as DistillSpec compares
them (Zhou et al. 2023, "DistillSpec: Improving Speculative Decoding via Knowledge Distillation",
https://arxiv.org/abs/2310.08461), and TVD++ (Goel et al. 2024, "Direct Alignment of Draft Model for
Speculative Decoding with Chat-Fine-Tuned LLMs", https://arxiv.org/abs/2403.00858). That paper writes q for
the verifier and p for the drafter; here p and q are as in the first one.
Symbols: N words, B rows, T target positions, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.nar import wide

Divergence = Callable[[Tensor, Tensor, float], Tensor]


def kl(logits: Tensor, verifier_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(p, q): the sum over words of p log(p / q), nats; DistillSpec's forward KL.

    Args:
        logits: [N,V] the drafter's, any float type; computed in fp32 or wider.
        verifier_logits: [N,V], no gradient.
        temperature: Divides both logits. Nothing is multiplied by its square: that is up to the weight.

    Returns:
        The sum over the N words, as of all divergences here.
    """
    theirs = _lprobs(verifier_logits.detach(), temperature)
    return F.kl_div(_lprobs(logits, temperature), theirs, reduction="sum", log_target=True)


def reverse_kl(logits: Tensor, verifier_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(q, p): the sum over words of q log(q / p), nats. Arguments as of `kl`."""
    theirs = _lprobs(verifier_logits.detach(), temperature)
    return F.kl_div(theirs, _lprobs(logits, temperature), reduction="sum", log_target=True)


def tvd(logits: Tensor, verifier_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Total variation distance: half the sum of abs(p - q), the share of sampled drafts that is rejected.

    Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, corollary 3.6. Arguments as of `kl`.
    """
    ours, theirs = _probs(logits, temperature), _probs(verifier_logits.detach(), temperature)
    return 0.5 * (ours - theirs).abs().sum()


def tvd_plus_plus(logits: Tensor, verifier_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """`tvd`, with the gradient of Goel et al.: that of a policy whose rewards are normalised.

    The gradient of `tvd` is the expectation over X ~ q of -r(X) grad log q(X), with the reward r(x) = 1 where
    p(x) > q(x), else 0: a policy gradient. TVD++ takes (r(X) - mean) / deviation for r(X), over the batch.
    Here the expectation is not sampled but summed over all words, and the mean and the deviation are those of
    r under q, over the N words. In such a sum the mean changes nothing, and what is left is the deviation:
    the smaller the share of the drafter's mass that could do with more, the larger the step.
    Where no word has a reward (or all have) the gradient is 0. Arguments as of `kl`.
    """
    ours, theirs = _probs(logits, temperature), _probs(verifier_logits.detach(), temperature)
    q = ours.detach()
    reward = (theirs > q).to(q.dtype)
    mean = (q * reward).sum() / max(1, q.shape[0])
    deviation = (mean * (1.0 - mean)).sqrt()  # of what is 0 or 1
    advantage = (reward - mean) / deviation.clamp(min=torch.finfo(q.dtype).eps)
    policy = -(ours * advantage).sum()
    # The value of `policy` says nothing: it is 0, whatever the drafter.
    return 0.5 * (q - theirs).abs().sum() + (policy - policy.detach())


DIVERGENCES: Mapping[str, Divergence] = {
    "kl": kl,
    "reverse-kl": reverse_kl,
    "tvd": tvd,
    "tvd++": tvd_plus_plus,
}


def _lprobs(logits: Tensor, temperature: float) -> Tensor:
    return F.log_softmax(wide(logits) / temperature, -1)


def _probs(logits: Tensor, temperature: float) -> Tensor:
    return F.softmax(wide(logits) / temperature, -1)


def tokens_a_pass(agree: Tensor, lengths: Tensor, block: int) -> Tensor:
    """Number of tokens that a pass of greedy verification gives from each position: [B,T] int64.

    These are the run of positions from there on where drafter and verifier agree, at most `block`, and the
    verifier's own token behind it, if the sentence does not end before. 0 behind a sentence's end.

    Args:
        agree: [B,T] bool, whether the drafter's best word is the verifier's.
        lengths: [B] tokens of each sentence, eos included.
    """
    columns = torch.arange(agree.shape[1], device=agree.device)
    missed = torch.where(agree, agree.shape[1], columns)
    run = missed.flip(1).cummin(1).values.flip(1) - columns
    return (run.clamp(max=block) + 1).minimum(lengths[:, None] - columns).clamp(min=0)
