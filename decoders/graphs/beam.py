"""The search of `dag-beam`: prefixes of words, each at all the vertices at which it may have ended.

Symbols: k prefixes of t words, L vertices of a graph, C words of a vertex, U words of a graph, M pairs of a
vertex and a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nartk.decoders.graphs.best import best_of
from nartk.decoders.graphs.ngram_lm import NGram
from nartk.decoders.native import NativeOutput
from nartk.protocols.passes import FloatArray, IntArray

_Ints = npt.NDArray[np.int64]
_Wide = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WordLattice:
    """A graph as probabilities. Its words are numbered from 0 in the order of the vocabulary.

    Attributes:
        edges: [L,L], of each edge.
        names: [U], the words.
        spoken: [U,L], of each word at each vertex between the first and the last.
        vertices, probs: [M] vertex and probability of all pairs, those of a word together.
        begins: [U], where the pairs of each word begin.
        end: Probability of eos at the last vertex.
    """

    edges: _Wide
    names: _Ints
    spoken: _Wide
    vertices: _Ints
    probs: _Wide
    begins: _Ints
    end: float

    @classmethod
    def of(cls, links: FloatArray, words: IntArray, log_probs: FloatArray) -> WordLattice:
        """The lattice of links [L,L] and of words [L,C] with their log-probabilities."""
        vertices, columns = np.nonzero(log_probs[1:-1] > -np.inf)
        vertices = vertices + 1
        names, numbers = np.unique(words[vertices, columns].astype(np.int64), return_inverse=True)
        order = np.argsort(numbers, kind="stable")
        vertices, numbers = vertices[order], numbers[order]
        probs = np.exp(log_probs[vertices, columns[order]].astype(np.float64))
        spoken = np.zeros((len(names), len(links)))
        spoken[numbers, vertices] = probs
        begins = np.searchsorted(numbers, np.arange(len(names)))
        edges = np.exp(links.astype(np.float64))
        return cls(edges, names, spoken, vertices, probs, begins, math.exp(log_probs[-1, 0]))

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The vertices of the likeliest path that emits tokens, of equal ones the lowest from the end on.

        Args:
            tokens: An output that the lattice has, eos at its end or, where a limit cut it off, not.
        """
        last = len(self.edges) - 1
        at = dict(zip(self.names.tolist(), self.spoken, strict=True))
        mass, came = np.zeros(last + 1), []
        mass[0] = 1.0
        for token in tokens:
            emitted = at.get(token)
            if emitted is None:  # eos
                emitted = np.zeros(last + 1)
                emitted[last] = self.end
            moved = mass[:, None] * self.edges  # [L,L]
            came.append(moved.argmax(0))
            mass = moved.max(0) * emitted
            mass = mass / mass.max()
        vertices = [int(mass.argmax())]
        for before in reversed(came[1:]):
            vertices.append(int(before[vertices[-1]]))
        return vertices[::-1]

    def probs_of_words(self, moved: _Wide) -> _Wide:
        """The probability [k,U] of each word next, for those [k,L] of the next vertex."""
        pairs = moved[:, self.vertices] * self.probs  # [k,M]
        return np.add.reduceat(pairs, self.begins, axis=1) if len(self.names) else pairs


@dataclass(frozen=True)
class GraphPrefixes:
    """k prefixes of t words, best first.

    Attributes:
        mass: [k,L], the probability of being at each vertex after these words.
        totals: [k], log P of the prefix.
        lm_totals: [k], its weighted log-probability under the language model.
        states: [k], of the language model.
        tokens: [k,t], numbers of the words.
        scores: [k,t], log-probability of each.
    """

    mass: _Wide
    totals: _Wide
    lm_totals: _Wide
    states: _Ints
    tokens: _Ints
    scores: _Wide


