"""Alternatives to a graph's best draft: other words at its nodes, the likeliest as a tree.

A node is a vertex of the graph. Symbols: P nodes that have a word, L edges from a
node, C words at the end of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from nartk.decoders.loop.drafter import Draft
from nartk.protocols.passes import ROOT, FloatArray, IntArray

BRANCHES = 4  # words that may be in place of a drafted one, at most
_RUN = 8  # tokens of a branch, at most
_PAIRS = 4 * BRANCHES  # likeliest pairs of edge and word that branches begin with, as some have the same word
_UNLISTED = -9.0  # log-probability of a draft's word at least, and where it is not among those of its node
_SURE = -1e-3  # and at most, so that what follows a token is less likely than it


class Option(NamedTuple):
    """A word that may be at a node.

    Attributes:
        log_prob: Log-probability of the word at the node.
        onward: The node that it leads to.
    """

    token: int
    log_prob: float
    onward: int


@dataclass(frozen=True, slots=True)
class Lattice:
    """The draft from each node on, and what else may be at each. Attributes are [P+1]: the last is the end.

    Attributes:
        words: The draft's word at each node, -1 at the end.
        onward: The node that it leads to, a later one.
        log_probs: Log-probability of this word at the node, below 0.
        others: Options besides this word.
    """

    words: Sequence[int]
    onward: Sequence[int]
    log_probs: Sequence[float]
    others: Sequence[Sequence[Option]]

    @classmethod
    def of(cls, words: Sequence[int], onward: Sequence[int], options: Sequence[Sequence[Option]]) -> Lattice:
        """The lattice of words [P], and what may be at each node [P], these words perhaps among it."""
        log_probs, others = [], []
        for word, each in zip(words, options, strict=True):
            own = max((option.log_prob for option in each if option.token == word), default=_UNLISTED)
            log_probs.append(min(max(_UNLISTED, own), _SURE))
            others.append([option for option in each if option.token != word])
        return cls([*words, -1], [*onward, len(words)], [*log_probs, _UNLISTED], [*others, []])

    def path(self, node: int, longest: int) -> list[int]:
        """The draft from a node on, at most so many tokens."""
        return [self.words[at] for at in self._walk(node, longest)]

    def _walk(self, node: int, longest: int) -> Iterator[int]:
        """The nodes that it goes through."""
        for _ in range(longest):
            if self.words[node] < 0:
                return
            yield node
            node = self.onward[node]

    def tree(self, node: int, *, longest: int, levels: int, nodes: int) -> Draft:
        """The draft from a node on, and the likeliest tokens of branches that leave it.

        Args:
            longest: Most tokens of the draft itself, which stays the first path.
            levels: Most of the tree.
            nodes: Most tokens of branches.
        """
        branches: list[tuple[float, int, int, int, int, Option]] = []  # the likeliest first, then the oldest
        before, tokens = 0.0, []
        for level, at in enumerate(self._walk(node, longest)):
            for option in self.others[at]:
                cost = -(before + option.log_prob)
                branches.append((cost, len(branches), level - 1, level + 1, 1, option))
            before += self.log_probs[at]
            tokens.append(self.words[at])
        parents = list(range(ROOT, len(tokens) - 1))
        heapify(branches)
        count, end = len(branches), len(tokens) + nodes
        while branches and len(tokens) < end:
            cost, _, parent, level, size, (token, _, node) = heappop(branches)
            if self.words[node] >= 0 and level < levels and size < min(_RUN, nodes):
                follows = Option(self.words[node], self.log_probs[node], self.onward[node])
                cost -= follows.log_prob
                heappush(branches, (cost, count, len(tokens), level + 1, size + 1, follows))
                count += 1
            tokens.append(token)
            parents.append(parent)
        return Draft(tokens, parents)


def likeliest_pairs(
    links: FloatArray, words: IntArray, log_probs: FloatArray, onward: Sequence[int]
) -> list[list[Option]]:
    """The likeliest pairs of an edge from each node and a word at its end; of those with one word the best.

    Args:
        links, log_probs: Log-probabilities of edges [P,L] and words [L,C].
        onward: [L], the node that each edge leads to.
    """
    # So many pairs lie at the ends of no more edges, those with the best words.
    edges = np.argsort(-(links + log_probs.max(1)), axis=1, kind="stable")[:, :_PAIRS]  # [P,H]
    pairs = (np.take_along_axis(links, edges, 1)[:, :, None] + log_probs[edges]).reshape(len(links), -1)
    order = np.argsort(-pairs, axis=1, kind="stable")[:, :_PAIRS]
    ends = np.take_along_axis(edges, order // words.shape[1], 1)
    columns = words[ends, order % words.shape[1]], np.take_along_axis(pairs, order, 1), ends
    return [_best_of_each(onward, *row) for row in zip(*(x.tolist() for x in columns), strict=True)]


def _best_of_each(
    onward: Sequence[int], words: Sequence[int], log_probs: Sequence[float], ends: Sequence[int]
) -> list[Option]:
    found: dict[int, Option] = {}
    for word, log_prob, end in zip(words, log_probs, ends, strict=True):
        if log_prob > -np.inf:
            found.setdefault(word, Option(word, log_prob, onward[end]))
            if len(found) > BRANCHES:
                break
    return list(found.values())
