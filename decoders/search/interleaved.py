"""Groups of a diverse beam search as fairseq has them: slices of one beam.

Vijayakumar et al. 2018, https://arxiv.org/abs/1610.02424, as DiverseBeamSearch of fairseq 0.12.2 reads it
(fairseq/search.py). Symbols: k hypotheses of a sentence, G groups, C candidates after each hypothesis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nartk.decoders.search.beam_rows import Beam, Candidates


@dataclass(frozen=True)
class Interleaved:
    """Chooses the continuations of a sentence's hypotheses group by group.

    Hypothesis i is of group ``i % G``; at first all groups go on with the only one there is. A group chooses
    the best continuations of its own hypotheses, where a word pays for each candidate of the groups before
    that has it, those included that do not go on. All candidates are ranked in turns: the best of each group,
    then the second best of each. So a hypothesis changes its group where a better one ends.

    Attributes:
        groups: G, which divides k.
        penalty: Cost of a word for each candidate that has it, nats; it stays in the score.
    """

    groups: int
    penalty: float

    def candidates(
        self,
        live: Sequence[Beam],
        words: npt.NDArray[np.integer],
        log_probs: npt.NDArray[np.floating],
        added: npt.NDArray[np.floating],
        totals: npt.NDArray[np.float64],
        most: int,
    ) -> Candidates:
        """The best continuations of hypotheses by their words, all [k,C].

        Args:
            log_probs, added: Log-probabilities of the words, and scores that these leave out, nats.
            totals: `Beam.total` of the outputs with the words.
            most: Candidates of all groups, a multiple of G.
        """
        width, each = words.shape[1], most // self.groups
        found: list[list[tuple[float, int, int, float, float]]] = []
        taken: Counter[int] = Counter()
        whole = len(live) == 1 and live[0].closing >= 0  # an output that is forced, which no group repeats
        for group in range(1 if whole else self.groups):
            index = [0] if len(live) == 1 else [*range(group, len(live), self.groups)]
            costs = [[self.penalty * taken[word] for word in row] for row in words[index].tolist()]
            sums = totals[index] - np.array(costs).reshape(len(index), width)
            best = np.argsort(-sums, axis=None, kind="stable")[:each].tolist()  # of equal ones the first
            chosen: list[tuple[float, int, int, float, float]] = []
            for row, column in (divmod(at, width) for at in best):
                at, word = index[row], int(words[index[row], column])
                rest = float(added[at, column]) - costs[row][column]
                chosen.append((float(sums[row, column]), at, word, float(log_probs[at, column]), rest))
            taken.update(word for total, _, word, _, _ in chosen if total > -np.inf)
            found.append(chosen + [(-np.inf, 0, 0, 0.0, 0.0)] * (each - len(chosen)))
        return Candidates(
            *map(list, zip(*(one for turn in zip(*found, strict=True) for one in turn), strict=True))
        )
