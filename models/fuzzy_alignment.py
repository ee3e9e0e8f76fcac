"""The fuzzy alignment of a DA-Transformer's graph with a target: n-grams that both have (Ma et al. 2023).

"Fuzzy Alignments in Directed Acyclic Graph for Non-Autoregressive Machine Translation",
https://arxiv.org/abs/2303.06662. All paths are aligned with the target at once: what counts is how often
the graph outputs the target's n-grams, wherever they are, so that no vertex is bound to a token.
Symbols: B rows, T target tokens with bos and eos, L vertices, N n-grams of a target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FuzzyAlignment:
    """Match of graphs and targets.

    Attributes:
        score: [B] in 0 to 1, `precision` times the brevity penalty: what training maximises.
        precision: [B], the expected n-grams that the target has too, over all expected n-grams.
        length_ratio: [B], expected tokens of the output over those of the target.
    """

    score: Tensor
    precision: Tensor
    length_ratio: Tensor


def fuzzy_alignment(
    match: Tensor, links: Tensor, target: Tensor, counts: Tensor, order: int
) -> FuzzyAlignment:
    """The share of the n-grams of a graph's outputs that a target has, in expectation.

    Outputs are drawn as the model predicts them: a path by its links, a token at each of its vertices. An
    n-gram of the target counts at most as often as there. The expectation is in closed form: a
    vertex is passed with a probability that sums over all ways to it, and an n-gram is a product of links
    and tokens behind it. Gradients reach `match` and `links`.

    It equals the authors' program (https://github.com/ictnlp/FA-DAT) in all but this: the probability of
    passing is the solution of a triangular system, in place of a loop over vertices, and the n-grams are read
    from `match`, in place of the probabilities of all words.

    Args:
        match: [B,T,L], log-probability of target token t at vertex j; minus infinity where a graph has ended.
        links: [B,L,L], log-probability of the step from vertex i to vertex j, minus infinity where there is
            none. A path begins at vertex 0.
        target: [B,T] int64 with bos and eos, and padding behind.
        counts: [B] tokens of it, at least `order`.
        order: The n-grams' length, at least 1.
    """
    ngrams = target.shape[1] - order + 1
    first, times = _distinct(target, counts, order)
    with torch.autocast(match.device.type, enabled=False):
        edges, words = links.exp(), match.exp()
        passed = passing_probability(edges)  # [B,L]
        found = passed[:, None] * words[:, :ngrams]  # [B,N,L]: an output has the first token, at vertex j
        every = passed[:, None]  # [B,1,L]: has any token there
        for token in range(1, order):
            found = (found @ edges) * words[:, token : token + ngrams]
            every = every @ edges
        matched = torch.minimum(found.sum(2), times.to(found.dtype)).masked_fill(~first, 0.0).sum(1)
        precision = matched / every.sum((1, 2))
        length_ratio = passed.sum(1) / counts
        brevity = torch.exp(1.0 - 1.0 / length_ratio).clamp(max=1.0)
    return FuzzyAlignment(precision * brevity, precision, length_ratio)


def passing_probability(edges: Tensor) -> Tensor:
    """The probability that a path visits each vertex -> [B,L]; edges [B,L,L], the probabilities of links.

    ``passed[j] = sum over i of passed[i] edges[i,j]``, ``passed[0] = 1``.
    """
    start = torch.zeros_like(edges[:, :1])
    start[:, :, 0] = 1.0
    # p = s + p E, so p (1 - E) = s, with E above the diagonal. All terms are positive: nothing cancels.
    own = torch.eye(edges.shape[1], dtype=edges.dtype, device=edges.device)
    solved: Tensor = torch.linalg.solve_triangular(
        own - edges, start, upper=True, left=False, unitriangular=True
    )
    return solved[:, 0]


def _distinct(target: Tensor, counts: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Marks the first of each distinct n-gram [B,N] of a target, and counts how often it has each [B,N]."""
    grams = target.unfold(1, order, 1)  # [B,N,order]
    inside = torch.arange(grams.shape[1], device=target.device) < (counts - order + 1)[:, None]
    same = (grams[:, :, None] == grams[:, None]).all(3) & inside[:, None] & inside[:, :, None]  # [B,N,N]
    return inside & ~same.tril(-1).any(2), same.sum(2)
