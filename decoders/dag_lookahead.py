"""Lookahead decoding of a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459, section 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nartk.decoders.graphs.graph import path_of, read_words
from nartk.decoders.graphs.pairs import PairOptions
from nartk.decoders.graphs.paths import OnePath
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.parallel import GraphPath, Graphs, GraphScorer, PathSearch
from nartk.registry import option, register_decoder


@register_decoder("dag-lookahead")
class DagLookahead(PairOptions, OnePath):
    """From each vertex, takes the edge and word that are likeliest together.

    Where n-grams may not be repeated, it takes the likeliest pair that repeats nothing, not even the last
    word; and the likeliest of all where the pairs before that one exceed `decode_top_p` or are all there are.
    A score is the log-probability of the path and its words together; a token's, that of the edge to its
    vertex and of itself.

    Options are named as in the authors' program (https://github.com/thu-coai/DA-Transformer), and have the
    defaults of its flags; its README has 20 for `decode_top_cand_n` where it avoids repeats. It differs in
    this: equal words that follow each other are always one, as with `merge_repeats`; bos, pad and eos are
    words of any vertex; and `decode_no_repeated_ngram` 1 forbids nothing.
    """

    promise = Promise(Guarantee.APPROXIMATE, "the likeliest pair of edge and word")
    decode_top_cand_n: int = option(5, "likeliest pairs, and words of a vertex, that count", low=1)

    def wanted(self, limits: Sequence[int]) -> PathSearch:
        return replace(super().wanted(limits), weight=self.decode_beta)

    def choose(self, scorer: GraphScorer, graphs: Graphs, limits: Sequence[int]) -> list[GraphPath]:
        if not self.avoids_repeats:
            return super().choose(scorer, graphs, limits)
        count = self.decode_top_cand_n
        each = (graphs.split(x) for x in read_words(scorer, graphs, graphs.vertices, count))
        paths = []
        for links, words, log_probs in zip(graphs.links, *each, strict=True):
            path, columns = self.walk(links, words, log_probs, count, self.first_new)
            paths.append(path_of(path, links, words[path[1:], columns], log_probs[path[1:], columns]))
        return paths
