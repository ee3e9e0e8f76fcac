"""Sampling from a DA-Transformer's graph (Huang et al. 2022, arXiv:2205.07459): edges, then words.

Symbols: B rows, N samples of each, M vertices in all, L graph vertices, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nartk.decoders.graph import choose_words, score_ends, spell, walk
from nartk.decoders.tensor_draws import keep_likeliest, uniform
from nartk.decoders.tensor_native import Asked, Found, TensorNative
from nartk.guarantee import Guarantee, Promise
from nartk.registry import option, register_decoder
from nartk.scorer import GraphScorer

_EDGE, _WORD = 0, 1  # what a random number is for


@register_decoder("dag-sample")
class DagSample(TensorNative):
    """Draws an edge from each vertex and a word at each it comes to.

    A draw depends on the seed, the sentence, the sample and the vertex alone. A score is the log-probability
    of the path and its words together under the model itself, without temperatures and filters; a token's,
    that of the edge to its vertex and of itself.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "drawn from the model's paths and words; the same in any batch")

    temperature: float = option(
        1.0, "divides the words' log-probabilities: below 1 sharper, above 1 flatter", low=1e-3
    )
    link_temperature: float = option(1.0, "the same for edges", low=1e-3)
    top_k: int = option(0, "draw from the k likeliest words; 0: from all", low=0)
    top_p: float = option(
        1.0, "draw from the likeliest words that together have this probability", low=0, high=1
    )
    seed: int = option(1, "another seed draws other edges and words", low=0)
    nbest: int = option(1, "outputs drawn for a sentence, given back likeliest first", low=1)
    merge_repeats: bool = option(False, "output equal words that follow each other as one")

    def search(self, scorer: GraphScorer, source: Asked, limits: Tensor) -> Found:
        graph = scorer.emit(source)
        batch, width = graph.links.shape[:2]
        every = torch.arange(batch * self.nbest, device=graph.links.device)  # one for each path
        graphs, samples = every // self.nbest, every % self.nbest

        def numbers(paths: Tensor, vertices: Tensor, purpose: int) -> Tensor:
            """Of [M] paths at [M] vertices, in [0, 1)."""
            sentences = source.requests[graphs[paths]]
            return uniform(self.seed, sentences, samples[paths], vertices, torch.full_like(vertices, purpose))

        paths_at, vertices = torch.cartesian_prod(every, torch.arange(width, device=every.device)).unbind(1)
        at = numbers(paths_at, vertices, _EDGE).view(batch, self.nbest, width).transpose(1, 2)
        following = draw(graph.links / self.link_temperature, at)  # [B,L,N]
        paths = walk(following.transpose(1, 2).flatten(0, 1), graph.lengths[graphs])

        def choose(lprobs: Tensor, at: Tensor) -> Tensor:
            kept = keep_likeliest(lprobs / self.temperature, top_k=self.top_k, top_p=self.top_p)
            return draw(kept, at[:, None]).squeeze(1)

        rows, places = paths.inside()
        vertices = paths.vertices[rows, places]
        at = numbers(rows, vertices, _WORD)
        words, scores = choose_words(scorer, graph.hidden[graphs[rows], vertices], choose, at)
        ends = score_ends(scorer, graph)
        return spell(
            graph, paths, words, scores, ends, eos=scorer.vocab.eos, merge_repeats=self.merge_repeats
        )


def draw(logits: Tensor, at: Tensor) -> Tensor:
    """By inversion, the first of logits [...,V] up to which the mass is more than a share at [...,N] fp64.

    Nothing is added up over the width: more columns of minus infinity at the end change no draw.
    """
    shifted = (logits - logits.amax(-1, keepdim=True)).double()
    mass = shifted.exp_().cumsum(-1)
    found = torch.searchsorted(mass, (at * mass[..., -1:]).contiguous(), right=True)
    return found.clamp(max=logits.shape[-1] - 1)  # past the end where there is no mass
