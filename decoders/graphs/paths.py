"""The base of the strategies that take one path through each graph, and the words at its vertices.

Symbols: B graphs, N vertices of all of them, L vertices of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nartk.decoders.graphs.graph import read_words, spell, walk
from nartk.decoders.graphs.trace import trace_graph
from nartk.decoders.native import Found, Native
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import Graphs, GraphScorer
from nartk.protocols.passes import FloatArray, IntArray
from nartk.registry import option

_Words = list[tuple[IntArray, FloatArray]]  # of each path behind vertex 0, with their log-probabilities


@dataclass(frozen=True, kw_only=True)
class OnePath(Native):
    """Base of the strategies that choose a path by its edges; here the likeliest edge from each vertex.

    A score is the log-probability of the path and its words together, divided by `penalty`; a token's, that
    of the edge to its vertex and of itself. The authors' program always merges repeats.

    Attributes:
        joint: True if an edge is chosen by its vertex's likeliest word too. Words are then read at all
            vertices, else on the paths alone.
    """

    needs = GraphScorer
    joint = False

    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def path(self, edges: FloatArray, limit: int) -> list[int]:
        """The path from vertex 0 to the last over edges [L,L]; it should have at most `limit` of them."""
        return walk(edges.argmax(1).tolist())

    def pair_path(
        self, links: FloatArray, words: IntArray, log_probs: FloatArray, limit: int
    ) -> tuple[list[int], IntArray]:
        """The path over links [L,L] by words [L,C] too, and the column of each word behind vertex 0."""
        path = self.path(links + log_probs[:, 0], limit)
        return path, np.zeros(len(path) - 1, np.int32)

    @property
    def words_read(self) -> int:
        """C, how many words of a vertex `pair_path` reads."""
        return 1

    def penalty(self, tokens: int) -> float:
        """Divisor of the score of a path of so many tokens."""
        return 1.0

    def search(self, scorer: GraphScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        graphs = scorer.graphs(memory)
        paths, words = (self._joint if self.joint else self._edges_first)(scorer, graphs, requests)
        parts = zip(graphs.split(graphs.features), graphs.links, paths, words, strict=True)
        found = []
        for features, links, path, chosen in parts:
            output = spell(links, path, *chosen, merge_repeats=self.merge_repeats)
            output = replace(output, score=output.score / self.penalty(len(path) - 1))
            graph = partial(trace_graph, scorer, features, links, path, chosen[0].tolist())
            found.append(Found([output], graph=graph, features=features))
        return found

    def _edges_first(
        self, scorer: GraphScorer, graphs: Graphs, requests: Sequence[Request]
    ) -> tuple[list[list[int]], _Words]:
        """Paths by their edges, and then the likeliest words of their vertices."""
        paths = [
            self.path(links, request.max_len) for links, request in zip(graphs.links, requests, strict=True)
        ]
        visited = np.concatenate(
            [begin + np.array(path[1:]) for begin, path in zip(graphs.begins, paths, strict=True)]
        )
        counts = np.cumsum([len(path) - 1 for path in paths])
        words, log_probs = read_words(scorer, graphs.features[visited], counts - 1)
        each = (np.split(x[:, 0], counts[:-1]) for x in (words, log_probs))
        return paths, list(zip(*each, strict=True))

    def _joint(
        self, scorer: GraphScorer, graphs: Graphs, requests: Sequence[Request]
    ) -> tuple[list[list[int]], _Words]:
        """The likeliest words of every vertex, and then paths by edges and words."""
        paths: list[list[int]] = []
        chosen: _Words = []
        every = read_words(scorer, graphs.features, graphs.begins + graphs.sizes - 1, self.words_read)
        each = (graphs.split(x) for x in every)
        for links, request, words, log_probs in zip(graphs.links, requests, *each, strict=True):
            path, columns = self.pair_path(links, words, log_probs, request.max_len)
            paths.append(path)
            chosen.append((words[path[1:], columns], log_probs[path[1:], columns]))
        return paths, chosen
