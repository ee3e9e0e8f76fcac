"""The likeliest path for its length (Shao et al. 2022, arXiv:2210.05193).

Symbols: L vertices of a graph, T edges of the longest path. A path of t tokens has t edges: one to each
vertex that has a word, and one to the last, which has eos.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nartk.decoders.graphs.graph import walk
from nartk.decoders.graphs.paths import OnePath
from nartk.protocols.passes import FloatArray
from nartk.registry import option


@dataclass(frozen=True, kw_only=True)
class Viterbi(OnePath):
    """Base of both Viterbi decoders.

    The authors' program (https://github.com/thu-coai/DA-Transformer) calls beta `decode_viterbibeta`, and
    looks no farther than paths of 2 L / `decode_upsample_scale` tokens.
    """

    beta: float = option(
        1.0, "log-probabilities are divided by length ** this; more favours long outputs", low=0, high=10
    )

    def path(self, edges: FloatArray, limit: int) -> list[int]:
        return best_path(edges, limit, self.beta)

    def penalty(self, tokens: int) -> float:
        return tokens**self.beta


def best_path(edges: FloatArray, limit: int, beta: float) -> list[int]:
    """The path with the largest sum of its edges divided by their number ** beta.

    Of equal ones the shortest, and of these the one with the lowest vertices, compared from the end. Where
    there is none, the best edge is followed from each vertex, as far as it takes.

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
