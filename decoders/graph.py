"""What the decoders of graphs share: walks over chosen edges, and the outputs that paths spell.

A path's words are said between vertex 0, whose bos is no part of the output, and the last vertex, which says
eos. A score is the log-probability of a path and of what it says: of each edge, and of each word after bos.
Symbols: B rows, R paths (some of each row), N vertices in all, L graph vertices, P vertices of a path,
V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nartk.decoders.tensor_native import Found
from nartk.hypothesis import GraphTrace
from nartk.rows import steps, these
from nartk.scorer import Graph, GraphScorer
from nartk.sums import tree_sum

_CHUNK = 256  # vertices whose log-probabilities of all words exist at a time

# What a trace shows of a graph: enough to see where else its path might have gone.
_SHOWN_VERTICES = 96  # beside the path's
_SHOWN_REACH = 0.01  # probability that a path drawn from the edges comes to the vertex
_SHOWN_WORDS = 3  # of a vertex
_SHOWN_LINK = 0.05  # probability of an edge, beside the path's; so a vertex has at most 20


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
    jump = _onward(following, last)
    vertices = torch.zeros_like(following[:, :1])
    while vertices.shape[1] < width:
        vertices = torch.cat([vertices, jump.gather(1, vertices)], 1)
        jump = jump.gather(1, jump)
    counts = (vertices < last).sum(1) + 1
    return Paths(vertices[:, : int(counts.max())], counts)


def walk_everywhere(following: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The first steps of the walks from all vertices, as `walk` goes: [R,L,count+1], each its start first.

    Those that have ended stay at the last vertex, and those from beyond it go there.
    """
    rows, width = following.shape
    jump = _onward(following, lengths[:, None] - 1)
    vertices, known = steps(width, following.device).expand(rows, -1), 1
    while known <= count:
        vertices = torch.cat([vertices, jump.gather(1, vertices)], 1)  # [R,known*L]
        known *= 2
        if known <= count:
            jump = jump.gather(1, jump)
    return vertices.view(rows, known, width)[:, : count + 1].transpose(1, 2)


def _onward(following: Tensor, last: Tensor) -> Tensor:
    """The vertices [R,L] that walks come to next, none behind the last [R,1]."""
    later = steps(following.shape[1] + 1, following.device)[1:]
    return torch.minimum(torch.maximum(following, later), last)


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
    silent = these((scorer.vocab.bos, scorer.vocab.pad, scorer.vocab.eos), hidden.device)
    words, scores = [], []
    for some, *rest in zip(*(x.split(_CHUNK) for x in (hidden, *beside)), strict=True):
        lprobs = scorer.words(some).float().log_softmax(-1).index_fill_(1, silent, float("-inf"))
        chosen = choose(lprobs, *rest)
        words.append(chosen)
        scores.append(lprobs.gather(1, chosen if chosen.dim() == 2 else chosen[:, None]).view_as(chosen))
    return (words[0], scores[0]) if len(words) == 1 else (torch.cat(words), torch.cat(scores))


def likeliest(lprobs: Tensor) -> Tensor:
    """The likeliest [...] of log-probabilities [...,V]."""
    return lprobs.max(-1).indices  # several times as fast as argmax on a CPU


def score_ends(scorer: GraphScorer, graph: Graph) -> Tensor:
    """The log-probability [B] fp32 of eos at the last vertex."""
    rows = steps(len(graph.lengths), graph.lengths.device)
    logits = scorer.words(graph.hidden[rows, graph.lengths - 1])
    return logits.float().log_softmax(-1)[:, scorer.vocab.eos]


@dataclass(frozen=True, kw_only=True)
class FoundInGraph(Found):
    """Outputs, and the graphs that they were found in.

    Attributes:
        graph: The graphs.
        walked: The B paths of the best outputs, and the word [B,P] int64 at each of their vertices; None
            where all paths count together.
    """

    graph: Graph
    walked: tuple[Paths, Tensor] | None = None

    def graphs(self, scorer: GraphScorer) -> Sequence[GraphTrace | None]:
        """The likelier part of each graph, with the best output's path."""
        graph, sizes = self.graph, self.graph.lengths.tolist()
        walked: list[tuple[list[int], list[int]]] = [([], []) for _ in sizes]
        if self.walked is not None:
            paths, words_said = self.walked
            rows = zip(paths.vertices.tolist(), words_said.tolist(), paths.counts.tolist(), strict=True)
            walked = [(vertices[:count], said[1:count]) for vertices, said, count in rows]
        kept = [
            _shown(row[:size], path)
            for row, size, (path, _) in zip(reach(graph.links).tolist(), sizes, walked, strict=True)
        ]
        words = _likeliest_words(scorer, graph, kept)
        return [
            GraphTrace(
                size,
                tuple(vertices),
                tuple(said_there),
                _shown_links(links, vertices, path),
                tuple(path),
                tuple(said),
            )
            for size, vertices, said_there, links, (path, said) in zip(
                sizes, kept, words, graph.links, walked, strict=True
            )
        ]


