"""The likeliest pairs of an edge and a word from a vertex, as the DA-Transformer's program ranks them.

https://github.com/thu-coai/DA-Transformer, `inference_lookahead_repeatprevent` and `inference_sample`.
Symbols: L vertices of a graph, C words of a vertex, n pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nartk.decoders.graphs.beam import repeats
from nartk.decoders.graphs.best import best_of
from nartk.protocols.passes import FloatArray, IntArray
from nartk.registry import HEAVIEST, option

BETA_HELP = "the words' log-probabilities are multiplied by it before edges' are added"


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Options of the strategies that choose among pairs, named as in the program."""

    decode_beta: float = option(1.0, BETA_HELP, above=0, high=HEAVIEST)
    decode_no_consecutive_repeated_ngram: int = option(
        0, "no up to n tokens are followed by the same ones; 0: they may be", low=0
    )
    decode_no_repeated_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0)
    decode_top_p: float = option(
        0.9, "the likeliest pairs count until their probabilities exceed this", low=0, high=1
    )

    @property
    def avoids_repeats(self) -> bool:
        return self.decode_no_consecutive_repeated_ngram > 0 or self.decode_no_repeated_ngram > 0

    def repeating(self, tokens: Sequence[int]) -> set[int]:
        """The words that would repeat something behind tokens; the last one again, always."""
        found = set(tokens[-1:])
        for n in range(2, min(self.decode_no_consecutive_repeated_ngram, (len(tokens) + 1) // 2) + 1):
            if tokens[1 - n :] == tokens[1 - 2 * n : -n]:
                found.add(tokens[-n])
        if self.decode_no_repeated_ngram:
            found.update(repeats(np.array([tokens], np.int64), self.decode_no_repeated_ngram)[1].tolist())
        return found

    def walk(
        self,
        edges: FloatArray,
        words: IntArray,
        log_probs: FloatArray,
        count: int,
        choose: Callable[[int, Sequence[float], Sequence[bool]], int],
    ) -> tuple[list[int], IntArray]:
        """Goes from vertex 0 to the last by one of the `count` likeliest pairs at a time.

        Args:
            edges: [L,L], log-probabilities.
            words, log_probs: [L,C].
            choose: Gives the index of a pair from the vertex, the probabilities of its pairs, best first, and
                which of them repeat something.

        Returns:
            The path, and the column of its word at each vertex behind the first.
        """
        vertex, path, columns, tokens = 0, [0], [], list[int]()
        while vertex < len(edges) - 1:
            scores = edges[vertex, vertex + 1 :, None] + self.decode_beta * log_probs[vertex + 1 :]
            best = best_of(scores.reshape(1, -1), count)[0]
            probs = np.exp(scores.reshape(-1)[best].astype(np.float64)).tolist()
            nexts, ranks = np.divmod(best, words.shape[1])
            emitted, banned = words[vertex + 1 + nexts, ranks].tolist(), self.repeating(tokens)
            pair = choose(vertex, probs, [word in banned for word in emitted])
            vertex += 1 + int(nexts[pair])
            path.append(vertex)
            columns.append(int(ranks[pair]))
            tokens.append(emitted[pair])
        return path, np.array(columns, np.int32)

    def first_new(self, vertex: int, probs: Sequence[float], repeated: Sequence[bool]) -> int:
        """The likeliest pair that repeats nothing; where those before it exceed `decode_top_p`, the best."""
        mass = 0.0
        for i, (prob, is_repeated) in enumerate(zip(probs, repeated, strict=True)):
            if not is_repeated:
                return i
            mass += prob
            if mass > self.decode_top_p:
                break
        return 0

    def weights(self, probs: Sequence[float], repeated: Sequence[bool]) -> list[float]:
        """Weights in a draw of the pairs that count: next to nothing for those that repeat something."""
        found: list[float] = []
        for mass, prob, is_repeated in zip(np.cumsum(probs), probs, repeated, strict=True):
            found.append(1e-5 if is_repeated else prob)
            if mass > self.decode_top_p:
                break
        return found
