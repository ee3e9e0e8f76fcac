"""Shared parts of the decoders of graphs: the words of vertices, walks, and the outputs that paths give.

The words of a path are those between vertex 0, whose bos is no part of the output, and the last vertex, which
has eos. A score is the log-probability of a path and its words: of each edge, and of each word after bos.
Symbols: N vertices of all graphs, L vertices of a graph, P of a path, C words of a vertex, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from nartk.decoders.native import NativeOutput
from nartk.protocols.parallel import GraphScorer, always_banned
from nartk.protocols.passes import FloatArray, IntArray, Want


def read_words(
    scorer: GraphScorer, features: FloatArray, ends: Sequence[int] | npt.NDArray[np.integer], count: int = 1
) -> tuple[IntArray, FloatArray]:
    """The likeliest words of vertices [N,D], best first, and their log-probabilities, in one pass: [N,C].

    Bos, pad and eos are no words; where there are fewer than C, -1 with minus infinity fills the row up.

    Args:
        ends: Those that are the last of their graphs: their only word is eos.
        count: C, at most as many as the vocabulary has.
    """
    vocab = scorer.vocab
    banned = always_banned((vocab.bos, vocab.pad, vocab.eos), len(features))
    given = np.full(len(features), -1, np.int32)
    given[ends] = vocab.eos
    scores = scorer.words(features, Want(banned=banned, top=min(count, len(vocab)), given=given))
    words, log_probs = scores.top.copy(), scores.top_log_probs.copy()
    words[ends], log_probs[ends] = -1, -np.inf
    words[ends, 0], log_probs[ends, 0] = vocab.eos, scores.given_log_probs[ends]
    return words, log_probs


def walk(following: Sequence[int]) -> list[int]:
    """The path from vertex 0 to the last that goes on to following [L].

    What leads to no later vertex is taken for the next one, so that every walk ends.
    """
    last, path = len(following) - 1, [0]
    while path[-1] < last:
        path.append(min(max(following[path[-1]], path[-1] + 1), last))
    return path


def spell(
    links: FloatArray,
    path: Sequence[int],
    words: npt.NDArray[np.integer],
    log_probs: FloatArray,
    *,
    merge_repeats: bool,
) -> NativeOutput:
    """The output of a path.

    Args:
        links: [L,L], log-probabilities of the edges.
        words, log_probs: [P-1], of the vertices behind the first.
        merge_repeats: True if equal words that follow each other are output as one, with the sum of their
            scores.
    """
    tokens, scores = words.tolist(), (links[path[:-1], path[1:]] + log_probs).tolist()
    score = math.fsum(scores)
    vertices = [*path[1:]]
    if merge_repeats:
        found = zip(tokens, scores, vertices, strict=True)
        runs = [list(run) for _, run in groupby(found, key=lambda each: each[0])]
        tokens = [run[0][0] for run in runs]
        scores = [math.fsum(score for _, score, _ in run) for run in runs]
        vertices = [run[0][2] for run in runs]
    return NativeOutput(tokens, score, scores, vertices=vertices)
