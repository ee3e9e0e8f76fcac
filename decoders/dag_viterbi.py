"""Viterbi decoding of a DA-Transformer's graph (Shao et al. 2022, arXiv:2210.05193).

Symbols: B rows, L graph vertices, T tokens of the longest path, P vertices of a path. A path of t tokens has
t edges: one to each vertex that says a word, and one to the last, which says eos.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nartk.decoders.dag_paths import powers
from nartk.decoders.graph import Paths, choose_words, likeliest, score_ends, spell, walk
from nartk.decoders.tensor_native import Found, TensorNative
from nartk.guarantee import Guarantee, Promise
from nartk.registry import option, register_decoder
from nartk.scorer import GraphScorer, Source

_CHUNK = {"cpu": 2**19, "cuda": 2**28}  # sums that exist at a time: what a CPU's cache holds


@dataclass(frozen=True, kw_only=True)
class Viterbi(TensorNative):
    """Base of both Viterbi decoders."""

    needs = GraphScorer

    beta: float = option(
        1.0, "log-probabilities are divided by length ** this; more favours long outputs", low=0, high=10
    )
    merge_repeats: bool = option(False, "output equal words that follow each other as one")


@register_decoder("dag-viterbi")
class DagViterbi(Viterbi):
    """Takes the path that is likeliest for its length, and then the likeliest word at each of its vertices.

    Of all paths A of at most `limit` tokens, the one with the largest log P(A|X) / |A|^beta: of edges alone,
    so that words are asked for only on that path; `dag-joint-viterbi` weighs both together. |A| counts the
    tokens that the path says, eos included (the paper's code leaves eos out, and with it empty outputs).
    With beta 0 the likeliest path of any length wins, which is a short one.

    A score is the log-probability of the path and its words together, divided by |A|^beta; a token's, that
    of the edge to its vertex and of itself. Where no path is short enough, each vertex's likeliest edge is
    taken and the output is cut.
    """

    promise = Promise(Guarantee.APPROXIMATE, "the likeliest path, then the likeliest words on it")

    def search(self, scorer: GraphScorer, source: Source, limits: Tensor) -> Found:
        graph = scorer.emit(source)
        paths = best_paths(graph.links, graph.lengths, limits, self.beta)
        rows, at = paths.inside()
        words, scores = choose_words(scorer, graph.hidden[rows, paths.vertices[rows, at]], likeliest)
        ends = score_ends(scorer, graph)
        found = spell(
            graph, paths, words, scores, ends, eos=scorer.vocab.eos, merge_repeats=self.merge_repeats
        )
        return normalise(found, paths, self.beta)


def best_paths(edges: Tensor, lengths: Tensor, limits: Tensor, beta: float) -> Paths:
    """For each graph the path with the largest sum of its edges divided by their number ** beta.

    Args:
        edges: [B,L,L], minus infinity where there is none, as there is none to an earlier vertex.
        lengths: [B] int64, vertices of each graph.
        limits: [B] int64, the most edges of its path. Where no path has so few, or there is none at all,
            the best edge is followed from each vertex, as far as it takes.
        beta: At least 0.

    Of equals the shortest path wins, and of these the one with the lowest vertices, compared from the end.
    """
    width = edges.shape[1]
    steps = min(int(limits.max()), width - 1)
    forward = edges.new_full((len(edges), width, steps + 1), float("-inf"))
    rows = max(1, _CHUNK.get(edges.device.type, _CHUNK["cpu"]) // (width * (steps + 1)))
    for into, some in zip(forward.split(rows), edges.split(rows), strict=True):
        _advance(into, some)
    last = lengths[:, None] - 1
    ended = forward.gather(1, last[:, :, None].expand(-1, -1, steps + 1)).squeeze(1)  # [B,T+1]
    count = torch.arange(steps + 1, device=edges.device)
    ended = ended.masked_fill((count == 0) | (count > limits[:, None]), float("-inf"))
    # argmax promises the first of equals; what it says of a row without a path is replaced below.
    counts = (ended / powers(steps, beta, ended)).argmax(1)

    vertex = last.squeeze(1)
    vertices = [vertex]
    for t in range(steps, 0, -1):
        column = vertex[:, None, None].expand(-1, width, 1)
        led = (forward[:, :, t - 1] + edges.gather(2, column).squeeze(2)).argmax(1)
        vertex = torch.where(t <= counts, led, vertex)
        vertices.append(vertex)
    found = Paths(torch.stack(vertices[::-1], 1), counts + 1)

    impossible = (ended == float("-inf")).all(1)
    if bool(impossible.any()):
        found = _instead(found, impossible, walk(likeliest(edges), lengths))
    return replace(found, vertices=found.vertices[:, : int(found.counts.max())])


def _advance(forward: Tensor, edges: Tensor) -> None:
    """Fills forward [B,L,T+1] with the best sum of t edges from vertex 0 to each vertex."""
    forward[:, 0, 0] = 0.0
    for vertex in range(1, edges.shape[1]):
        most = min(vertex, forward.shape[2] - 1)
        sums = forward[:, :vertex, :most] + edges[:, :vertex, vertex, None]  # [B,vertices before,most]
        forward[:, vertex, 1 : most + 1] = sums.amax(1)


def normalise(found: Found, paths: Paths, beta: float) -> Found:
    """What was found on one path a row, its scores divided by the path's tokens ** beta."""
    penalties = powers(paths.vertices.shape[1], beta, found.scores)
    return replace(found, scores=found.scores / penalties[paths.counts - 1][:, None])


def _instead(paths: Paths, where: Tensor, other: Paths) -> Paths:
    """Paths, of which those marked in `where` [R] are the other's."""
    width = max(paths.vertices.shape[1], other.vertices.shape[1])
    first, second = (
        torch.cat([x.vertices, x.vertices[:, -1:].expand(-1, width - x.vertices.shape[1])], 1)
        for x in (paths, other)
    )
    return Paths(torch.where(where[:, None], second, first), torch.where(where, other.counts, paths.counts))
