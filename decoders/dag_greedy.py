"""Greedy decoding of a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459, section 3.5)."""

from __future__ import annotations

from torch import Tensor

from nartk.decoders.graph import choose_words, likeliest, score_ends, spell, walk
from nartk.decoders.tensor_native import Found, TensorNative
from nartk.guarantee import Guarantee, Promise
from nartk.registry import option, register_decoder
from nartk.scorer import GraphScorer, Source


@register_decoder("dag-greedy")
class DagGreedy(TensorNative):
    """Takes the likeliest edge from each vertex, and the likeliest word of each vertex it comes to.

    Edges come first, so words are asked for only on the path. A score is the log-probability of the path and
    its words together; a token's, that of the edge to its vertex and of itself.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest edge, then the likeliest word")

    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def search(self, scorer: GraphScorer, source: Source, limits: Tensor) -> Found:
        graph = scorer.emit(source)
        paths = walk(likeliest(graph.links), graph.lengths)
        rows, at = paths.inside()
        words, scores = choose_words(scorer, graph.hidden[rows, paths.vertices[rows, at]], likeliest)
        ends = score_ends(scorer, graph)
        return spell(
            graph, paths, words, scores, ends, eos=scorer.vocab.eos, merge_repeats=self.merge_repeats
        )
