"""Sampling from a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459): edges, then words.

Symbols: S samples of a sentence, N vertices of all paths, L vertices of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from nartk.decoders.graphs.graph import path_of, read_words, spell
from nartk.decoders.graphs.pairs import PairOptions
from nartk.decoders.graphs.trace import trace_graph
from nartk.decoders.loop.draws import uniform
from nartk.decoders.native import Found, Native
from nartk.errors import UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import GraphPath, Graphs, GraphScorer, always_banned
from nartk.protocols.passes import Draw, FloatArray, IntArray, Want
from nartk.protocols.reading import by_inversion
from nartk.registry import HEAVIEST, MOST_SAMPLES, option, register_decoder
from nartk.vocab import MOST_WORDS

_EDGE, _WORD = 0, 1  # what a random number is for


@register_decoder("dag-sample")
class DagSample(PairOptions, Native):
    """Draws pairs of an edge and a word from each vertex; or edges, and then words.

    Pairs are those of the authors' program (https://github.com/thu-coai/DA-Transformer), with the names and
    defaults of its flags: of the likeliest `decode_top_cand_n` those that together exceed `decode_top_p`, by
    their probabilities; one that repeats the last word, or an n-gram that may not be repeated, has 0.00001.
    The program's `decode_temperature` is `link_temperature` here. There, bos, pad and eos are words of any
    vertex, and `decode_no_repeated_ngram` 1 forbids nothing.

    With `decode_top_cand_n` 0 edges are drawn from all there are, and then words by `temperature`, `top_k`
    and `top_p`: without these, from the model's own distribution.

    A draw depends on the seed, the sentence, the sample and the vertex alone. A score is the log-probability
    of the path and its words together under the model itself, without temperatures and filters; a token's,
    that of the edge to its vertex and of itself.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "drawn from the model's paths and words; the same in any batch")

    decode_top_cand_n: int = option(
        5, "likeliest pairs, and words of a vertex, that count; 0: draw edges, then words", low=0
    )
    temperature: float = option(
        1.0, "divides the words' log-probabilities: below 1 sharper, above 1 flatter", low=1e-3, high=HEAVIEST
    )
    link_temperature: float = option(1.0, "the same for edges", low=1e-3, high=HEAVIEST)
    top_k: int = option(0, "draw from the k likeliest words; 0: from all", low=0, high=MOST_WORDS)
    top_p: float = option(
        1.0, "draw from the likeliest words that together have this probability", low=0, high=1
    )
    seed: int = option(1, "another seed draws other edges and words", low=0)
    nbest: int = option(
        1, "outputs drawn for a sentence, given back likeliest first", low=1, high=MOST_SAMPLES
    )
    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def __post_init__(self) -> None:
        of_words = (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0)
        if self.decode_top_cand_n and of_words:
            raise UsageError(
                f"{named('temperature')}, {named('top_k')} and {named('top_p')} are of words, and "
                f"{named('decode_top_cand_n', self.decode_top_cand_n)} draws pairs of edge and word",
                fix=f"use {named('decode_top_cand_n', 0)}, or {named('link_temperature')} and "
                f"{named('decode_top_p')}",
            )
        if not self.decode_top_cand_n and (self.avoids_repeats or self.decode_beta != 1.0):
            raise UsageError(
                f"{named('decode_beta')} and n-grams that may not be repeated need pairs, "
                f"{named('decode_top_cand_n')} is 0",
                fix=f"use {named('decode_top_cand_n', 5)}",
            )

    def search(self, scorer: GraphScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        graphs = scorer.graphs(memory)
        draw = self._pairs if self.decode_top_cand_n else self._words
        each = draw(scorer, graphs, requests)
        found = []
        for graph in graphs:
            drawn = [next(each) for _ in range(self.nbest)]
            outputs = [spell(path, merge_repeats=self.merge_repeats) for path in drawn]
            order = np.argsort([-output.score for output in outputs], kind="stable").tolist()
            best = drawn[order[0]]
            trace = partial(trace_graph, scorer, graph, best.vertices, best.words.tolist())
            found.append(Found([outputs[i] for i in order], graph=graph, trace=trace))
        return found

    def _pairs(self, scorer: GraphScorer, graphs: Graphs, requests: Sequence[Request]) -> Iterator[GraphPath]:
        """Draws pairs, S samples of each sentence."""
        words, log_probs = read_words(scorer, graphs, graphs.vertices, self.decode_top_cand_n)
        parts = zip(graphs.links, graphs.split(words), graphs.split(log_probs), requests, strict=True)
        for links, own, scores, request in parts:
            wide = links.astype(np.float64) / self.link_temperature
            with np.errstate(invalid="ignore"):  # a vertex without edges, as the last
                edges = (wide - np.logaddexp.reduce(wide, 1, keepdims=True)).astype(np.float32)
            for sample in range(self.nbest):
                choose = partial(self._drawn_pair, request.index, sample)
                path, columns = self.walk(edges, own, scores, self.decode_top_cand_n, choose)
                yield path_of(path, links, own[path[1:], columns], scores[path[1:], columns])

    def _drawn_pair(
        self, sentence: int, sample: int, vertex: int, probs: Sequence[float], repeated: Sequence[bool]
    ) -> int:
        parts = (np.array([part]) for part in (sentence, sample, vertex, _EDGE))
        weights = np.array([self.weights(probs, repeated)])
        return int(by_inversion(weights, uniform(self.seed, *parts))[0])

    def _words(self, scorer: GraphScorer, graphs: Graphs, requests: Sequence[Request]) -> Iterator[GraphPath]:
        """Draws edges and then words, S samples of each sentence."""
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
        scores = scorer.words_at(graphs, graphs.begins[owners] + vertices, want)
        assert scores.drawn is not None
        assert scores.drawn_log_probs is not None
        assert scores.given_log_probs is not None
        words = np.where(given < 0, scores.drawn, given)
        log_probs = np.where(given < 0, scores.drawn_log_probs, scores.given_log_probs)
        links = (links for links in graphs.links for _ in range(self.nbest))
        return map(path_of, paths, links, np.split(words, ends[:-1]), np.split(log_probs, ends[:-1]))

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