@dataclass(frozen=True)
class GraphSearch:
    """Finds the outputs of a lattice with the largest (log P(Y|X) + gamma log P_LM(Y)) / |Y|^alpha.

    Attributes:
        size: Prefixes of each length that are kept.
        no_repeat_ngram: No so many tokens recur; 0: they may.
        nbest: Outputs that are found, at most.
        lm: With weight `gamma`; None: there is none.
    """

    size: int
    alpha: float
    no_repeat_ngram: int
    nbest: int
    lm: NGram | None
    gamma: float

    def run(self, lattice: WordLattice, limit: int, eos: int) -> list[NativeOutput]:
        """The best outputs of at most `limit` tokens, or else a prefix of so many, without eos."""
        last = len(lattice.edges) - 1
        longest = min(limit, last)  # no path has more edges
        penalties = [1.0, *(t**self.alpha for t in range(1, longest + 2))]
        mass = np.zeros((1, last + 1))
        mass[0, 0] = 1.0
        none = np.zeros((1, 0))
        start = np.array([0 if self.lm is None else self.lm.start])
        beam = GraphPrefixes(mass, np.zeros(1), np.zeros(1), start, none.astype(np.int64), none)
        scorer = None if self.lm is None else LanguageScores(self.lm, np.append(lattice.names, eos))
        ended: list[NativeOutput] = []
        cut = NativeOutput([], -math.inf, [])
        for t in range(1, longest + 1):
            moved = beam.mass @ lattice.edges
            lm_scores = None if scorer is None else scorer.advance(beam.states)
            # Of equal ones the shorter comes first: the sort is stable.
            ended = sorted(
                [*ended, *self._ended(lattice, beam, moved[:, last], penalties[t], lm_scores, eos)],
                key=lambda output: -output.score,
            )[: self.nbest]
            beam = self._extended(lattice, beam, moved, lm_scores)
            if not len(beam.totals):
                break
            best = (beam.totals + beam.lm_totals).max()
            names = lattice.names[beam.tokens[0]].tolist()
            cut = NativeOutput(names, _fp32(best / penalties[t]), _fp32s(beam.scores[0]))
            # Log-probabilities are at most 0, so what is divided by most loses least.
            bound = best / max(penalties[t + 1], penalties[longest])
            if len(ended) == self.nbest and _fp32(bound) <= ended[-1].score:
                break
        return ended or [cut]

    def _ended(
        self,
        lattice: WordLattice,
        beam: GraphPrefixes,
        arrived: _Wide,
        penalty: float,
        lm_scores: tuple[_Wide, _Ints] | None,
        eos: int,
    ) -> list[NativeOutput]:
        """The best of the prefixes with eos, of which each has arrived [k] at the last vertex."""
        with np.errstate(divide="ignore"):
            log_probs = np.log(arrived * lattice.end)
        totals = beam.totals + log_probs + beam.lm_totals
        if lm_scores is not None:
            totals = totals + self.gamma * lm_scores[0][:, -1]
        ranks = (totals / penalty).astype(np.float32)
        chosen = [i for i in best_of(ranks[None], self.nbest)[0] if ranks[i] > -np.inf]
        return [
            NativeOutput(
                [*lattice.names[beam.tokens[i]].tolist(), eos],
                float(ranks[i]),
                _fp32s(np.append(beam.scores[i], log_probs[i])),
            )
            for i in chosen
        ]

    def _extended(
        self,
        lattice: WordLattice,
        beam: GraphPrefixes,
        moved: _Wide,
        lm_scores: tuple[_Wide, _Ints] | None,
    ) -> GraphPrefixes:
        """The best prefixes that are longer by a word; moved [k,L] is where those of the beam go next."""
        probs, count = lattice.probs_of_words(moved), len(lattice.names)
        with np.errstate(divide="ignore"):
            ranks = np.log(probs) + (beam.totals + beam.lm_totals)[:, None]  # [k,U]
        if lm_scores is not None:
            ranks += self.gamma * lm_scores[0][:, :-1]
        if self.no_repeat_ngram:
            ranks[repeats(beam.tokens, self.no_repeat_ngram)] = -np.inf
        flat = ranks.reshape(1, -1)
        best = best_of(flat, self.size)[0]
        parents, words = np.divmod(best[flat[0, best] > -np.inf], max(1, count))
        prob = probs[parents, words]
        mass = moved[parents] * lattice.spoken[words] / prob[:, None]
        lm_totals, states = beam.lm_totals[parents], beam.states[parents]
        if lm_scores is not None:
            lm_totals, states = (
                lm_totals + self.gamma * lm_scores[0][parents, words],
                lm_scores[1][parents, words],
            )
        scores = np.log(prob)
        return GraphPrefixes(
            mass,
            beam.totals[parents] + scores,
            lm_totals,
            states,
            np.column_stack([beam.tokens[parents], words]),
            np.column_stack([beam.scores[parents], scores]),
        )


class LanguageScores:
    """Scores of a language model for the words [U] of a graph in each state, looked up once a state."""

    def __init__(self, lm: NGram, words: _Ints) -> None:
        self._lm, self._words = lm, words
        self._known: dict[int, tuple[_Wide, _Ints]] = {}

    def advance(self, states: _Ints) -> tuple[_Wide, _Ints]:
        """The words' log-probabilities in states [k], and the states after them: both [k,U]."""
        for state in set(states.tolist()) - self._known.keys():
            self._known[state] = self._lm.advance(np.array(state), self._words)
        scores, after = zip(*(self._known[state] for state in states.tolist()), strict=True)
        return np.stack(scores), np.stack(after)


def repeats(tokens: _Ints, n: int) -> tuple[_Ints, _Ints]:
    """The rows of tokens [k,t], and the words that would make their last n tokens recur in them."""
    length = tokens.shape[1]
    if length < n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, n, axis=1)  # [k,t-n+1,n]
    rows, at = (windows[:, :, :-1] == tokens[:, None, length - n + 1 :]).all(2).nonzero()
    return rows, windows[rows, at, -1]


def _fp32(value: float) -> float:
    return float(np.float32(value))


def _fp32s(values: _Wide) -> list[float]:
    found: list[float] = values.astype(np.float32).tolist()
    return found
