"""Lookahead decoding of a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459, section 3.5)."""

from __future__ import annotations

from nartk.decoders.graphs.paths import OnePath
from nartk.guarantee import Guarantee, Promise
from nartk.registry import register_decoder


@register_decoder("dag-lookahead")
class DagLookahead(OnePath):
    """From each vertex, takes the edge and word that are likeliest together.

    A score is the log-probability of the path and its words together; a token's, that of the edge to its
    vertex and of itself.
    """

    promise = Promise(Guarantee.APPROXIMATE, "the likeliest pair of edge and word")
    joint = True
