"""Contrastive search (Su et al. 2022, https://arxiv.org/abs/2202.06417)."""

from __future__ import annotations

from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.loop.constraints import RowConstraints
from nartk.decoders.search.contrastive_search import ContrastiveSearch
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import Batching, Run
from nartk.registry import WIDEST, option, register_decoder


@register_decoder("contrastive")
class Contrastive(Constrained):
    """Takes of the k likeliest words the one that is likely and unlike the output so far.

    A word v scores ``(1 - a) p(v) - a max_j cos(h_v, h_j)``: h_v are the features that the output layer reads
    behind v, h_j those of the start token and the tokens before. A pass scores all k words, of which one is
    kept. With a 0 or k 1 this is greedy search, and takes its passes.

    transformers 4 has the same search (`penalty_alpha`, `top_k`), 5 no longer. It differs from 4.46.3 in
    this: of forbidden words the others' probabilities do not grow, unless a repetition penalty changes them;
    of equal words the lowest id comes first; likeness is computed in fp64; features of a prompt of several
    tokens count for its last one and what is forced behind it; and where the model has no position for the
    last word, the likeliest is taken.
    """

    needs = (PassScorer,)
    promise = Promise(
        Guarantee.APPROXIMATE, "likely words that are unlike those before; the same in any batch"
    )

    penalty_alpha: float = option(
        0.6,
        "a, weight of a word's likeness to the output so far; 1 - a is its probability's; 0: greedy search",
        low=0.0,
        high=1.0,
        implies=True,
    )
    top_k: int = option(4, "likeliest words that are compared; 1: greedy search", low=1, high=WIDEST)

    def begin(self, scorer: PassScorer, batching: Batching) -> Run:
        constraints = RowConstraints(self.constraints(scorer.vocab), scorer.vocab.eos).of_run(scorer)
        return ContrastiveSearch(
            scorer, constraints, batching, top_k=self.top_k, penalty_alpha=self.penalty_alpha
        )
