"""Trace of a graph: enough to see where else its path might have gone.

Symbols: L vertices of a graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nartk.decoders.graphs.graph import read_words
from nartk.protocols.hypothesis import GraphTrace
from nartk.protocols.parallel import Graph, GraphScorer
from nartk.protocols.passes import FloatArray

_VERTICES = 96  # beside the path's
_REACHED = 0.01  # probability that a path drawn from the edges comes to the vertex
_WORDS = 3  # of a vertex
_LINK = 0.05  # probability of an edge, beside the path's; so a vertex has at most 20


def trace_graph(
    scorer: GraphScorer, graph: Graph, path: Sequence[int] = (), emitted: Sequence[int] = ()
) -> GraphTrace:
    """The likelier part of a graph, with the best output's path.

    Args:
        emitted: The word at each vertex of the path after the first.
    """
    links = graph.links
    kept = _shown(reach_probs(links), path)
    words, log_probs = read_words(scorer, graph.graphs, graph.among(kept), _WORDS)
    pairs = (zip(*row, strict=True) for row in zip(words.tolist(), log_probs.tolist(), strict=True))
    listed = [tuple((word, score) for word, score in row if score > -math.inf) for row in pairs]
    return GraphTrace(
        len(links),
        tuple(kept),
        ((), *listed[1:]),
        _shown_links(links, kept, path),
        tuple(path),
        tuple(emitted),
    )


def reach_probs(links: FloatArray) -> npt.NDArray[np.float64]:
    """The probability [L] that a path drawn from the edges [L,L] comes to each vertex."""
    probs = np.exp(links.astype(np.float64))
    reached = np.zeros(len(links))
    reached[0] = 1.0
    for vertex in range(1, len(links)):
        reached[vertex] = reached[:vertex] @ probs[:vertex, vertex]
    return reached


def _shown(reached: npt.NDArray[np.float64], path: Sequence[int]) -> list[int]:
    """The vertices of a graph that a trace shows, ascending."""
    often = np.argsort(-reached, kind="stable")[:_VERTICES]
    return sorted({*path, 0, len(reached) - 1, *often[reached[often] >= _REACHED].tolist()})


def _shown_links(
    links: FloatArray, vertices: Sequence[int], path: Sequence[int]
) -> tuple[tuple[int, int, float], ...]:
    """The edges [L,L] between vertices that a trace shows: the likely ones, and those of the path."""
    taken = set(pairwise(path))
    return tuple(
        (a, b, log_prob)
        for a, row in zip(vertices, links[np.ix_(vertices, vertices)].tolist(), strict=True)
        for b, log_prob in zip(vertices, row, strict=True)
        if log_prob >= math.log(_LINK) or ((a, b) in taken and log_prob > -math.inf)
    )
