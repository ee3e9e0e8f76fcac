"""Lookahead decoding of a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459, section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from nartk.decoders.graph import choose_words, likeliest, score_ends, spell, walk
from nartk.decoders.native import Found, Native
from nartk.registry import option, register_decoder
from nartk.scorer import GraphScorer, Source


@register_decoder("dag-lookahead")
class DagLookahead(Native):
    """From each vertex, takes the edge and word that are likeliest together.

    A score is the log-probability of the path and its words together; a token's, that of the edge to its
    vertex and of itself.
    """

    needs = GraphScorer
    promise = "approximate: the likeliest pair of edge and word"

    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def search(self, scorer: GraphScorer, source: Source, limits: Tensor) -> Found:
        graph = scorer.emit(source)
        places = torch.arange(graph.links.shape[1], device=graph.links.device)
        last = graph.lengths - 1
        inner = (places > 0) & (places < last[:, None])  # [B,L]
        found, lprobs = choose_words(scorer, graph.hidden[inner], likeliest)
        words = places.new_zeros(inner.shape).masked_scatter(inner, found)
        scores = lprobs.new_full(inner.shape, float("-inf")).masked_scatter(inner, lprobs)
        ends = score_ends(scorer, graph)
        scores[torch.arange(len(last), device=last.device), last] = ends
        paths = walk(likeliest(graph.links + scores[:, None]), graph.lengths)
        rows, at = paths.inside()
        taken = rows, paths.vertices[rows, at]
        return spell(
            graph,
            paths,
            words[taken],
            scores[taken],
            ends,
            eos=scorer.vocab.eos,
            merge_repeats=self.merge_repeats,
        )