def reach(links: Tensor) -> Tensor:
    """The probability [B,L] fp32 that a path drawn from the edges [B,L,L] comes to each vertex."""
    # r = e_0 + r P, P being strictly upper triangular: solved by substitution.
    start = torch.zeros_like(links[:, :, :1])
    start[:, 0] = 1.0
    return torch.linalg.solve_triangular(-links.exp().mT, start, upper=False, unitriangular=True).squeeze(2)


def _shown(reached: list[float], path: list[int]) -> list[int]:
    """The vertices of a graph that a trace shows, ascending."""
    often = sorted(range(len(reached)), key=lambda vertex: (-reached[vertex], vertex))[:_SHOWN_VERTICES]
    ends = {0, len(reached) - 1}
    return sorted({*path, *ends, *(vertex for vertex in often if reached[vertex] >= _SHOWN_REACH)})


def _likeliest_words(
    scorer: GraphScorer, graph: Graph, kept: list[list[int]]
) -> list[list[tuple[tuple[int, float], ...]]]:
    """Of each kept vertex of each graph the likeliest words; none at vertex 0, eos at the last."""
    device = graph.links.device
    inner = [(row, vertex) for row, vertices in enumerate(kept) for vertex in vertices[1:-1]]
    rows, places = torch.tensor(inner, dtype=torch.int64, device=device).view(-1, 2).unbind(1)
    count = min(_SHOWN_WORDS, len(scorer.vocab))
    ends = score_ends(scorer, graph).tolist()
    said: list[tuple[tuple[int, float], ...]] = []
    if inner:
        words, scores = choose_words(
            scorer, graph.hidden[rows, places], lambda lprobs: lprobs.topk(count, -1).indices
        )
        pairs = zip(words.tolist(), scores.tolist(), strict=True)
        said = [tuple((w, s) for w, s in zip(*pair, strict=True) if s > float("-inf")) for pair in pairs]
    each = iter(said)
    return [
        [(), *(next(each) for _ in vertices[1:-1]), ((scorer.vocab.eos, end),)]
        for vertices, end in zip(kept, ends, strict=True)
    ]


def _shown_links(links: Tensor, vertices: list[int], path: list[int]) -> tuple[tuple[int, int, float], ...]:
    """The edges [L,L] between vertices that a trace shows: the likely ones, and those of the path."""
    among = torch.tensor(vertices, device=links.device)
    lprobs = links[among[:, None], among].tolist()
    taken = set(pairwise(path))
    return tuple(
        (a, b, lprob)
        for a, row in zip(vertices, lprobs, strict=True)
        for b, lprob in zip(vertices, row, strict=True)
        if lprob >= math.log(_SHOWN_LINK) or ((a, b) in taken and lprob > float("-inf"))
    )


def spell(
    graph: Graph,
    paths: Paths,
    words: Tensor,
    scores: Tensor,
    ends: Tensor,
    *,
    eos: int,
    merge_repeats: bool,
) -> FoundInGraph:
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
    spoken, tokens = tokens, tokens[:, 1:]
    positional = torch.where(kept, edges + said[:, 1:], 0.0)
    totals = tree_sum(positional)
    if merge_repeats:
        tokens, positional, lengths = _merge(tokens, positional, kept)
    order = totals.view(batch, -1).argsort(dim=1, descending=True, stable=True)  # [R] -> [B,R/B]
    order = order + torch.arange(batch, device=device)[:, None] * order.shape[1]
    best = order[:, 0]
    return FoundInGraph(
        tokens[order],
        lengths[order],
        totals[order],
        positional[order],
        graph=graph,
        walked=(Paths(paths.vertices[best], paths.counts[best]), spoken[best]),
    )


def _merge(tokens: Tensor, scores: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and scores [R,T], of which `kept` [R,T] counts, with runs as one: the same, and lengths [R]."""
    new = kept.clone()
    new[:, 1:] &= tokens[:, 1:] != tokens[:, :-1]
    rows, at = kept.nonzero().unbind(1)
    places = (rows, (new.cumsum(1) - 1)[rows, at])
    merged = torch.zeros_like(scores).index_put(places, scores[rows, at], accumulate=True)
    return tokens.index_put(places, tokens[rows, at]), merged, new.sum(1)
