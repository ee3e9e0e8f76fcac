"""What the decoders of graphs share: walks over chosen edges, and the outputs that paths spell.

A path's words are said between vertex 0, whose bos is no part of the output, and the last vertex, which says
eos. A score is the log-probability of a path and of what it says: of each edge, and of each word after bos.
Symbols: B rows, R paths (some of each row), N vertices in all, L graph vertices, P vertices of a path,
V words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nartk.decoders.native import Found
from nartk.scorer import Graph, GraphScorer
from nartk.sums import tree_sum

_CHUNK = 256  # vertices whose log-probabilities of all words exist at a time


@dataclass(frozen=True)
class Paths:
    """Paths from vertex 0 to the last; R is a multiple of B, and those of a row stand together.

    Attributes:
        vertices: [R,P] int64; after its end a path stays at the last vertex.
        counts: [R] int64, how many vertices are visited.
    """

    vertices: Tensor
    counts: Tensor

    def inside(self) -> tuple[Tensor, Tensor]:
        """Paths and places [N] of the vertices between the first and the last: those that say words."""
        places = torch.arange(self.vertices.shape[1], device=self.vertices.device)
        rows, at = ((places > 0) & (places < self.counts[:, None] - 1)).nonzero().unbind(1)
        return rows, at


def walk(following: Tensor, lengths: Tensor) -> Paths:
    """Follows the chosen edges, following [R,L] being each vertex's next, in graphs of lengths [R].

    What does not lead to a later vertex is taken for the next one, so that every walk ends. Each round
    doubles what is known of the paths: log L rounds.
    """
    width, last = following.shape[1], lengths[:, None] - 1
    later = torch.arange(1, width + 1, device=following.device)
    jump = torch.minimum(torch.maximum(following, later), last)
    vertices = torch.zeros_like(following[:, :1])
    while vertices.shape[1] < width:
        vertices = torch.cat([vertices, jump.gather(1, vertices)], 1)
        jump = jump.gather(1, jump)
    counts = (vertices < last).sum(1) + 1
    return Paths(vertices[:, : int(counts.max())], counts)


def choose_words(
    scorer: GraphScorer, hidden: Tensor, choose: Callable[..., Tensor], *beside: Tensor
) -> tuple[Tensor, Tensor]:
    """A word for each of the vertices [N,D] inside a path, or C words, and their log-probabilities.

    Args:
        choose: The words [N] or [N,C] for log-probabilities [N,V] fp32, minus infinity for bos, pad and eos,
            which stand in no output, and for the rows of what is given `beside` [N,...].

    Returns:
        Words int64 and log-probabilities fp32, [N] or [N,C] as `choose` gives them.
    """
    silent = [scorer.vocab.bos, scorer.vocab.pad, scorer.vocab.eos]
    words, scores = [], []
    for some, *rest in zip(*(x.split(_CHUNK) for x in (hidden, *beside)), strict=True):
        lprobs = scorer.words(some).float().log_softmax(-1)
        lprobs[:, silent] = float("-inf")
        chosen = choose(lprobs, *rest)
        words.append(chosen)
        scores.append(lprobs.gather(1, chosen if chosen.dim() == 2 else chosen[:, None]).view_as(chosen))
    return torch.cat(words), torch.cat(scores)


def likeliest(lprobs: Tensor) -> Tensor:
    """The likeliest [...] of log-probabilities [...,V]."""
    return lprobs.max(-1).indices  # several times as fast as argmax on a CPU


def score_ends(scorer: GraphScorer, graph: Graph) -> Tensor:
    """The log-probability [B] fp32 of eos at the last vertex."""
    rows = torch.arange(len(graph.lengths), device=graph.lengths.device)
    logits = scorer.words(graph.hidden[rows, graph.lengths - 1])
    return logits.float().log_softmax(-1)[:, scorer.vocab.eos]


def spell(
    graph: Graph,
    paths: Paths,
    words: Tensor,
    scores: Tensor,
    ends: Tensor,
    *,
    eos: int,
    merge_repeats: bool,
) -> Found:
    """The outputs of paths with the words that are said inside them, the best of each row first.

    Args:
        words, scores: [N] the words at `paths.inside()`, and their log-probabilities.
        ends: [B] log-probability of eos at the last vertex.
        merge_repeats: Whether equal words that follow each other are output as one, with the sum of their
            scores.
    """
    batch, device = graph.links.shape[0], graph.links.device
    count, width = paths.vertices.shape
    rows = torch.arange(count, device=device)
    graphs = rows // (count // batch)
    inner = paths.inside()
    tokens = paths.vertices.new_full((count, width), eos)
    tokens[inner] = words
    said = scores.new_zeros(count, width)
    said[inner] = scores
    said[rows, paths.counts - 1] = ends[graphs]
    edges = graph.links[graphs[:, None], paths.vertices[:, :-1], paths.vertices[:, 1:]]
    lengths = paths.counts - 1
    kept = torch.arange(width - 1, device=device) < lengths[:, None]
    tokens = tokens[:, 1:]
    positional = torch.where(kept, edges + said[:, 1:], 0.0)
    totals = tree_sum(positional)
    if merge_repeats:
        tokens, positional, lengths = _merge(tokens, positional, kept)
    order = totals.view(batch, -1).argsort(dim=1, descending=True, stable=True)  # [R] -> [B,R/B]
    order = order + torch.arange(batch, device=device)[:, None] * order.shape[1]
    return Found(tokens[order], lengths[order], totals[order], positional[order])


def _merge(tokens: Tensor, scores: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and scores [R,T], of which `kept` [R,T] counts, with runs as one: the same, and lengths [R]."""
    new = kept.clone()
    new[:, 1:] &= tokens[:, 1:] != tokens[:, :-1]
    rows, at = kept.nonzero().unbind(1)
    places = (rows, (new.cumsum(1) - 1)[rows, at])
    merged = torch.zeros_like(scores).index_put(places, scores[rows, at], accumulate=True)
    return tokens.index_put(places, tokens[rows, at]), merged, new.sum(1)
