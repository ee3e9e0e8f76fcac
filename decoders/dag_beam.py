"""Beam search over a DA-Transformer's graph, with a language model (Huang et al. 2022, arXiv:2205.07459)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from nartk.decoders.graphs.beam import GraphSearch, WordLattice
from nartk.decoders.graphs.graph import read_words
from nartk.decoders.graphs.ngram_lm import load_ngram
from nartk.decoders.graphs.pairs import BETA_HELP
from nartk.decoders.graphs.trace import trace_graph
from nartk.decoders.native import Found, Native
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import GraphScorer, MelScorer
from nartk.protocols.passes import IntArray
from nartk.registry import HEAVIEST, WIDEST, option, register_decoder


@register_decoder("dag-beam")
class DagBeam(Native):
    """Finds the outputs that are likeliest over all paths, weighed with an n-gram language model.

    An output Y of |Y| tokens, eos included, has the score

        (log P(Y|X) + gamma log P_LM(Y)) / |Y|^alpha,    P(Y|X) = the sum over all paths A of P(Y,A|X)

    with natural logarithms and without the second term where there is no `lm`. At each vertex only the
    `candidates` likeliest words count, and are not made likelier for it; their probabilities are raised to
    the power of `decode_beta`.

    Prefixes grow by a word a step. Each knows the probability of having been said on the way to each vertex,
    so that whatever reaches a vertex with the same words is one, its probabilities added. The `beam_size`
    prefixes with the largest log P + gamma log P_LM go on, and at each step they end where they can. A beam
    that holds all prefixes finds the outputs with the largest scores. The search stops where no longer
    output can have a larger score, which holds if the language model's probabilities are at most 1.

    The published search keeps 200 pairs of prefix and vertex, at most 10 of a length, and follows the 5
    likeliest pairs of edge and word from each; here a prefix is at all its vertices at once and follows all
    edges. Its alpha, gamma, beta and number of words are the defaults here; its `decode_top_p` and
    `decode_no_consecutive_repeated_ngram` have no counterpart.

    A token's score is the log-probability of the word after those before it, without the language model.
    Where nothing ends within the limit, the best prefix stands as it is. Models that speak do so at the
    vertices of the likeliest path that emits an output.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest output over all paths, as far as the beam sees")

    beam_size: int = option(20, "prefixes of each length that are kept", low=1, high=WIDEST)
    alpha: float = option(
        1.1, "scores are divided by length ** this; more favours long outputs", low=-10, high=10
    )
    gamma: float = option(0.1, "weight of the language model's log-probabilities", low=0, high=HEAVIEST)
    decode_beta: float = option(1.0, BETA_HELP, above=0, high=HEAVIEST)
    lm: str = option("", "n-gram language model of target tokens, a file in ARPA format", file=True)
    candidates: int = option(5, "likeliest words of a vertex that count", low=1, high=WIDEST)
    no_repeat_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0)
    nbest: int = option(1, "outputs given back", low=1)

    def search(self, scorer: GraphScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        # 0 times the logarithm of an impossible word is no number.
        lm = load_ngram(self.lm, scorer.vocab) if self.lm and self.gamma > 0 else None
        beam = GraphSearch(self.beam_size, self.alpha, self.no_repeat_ngram, self.nbest, lm, self.gamma)
        graphs = scorer.graphs(memory)
        each = (graphs.split(x) for x in read_words(scorer, graphs, graphs.vertices, self.candidates))
        found = []
        for request, graph, own, scores in zip(requests, graphs, *each, strict=True):
            lattice = WordLattice.of(graph.links, own, self.decode_beta * scores)
            outputs = beam.run(lattice, request.max_len, scorer.vocab.eos)
            if isinstance(scorer, MelScorer):
                outputs = [replace(each, vertices=lattice.path(each.tokens)) for each in outputs]
            found.append(Found(outputs, graph=graph, trace=partial(trace_graph, scorer, graph)))
        return found
