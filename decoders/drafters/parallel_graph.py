"""Drafts with a DA-Transformer: its lookahead path from the vertex at which the output ends.

Symbols: B rows, L vertices of a row's graph, N of all, C words of a vertex, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.decoders.drafters.lattice import BRANCHES, Lattice, Option, likeliest_pairs
from nartk.decoders.drafters.parallel import BranchingDrafts, ReadOnce
from nartk.decoders.graphs.graph import read_words
from nartk.decoders.loop.drafter import Draft, Drafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.parallel import GraphScorer
from nartk.protocols.passes import FloatArray, IntArray
from nartk.registry import register_drafter

_WORDS = 8  # of each vertex, the likeliest; all others count as equally likely
_REST = 1e-6  # probability that is left for them, at least
JUMP = -6.0  # log-probability with which a path goes where no edge leads, or has a word at vertex 0


@dataclass(slots=True)
class GraphState:
    """A row's graph, and where the output is in it.

    Attributes:
        links: [L,L] fp32, the log-probability of each edge; `JUMP` where it is lower, or where there is none.
        words: [L,C] int32, the likeliest of each vertex, best first; the last vertex says eos.
        log_probs: [L,C] fp32, of them.
        others: [L] fp32, the log-probability of each other word; `JUMP` at vertex 0.
        drafts: The lookahead path from each vertex, and what else may be there where drafts branch.
        forward: [L] fp32, log-probability of the likeliest path that says the output and ends at each vertex.
        seen: Number of output tokens that `forward` covers.
        passes: Passes of the model that no draft has reported yet.
    """

    links: FloatArray
    words: IntArray
    log_probs: FloatArray
    others: FloatArray
    drafts: Lattice
    forward: FloatArray
    seen: int = 0
    passes: int = 1

    def follow(self, output: Sequence[int]) -> None:
        """Goes on to the output's end."""
        for token in output[self.seen :]:
            # A word that is listed is no less likely than one that is not.
            listed = np.where(self.words == token, self.log_probs, -np.inf).max(1)
            self.forward = (self.forward[:, None] + self.links).max(0) + np.maximum(listed, self.others)
        self.seen = len(output)


@register_drafter("graph")
class GraphDrafts(BranchingDrafts):
    """The lookahead path from the vertex at which the output ends."""

    needs = (GraphScorer,)

    def make_drafter(self, scorer: GraphScorer) -> Drafter:
        return GraphDrafter(scorer, longest=self.block_size, nodes=self.tree)


class GraphDrafter(ReadOnce):
    """Goes on along the lookahead path from the vertex at which the likeliest path ends that says the output.

    It is the vertex v with the largest f(t, v) = P(y_t|v) * max over u of f(t-1, u) P(v|u), which is the
    forward pass of Huang et al. 2022 (arXiv:2205.07459, section 3.4) with a maximum in the place of the sum.
    So that some path says whatever is accepted, a path may go from any vertex to any, and vertex 0 may say
    any word, at the cost of `JUMP`. A tree's other paths are the likeliest pairs of an edge and a word.

    Args:
        nodes: Most tokens beside the best draft; 0: a chain.
    """

    scorer: GraphScorer

    def __init__(self, scorer: GraphScorer, *, longest: int, nodes: int) -> None:
        super().__init__(scorer, longest=longest)
        self.nodes = nodes

    def tokens(self, levels: int) -> int:
        return super().tokens(levels) + self.nodes

    def read(self, memory: IntArray) -> list[GraphState]:
        graphs = self.scorer.graphs(memory)
        words, log_probs = read_words(self.scorer, graphs, graphs.vertices, _WORDS)
        words[graphs.begins], log_probs[graphs.begins] = -1, -np.inf
        parts = zip(graphs.links, graphs.split(words), graphs.split(log_probs), strict=True)
        return [self._state(*each) for each in parts]

    def _state(self, links: FloatArray, words: IntArray, log_probs: FloatArray) -> GraphState:
        """The state of a graph with edges [L,L], words [L,C] and their log-probabilities."""
        size = len(links)
        rest = np.maximum(1 - np.exp(log_probs).sum(1), _REST)
        others = np.log(rest / len(self.scorer.vocab)).astype(np.float32)
        others[0], others[-1] = JUMP, -np.inf
        forward = np.full(size, -np.inf, np.float32)
        forward[0] = 0.0
        # What does not lead to a later vertex is taken for the next one, so that every walk ends.
        following = (links[:-1] + log_probs[:, 0]).argmax(1)
        following = np.maximum(following, np.arange(1, size))
        drafted = words[following, 0].tolist()
        options: list[list[Option]] = [[] for _ in drafted]
        if self.nodes:
            options = likeliest_pairs(links[:-1], words[:, :BRANCHES], log_probs[:, :BRANCHES], range(size))
        drafts = Lattice.of(drafted, following.tolist(), options)
        return GraphState(np.maximum(links, np.float32(JUMP)), words, log_probs, others, drafts, forward)

    def propose(self, row: Row, budget: int) -> Draft:
        state: GraphState = row.state
        state.follow(row.tokens)
        longest, vertex = min(self.longest, budget), int(state.forward.argmax())
        if self.nodes:
            draft = state.drafts.tree(vertex, longest=longest, levels=budget, nodes=self.nodes)
        else:
            draft = Draft(state.drafts.path(vertex, longest))
        draft.passes, state.passes = state.passes, 0
        return draft
