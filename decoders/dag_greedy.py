"""Greedy decoding of a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459, section 3.5)."""

from typing import ClassVar

from nartk.decoders.graphs.paths import OnePath
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.registry import register_decoder


@register_decoder("dag-greedy")
class DagGreedy(OnePath):
    """Takes the likeliest edge from each vertex, and the likeliest word of each vertex it comes to.

    Edges come first, so words are asked for only on the path. A score is the log-probability of the path and
    its words together; a token's, that of the edge to its vertex and of itself.
    """

    promise = Promise(Guarantee.APPROXIMATE, "the likeliest edge, then the likeliest word")
    is_greedy: ClassVar[bool] = True
