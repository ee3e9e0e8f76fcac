"""Token recycling (Luo et al. 2024, arXiv:2408.08696): the verifier's own candidates are the next drafts.

Every pass ranks the words that may follow each verified token, accepted or not. What was ranked best after a
word is a guess at what follows it elsewhere. Symbols: V words, k candidates a word, N tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.hypothesis import Request
from nartk.passes import ROOT, IntArray, Want


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


class TokenRecycling(PlainDrafter):
    """Follows the candidates after the output's last token; all rows share one matrix.

    After a token its first candidates are drafted that are not yet on the path to it, so many as the shape
    has at that level. Behind the last of these levels the first path alone goes on, with the best candidates.

    Args:
        words: V.
        start_token: Which every output follows.
        k: Candidates kept after each word.
        max_draft: Most levels.
        shape: How many candidates are drafted at each level; (): the best alone, a chain.
    """

    def __init__(
        self, words: int, *, start_token: int, eos: int, k: int, max_draft: int, shape: Sequence[int] = ()
    ) -> None:
        self.start_token, self.eos, self.max_draft, self.shape = start_token, eos, max_draft, shape
        self.want = Want(top=min(k, words))
        self.matrix = AdjacencyMatrix(words, self.want.top)

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[None]:
        return [None] * len(requests)

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        drafts = []
        for row, budget in zip(rows, budgets, strict=True):
            last = row.tokens[-1] if row.tokens else self.start_token
            most = min(budget, self.max_draft)
            drafts.append(self._tree(last, most) if self.shape else Draft(self._chain([last], most)))
        return drafts

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        top = verified.scores.top
        assert top is not None
        self.matrix.record(verified.work.tokens, top[:, : self.want.top])

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
