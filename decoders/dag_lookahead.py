"""Lookahead decoding of a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459, section 3.5)."""

from __future__ import annotations

from torch import Tensor

from nartk.decoders.dag_paths import say_everywhere
from nartk.decoders.graph import likeliest, spell, walk
from nartk.decoders.tensor_native import Found, TensorNative
from nartk.guarantee import Guarantee, Promise
from nartk.registry import option, register_decoder
from nartk.scorer import GraphScorer, Source


@register_decoder("dag-lookahead")
class DagLookahead(TensorNative):
    """From each vertex, takes the edge and word that are likeliest together.

    A score is the log-probability of the path and its words together; a token's, that of the edge to its
    vertex and of itself.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest pair of edge and word")

    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def search(self, scorer: GraphScorer, source: Source, limits: Tensor) -> Found:
        graph = scorer.emit(source)
        words, scores = (x.squeeze(2) for x in say_everywhere(scorer, graph))  # [B,L,1] -> [B,L]
        paths = walk(likeliest(graph.links + scores[:, None]), graph.lengths)
        rows, at = paths.inside()
        taken = rows, paths.vertices[rows, at]
        return spell(
            graph,
            paths,
            words[taken],
            scores[taken],
            scores.gather(1, graph.lengths[:, None] - 1).squeeze(1),
            eos=scorer.vocab.eos,
            merge_repeats=self.merge_repeats,
        )
