"""Token recycling (Luo et al. 2024, arXiv:2408.08696): the verifier's own candidates are the next drafts.

Every pass ranks the words that may follow each verified token, accepted or not. What was ranked best after a
word is a guess at what follows it elsewhere. Symbols: V words, k candidates a word, N tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any, ClassVar

import numpy as np

from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft, Drafter, DrafterOptions, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.decoders.loop.trees import parse_shape
from nartk.protocols.passes import ROOT, IntArray, PassScorer, Want
from nartk.registry import WIDEST, option, register_drafter

_LEVELS = 6  # what was ranked after a word elsewhere hardly ever follows further on


class AdjacencyMatrix:
    """The words that were ranked best after each word when it was verified last.

    Args:
        words: V.
        k: Candidates a word.
    """

    def __init__(self, words: int, k: int) -> None:
        self._candidates = np.full((words, k), -1, np.int32)

    def record(self, tokens: IntArray, ranked: IntArray) -> None:
        """Takes the ranking [N,k] after each verified token [N]; of equal tokens the last counts."""
        self._candidates[tokens] = ranked

    def after(self, word: int) -> list[int]:
        """The candidates after a word, the best first; -1 in the place of those that there are not."""
        found: list[int] = self._candidates[word].tolist()
        return found


@register_drafter("recycling")
class RecycledWords(DrafterOptions):
    """The words that the verifier ranked best after the same tokens."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer,)

    k: int = option(
        8, "candidates kept after each word; the best that the draft does not yet hold", low=1, high=WIDEST
    )
    max_draft: int = option(_LEVELS, "longest draft, tokens; 0: none", low=0)
    tree: str = option(
        "",
        "how many of them are drafted at each level, such as 4x3x2, and the best further on: fewer passes, "
        "each of which verifies more, which costs a CPU more than it saves; '': the best alone",
    )

    def __post_init__(self) -> None:
        if self.tree:
            parse_shape(self.tree)

    @classmethod
    def beside_others(cls: Any, longest: int) -> DrafterOptions:
        made: DrafterOptions = cls(max_draft=min(longest, _LEVELS), tree="4x3x2")
        return made

    def make_drafter(self, scorer: PassScorer) -> Drafter:
        return TokenRecycling(
            len(scorer.vocab),
            eos=scorer.vocab.eos,
            k=self.k,
            max_draft=self.max_draft,
            shape=parse_shape(self.tree) if self.tree else (),
        )


class TokenRecycling(PlainDrafter):
    """Follows the candidates after the output's last token; all rows share one matrix.

    After a token its first candidates are drafted that are not yet on the path to it, so many as the shape
    has at that level. Behind the last of these levels the first path alone goes on, with the best candidates.

    Args:
        words: V.
        k: Candidates kept after each word.
        max_draft: Most levels.
        shape: Number of candidates drafted at each level; (): the best alone, a chain.
    """

    def __init__(self, words: int, *, eos: int, k: int, max_draft: int, shape: Sequence[int] = ()) -> None:
        self.eos, self.max_draft, self.shape = eos, max_draft, shape
        self.want = Want(top=min(k, words))
        self.matrix = AdjacencyMatrix(words, self.want.top)

    rates = (0.4, 0.5)

    def tokens(self, levels: int) -> int:
        levels = min(levels, self.max_draft)
        widths = accumulate(self.shape[:levels], mul)
        count: int = sum(widths) + max(levels - len(self.shape), 0)
        return count

    def propose(self, row: Row, budget: int) -> Draft:
        most = min(budget, self.max_draft)
        return self._tree(row.last, most) if self.shape else Draft(self._chain([row.last], most))

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        top = verified.scores.top
        self.matrix.record(verified.tokens, top[:, : self.want.top])

    def _tree(self, last: int, most: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        paths = [([last], ROOT)]  # and the index of the last token of each
        for count in self.shape[: max(most, 0)]:
            grown = []
            for path, parent in paths:
                for word in self._fresh(path)[:count]:
                    grown.append(([*path, word], len(tokens)))
                    tokens.append(word)
                    parents.append(parent)
            paths = grown
        if paths:
            path, parent = paths[0]
            for word in self._chain(path, most - len(self.shape)):
                parents.append(parent)
                parent = len(tokens)
                tokens.append(word)
        return Draft(tokens, parents)

    def _chain(self, path: Sequence[int], most: int) -> list[int]:
        """The best candidates behind a path, one after the other."""
        whole = list(path)
        for _ in range(most):
            fresh = self._fresh(whole)
            if not fresh:
                break
            whole.append(fresh[0])
        return whole[len(path) :]

    def _fresh(self, path: Sequence[int]) -> list[int]:
        """The candidates behind a path that are not on it, lest it goes in circles."""
        if len(path) > 1 and path[-1] == self.eos:
            return []
        return [word for word in self.matrix.after(path[-1]) if word >= 0 and word not in path]
