"""What the searches over a DA-Transformer's whole graph share: words at every vertex, length penalties.

Symbols: B rows, L graph vertices, C words of a vertex, D features, V words.
"""

from __future__ import annotations

from torch import Tensor

from nartk.decoders.graph import choose_words, likeliest, score_ends
from nartk.decoders.tensor_best import best_of
from nartk.rows import steps
from nartk.scorer import Graph, GraphScorer


def say_everywhere(scorer: GraphScorer, graph: Graph, count: int = 1) -> tuple[Tensor, Tensor]:
    """The `count` likeliest words of each vertex, best first, and their log-probabilities: [B,L,C] and fp32.

    The last vertex says eos alone. A log-probability is minus infinity where there is no word: at vertex 0,
    at the last vertex beside eos, beyond the graph, and past the words of a small vocabulary.
    """
    batch, width = graph.links.shape[:2]
    count = min(count, len(scorer.vocab))
    place = steps(width, graph.links.device)
    last = graph.lengths - 1
    inner = (place > 0) & (place < last[:, None])  # [B,L]
    inner = inner.flatten().nonzero().squeeze(1)  # [N], which of B*L

    def choose(lprobs: Tensor) -> Tensor:
        return likeliest(lprobs)[:, None] if count == 1 else best_of(lprobs, count)

    found, lprobs = choose_words(scorer, graph.hidden.flatten(0, 1).index_select(0, inner), choose)  # [N,C]
    words = found.new_full((batch * width, count), scorer.vocab.eos).index_copy_(0, inner, found)
    scores = lprobs.new_full((batch * width, count), float("-inf")).index_copy_(0, inner, lprobs)
    scores[last + steps(batch, last.device) * width, 0] = score_ends(scorer, graph)
    return words.view(batch, width, count), scores.view(batch, width, count)


def powers(most: int, exponent: float, like: Tensor) -> Tensor:
    """Lengths 0 to `most` ** exponent, with 1 for length 0. By Python: a tensor's bits depend on its size."""
    return like.new_tensor([1.0, *(length**exponent for length in range(1, most + 1))])
