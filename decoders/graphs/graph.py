"""Shared parts of the decoders of graphs: the words of vertices, walks, and the outputs that paths give.

The words of a path are those between vertex 0, whose bos is no part of the output, and the last vertex, which
has eos. A score is the log-probability of a path and its words: of each edge, and of each word after bos.
Symbols: N vertices of all graphs, L vertices of a graph, C words of a vertex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from nartk.decoders.native import NativeOutput
from nartk.protocols.parallel import GraphPath, Graphs, GraphScorer, always_banned
from nartk.protocols.passes import FloatArray, IntArray, Want


def read_words(
    scorer: GraphScorer, graphs: Graphs, vertices: IntArray, count: int = 1
) -> tuple[IntArray, FloatArray]:
    """The likeliest words of n vertices, best first, and their log-probabilities, in one pass: [n,C].

    Bos, pad and eos are no words; where there are fewer than C, -1 with minus infinity fills the row up. The
    only word of a vertex that is the last of its graph is eos.

    Args:
        count: C, at most as many as the vocabulary has.
    """
    vocab = scorer.vocab
    banned = always_banned((vocab.bos, vocab.pad, vocab.eos), len(vertices))
    last = np.isin(vertices, graphs.ends)
    given = np.where(last, np.int32(vocab.eos), np.int32(-1))
    scores = scorer.words_at(graphs, vertices, Want(banned=banned, top=min(count, len(vocab)), given=given))
    words, log_probs = scores.top.copy(), scores.top_log_probs.copy()
    words[last], log_probs[last] = -1, -np.inf
    words[last, 0], log_probs[last, 0] = vocab.eos, scores.given_log_probs[last]
    return words, log_probs


def walk(following: Sequence[int]) -> list[int]:
    """The path from vertex 0 to the last that goes on to following [L].

    What leads to no later vertex is taken for the next one, so that every walk ends.
    """
    last, path = len(following) - 1, [0]
    while path[-1] < last:
        path.append(min(max(following[path[-1]], path[-1] + 1), last))
    return path


def path_of(vertices: list[int], links: FloatArray, words: IntArray, log_probs: FloatArray) -> GraphPath:
    """A path over links [L,L]."""
    return GraphPath(vertices, words, log_probs, links[vertices[:-1], vertices[1:]])


def spell(path: GraphPath, *, merge_repeats: bool) -> NativeOutput:
    """The output of a path.

    Args:
        merge_repeats: True if equal words that follow each other are output as one, with the sum of their
            scores.
    """
    tokens, scores = path.words.tolist(), (path.edges + path.log_probs).tolist()
    score = math.fsum(scores)
    vertices = path.vertices[1:]
    if merge_repeats:
        found = zip(tokens, scores, vertices, strict=True)
        runs = [list(run) for _, run in groupby(found, key=lambda each: each[0])]
        tokens = [run[0][0] for run in runs]
        scores = [math.fsum(score for _, score, _ in run) for run in runs]
        vertices = [run[0][2] for run in runs]
    return NativeOutput(tokens, score, scores, vertices=vertices)
