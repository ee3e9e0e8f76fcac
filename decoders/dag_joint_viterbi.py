"""Joint Viterbi decoding of a DA-Transformer's graph (Shao et al. 2022, arXiv:2210.05193)."""

from nartk.decoders.graphs.viterbi import Viterbi
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.registry import register_decoder


@register_decoder("dag-joint-viterbi")
class DagJointViterbi(Viterbi):
    """Finds the path and words that are likeliest together for their length.

    Of all paths A of at most `limit` tokens and all words Y on them, those with the largest
    log P(Y,A|X) / |Y|^beta. Where `dag-viterbi` maximises P(A|X) alone and then P(Y|A,X), this maximises
    their product, so it also turns to a path of less likely edges whose words are surer. Words are asked for
    at every vertex. |Y| counts eos (the paper's code leaves eos out, and with it empty outputs). With
    beta 0 the likeliest pair of any length wins, which is a short one.

    A score is what is maximised; a token's, the log-probability of the edge to its vertex and of itself.
    Where no path is short enough, each vertex's likeliest pair of edge and word is taken and the output is
    cut.
    """

    promise = Promise(Guarantee.APPROXIMATE, "the likeliest pair of path and words, not the likeliest words")
    weight = 1.0
