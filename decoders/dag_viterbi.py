"""Viterbi decoding of a DA-Transformer's graph (Shao et al. 2022, arXiv:2210.05193)."""

from nartk.decoders.graphs.viterbi import Viterbi
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.registry import register_decoder


@register_decoder("dag-viterbi")
class DagViterbi(Viterbi):
    """Takes the path that is likeliest for its length, and then the likeliest word at each of its vertices.

    Of all paths A of at most `limit` tokens, the one with the largest log P(A|X) / |A|^beta: of edges alone,
    so that words are asked for only on that path; `dag-joint-viterbi` weighs both together. |A| counts the
    tokens of the path, eos included (the paper's code leaves eos out, and with it empty outputs). With beta 0
    the likeliest path of any length wins, which is a short one.

    A score is the log-probability of the path and its words together, divided by |A|^beta; a token's, that
    of the edge to its vertex and of itself. Where no path is short enough, each vertex's likeliest edge is
    taken and the output is cut.
    """

    promise = Promise(Guarantee.APPROXIMATE, "the likeliest path, then the likeliest words on it")
