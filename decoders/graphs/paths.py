"""One path through each graph, and the words at its vertices; the base of the strategies that take it.

Symbols: B graphs, N vertices of all of them, L vertices of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nartk.decoders.graphs.graph import path_of, read_words, spell, walk
from nartk.decoders.graphs.trace import trace_graph
from nartk.decoders.native import Found, Native
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import GraphPath, Graphs, GraphScorer, PathScorer, PathSearch
from nartk.protocols.passes import FloatArray, IntArray
from nartk.registry import option


@dataclass(frozen=True, kw_only=True)
class OnePath(Native):
    """Base of the strategies that choose a path by its edges; here the likeliest edge from each vertex.

    A score is the log-probability of the path and its words together, divided by `penalty`; a token's, that
    of the edge to its vertex and of itself. The authors' program always merges repeats.
    """

    needs = GraphScorer
    weight = 0.0  # as in PathSearch

    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def wanted(self, limits: Sequence[int]) -> PathSearch:
        """The search for paths of limits [B]."""
        return PathSearch(limits, weight=self.weight)

    def choose(self, scorer: GraphScorer, graphs: Graphs, limits: Sequence[int]) -> list[GraphPath]:
        """The wanted path through each of B graphs, whose limits [B] are the most tokens of their outputs."""
        wanted = self.wanted(limits)
        if isinstance(scorer, PathScorer):
            return scorer.best_paths(graphs, wanted)
        return best_paths(scorer, graphs, wanted)

    def penalty(self, tokens: int) -> float:
        """Divisor of the score of a path of so many tokens."""
        return 1.0

    def search(self, scorer: GraphScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        graphs = scorer.graphs(memory)
        paths = self.choose(scorer, graphs, [request.max_len for request in requests])
        found = []
        for graph, path in zip(graphs, paths, strict=True):
            output = spell(path, merge_repeats=self.merge_repeats)
            output = replace(output, score=output.score / self.penalty(len(path.words)))
            trace = partial(trace_graph, scorer, graph, path.vertices, path.words.tolist())
            found.append(Found([output], graph=graph, trace=trace))
        return found


def best_paths(scorer: GraphScorer, graphs: Graphs, wanted: PathSearch) -> list[GraphPath]:
    """The wanted path through each of B graphs; the specification of `PathScorer`."""
    edges = graphs.links
    if wanted.weight:
        words, log_probs = read_words(scorer, graphs, graphs.vertices)
        own = graphs.split(np.float32(wanted.weight) * log_probs[:, 0])
        edges = tuple(links + each for links, each in zip(graphs.links, own, strict=True))
    paths = [
        walk(each.argmax(1).tolist()) if wanted.beta is None else best_path(each, limit, wanted.beta)
        for each, limit in zip(edges, wanted.limits, strict=True)
    ]
    visited = np.concatenate([graph.among(path[1:]) for graph, path in zip(graphs, paths, strict=True)])
    if wanted.weight:
        words, log_probs = words[visited], log_probs[visited]
    else:
        words, log_probs = read_words(scorer, graphs, visited)
    ends = np.cumsum([len(path) - 1 for path in paths])[:-1]
    emitted = np.split(words[:, 0], ends), np.split(log_probs[:, 0], ends)
    return [path_of(*parts) for parts in zip(paths, graphs.links, *emitted, strict=True)]


def best_path(edges: FloatArray, limit: int, beta: float) -> list[int]:
    """The path with the largest sum of its edges divided by their number ** beta.

    Of equal ones the shortest, and of these the one with the lowest vertices, compared from the end. Where
    there is none, the best edge is followed from each vertex, as far as it takes.

    A path of t tokens has t edges.

    Args:
        edges: [L,L], minus infinity where there is none, as there is none to an earlier vertex.
        limit: The most edges of the path, at least 1.
        beta: At least 0.
    """
    last = len(edges) - 1
    longest = min(limit, last)
    # The best sum of t edges to each vertex.
    forward = np.full((longest + 1, len(edges)), -np.inf, np.float32)
    forward[0, 0] = 0.0
    for t in range(1, longest + 1):  # vertices below t take fewer edges
        forward[t, t:] = (forward[t - 1, t - 1 :, None] + edges[t - 1 :, t:]).max(0)
    penalties = np.array([t**beta for t in range(1, longest + 1)], np.float32)
    count = int((forward[1:, last] / penalties).argmax()) + 1
    if forward[count, last] == -np.inf:
        return walk(edges.argmax(1).tolist())
    path = [last]
    for t in range(count, 0, -1):
        path.append(int((forward[t - 1] + edges[:, path[-1]]).argmax()))
    return path[::-1]
