"""Sampling from a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459): edges, then words.

Symbols: S samples of a sentence, N vertices of all paths, L vertices of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nartk.decoders.graphs.graph import spell
from nartk.decoders.graphs.trace import trace_graph
from nartk.decoders.loop.draws import uniform
from nartk.decoders.native import Found, Native
from nartk.guarantee import Guarantee, Promise
from nartk.hypothesis import Request
from nartk.parallel import GraphScorer, always_banned
from nartk.passes import Draw, FloatArray, IntArray, Want
from nartk.reading import by_inversion
from nartk.registry import WIDEST, option, register_decoder

_EDGE, _WORD = 0, 1  # what a random number is for


@register_decoder("dag-sample")
class DagSample(Native):
    """Draws an edge from each vertex and a word at each it comes to.

    A draw depends on the seed, the sentence, the sample and the vertex alone. A score is the log-probability
    of the path and its words together under the model itself, without temperatures and filters; a token's,
    that of the edge to its vertex and of itself.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "drawn from the model's paths and words; the same in any batch")

    temperature: float = option(
        1.0, "divides the words' log-probabilities: below 1 sharper, above 1 flatter", low=1e-3
    )
    link_temperature: float = option(1.0, "the same for edges", low=1e-3)
    top_k: int = option(0, "draw from the k likeliest words; 0: from all", low=0)
    top_p: float = option(
        1.0, "draw from the likeliest words that together have this probability", low=0, high=1
    )
    seed: int = option(1, "another seed draws other edges and words", low=0)
    nbest: int = option(1, "outputs drawn for a sentence, given back likeliest first", low=1, high=WIDEST)
    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def search(self, scorer: GraphScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        graphs = scorer.graphs(memory)
        sampled = [
            self._paths(links, request.index) for links, request in zip(graphs.links, requests, strict=True)
        ]
        paths = [path for some in sampled for path in some]
        counts = [len(path) - 1 for path in paths]
        ends = np.cumsum(counts)
        vertices = np.array([vertex for path in paths for vertex in path[1:]])
        samples = np.repeat(np.tile(np.arange(self.nbest), len(requests)), counts)
        owners = np.repeat(np.repeat(np.arange(len(requests)), self.nbest), counts)
        index = np.array([request.index for request in requests])[owners]
        uniforms = uniform(self.seed, index, samples, vertices, np.full_like(vertices, _WORD))

        vocab = scorer.vocab
        given = np.full(len(vertices), -1, np.int32)
        given[ends - 1] = vocab.eos
        # A pass takes no sum of 0, which the likeliest word alone would reach.
        top_k, top_p = (self.top_k, self.top_p) if self.top_p > 0 else (1, 1.0)
        want = Want(
            banned=always_banned((vocab.bos, vocab.pad, vocab.eos), len(vertices)),
            given=given,
            draw=Draw(uniforms, self.temperature, top_k, top_p),
        )
        scores = scorer.words(graphs.features[graphs.begins[owners] + vertices], want)
        assert scores.drawn is not None
        assert scores.drawn_log_probs is not None
        assert scores.given_log_probs is not None
        words = np.where(given < 0, scores.drawn, given)
        log_probs = np.where(given < 0, scores.drawn_log_probs, scores.given_log_probs)
        each = zip(paths, np.split(words, ends[:-1]), np.split(log_probs, ends[:-1]), strict=True)

        found = []
        for features, links in zip(graphs.split(graphs.features), graphs.links, strict=True):
            drawn = [next(each) for _ in range(self.nbest)]
            outputs = [spell(links, *parts, merge_repeats=self.merge_repeats) for parts in drawn]
            order = np.argsort([-output.score for output in outputs], kind="stable").tolist()
            path, emitted, _ = drawn[order[0]]
            graph = partial(trace_graph, scorer, features, links, path, emitted.tolist())
            found.append(Found([outputs[i] for i in order], graph=graph))
        return found

    def _paths(self, links: FloatArray, sentence: int) -> list[list[int]]:
        """The vertices of S paths that are drawn from links [L,L], as far as `walk` goes."""
        last = len(links) - 1
        samples, at = np.arange(self.nbest), np.zeros(self.nbest, np.int64)
        vertices = [at]
        while (at < last).any():
            shares = uniform(self.seed, np.full_like(at, sentence), samples, at, np.full_like(at, _EDGE))
            edges = links[at].astype(np.float64)
            with np.errstate(invalid="ignore"):  # a vertex without edges
                probs = np.exp((edges - edges.max(1, keepdims=True)) / self.link_temperature)
            at = np.maximum(by_inversion(probs, shares), at + 1).clip(max=last)
            vertices.append(at)
        return [path[: path.index(last) + 1] for path in np.stack(vertices, 1).tolist()]
