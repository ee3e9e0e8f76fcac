"""Drafts with a blockwise model, which fills positions behind the output (Xia et al. 2022, arXiv:2203.16487).

Symbols: K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from nartk.decoders.drafters.lattice import BRANCHES, Lattice, options_of
from nartk.decoders.drafters.parallel import ParallelDrafts
from nartk.decoders.loop.drafter import Draft, Drafter, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import BlockScorer, Canvas, always_banned
from nartk.protocols.passes import FloatArray, IntArray, Want, costs_of
from nartk.registry import register_drafter

_OUTPUT = 15  # tokens that an output is taken to have when it is drafted for


@register_drafter("block")
class BlockDrafts(ParallelDrafts):
    """The positions behind the output, filled at once."""

    needs = (BlockScorer,)

    def make_drafter(self, scorer: BlockScorer) -> Drafter:
        return BlockDrafter(scorer, longest=self.block_size, nodes=self.tree)


class BlockDrafter(PlainDrafter):
    """Fills so many positions behind the output, for all rows at once; the model's eos ends a draft.

    A row's state is the handle of its source, as the model has encoded it.

    Args:
        longest: Most tokens of a draft.
        nodes: Most tokens beside the best draft; 0: a chain.
    """

    def __init__(self, scorer: BlockScorer, *, longest: int, nodes: int) -> None:
        self.scorer, self.longest, self.nodes = scorer, min(longest, scorer.block), nodes
        self.top = min(BRANCHES + 1, len(scorer.vocab)) if nodes else 0
        self.costs = costs_of(scorer)

    def tokens(self, levels: int) -> int:
        return min(levels, self.longest) + self.nodes

    def start_time(self, source: float) -> float:
        return self.costs.encoding * source

    def draft_time(self, rows: int, levels: int) -> float:
        """The model reads the output at each draft."""
        read = _OUTPUT + min(levels, self.longest)
        return super().draft_time(rows, levels) + self.costs.run(rows * read)

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[int]:
        handles: list[int] = self.scorer.encode([request.source for request in requests]).tolist()
        return handles

    def stop(self, states: Sequence[int]) -> None:
        self.scorer.free(states)

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        most = self.scorer.limits.target
        counts = [
            max(0, min(self.longest, budget, most - len(row.tokens)))
            for row, budget in zip(rows, budgets, strict=True)
        ]
        drafting = [(row, count) for row, count in zip(rows, counts, strict=True) if count]
        if not drafting:
            return [Draft() for _ in rows]
        canvas, only = self._canvas(drafting)
        banned = always_banned((self.scorer.mask, self.scorer.vocab.pad), len(only))
        scores = self.scorer.fill(canvas, Want(only=only, banned=banned, top=self.top))
        best, begin, drafts = scores.best.tolist(), 0, []
        for count, budget in zip(counts, budgets, strict=True):
            tokens = self._up_to_eos(best[begin : begin + count])
            if self.nodes and count:
                part = slice(begin, begin + len(tokens))
                draft = self._tree(tokens, scores.top[part], scores.top_log_probs[part], budget)
            else:
                draft = Draft(tokens)
            draft.passes = int(count > 0)
            drafts.append(draft)
            begin += count
        return drafts

    def _canvas(self, drafting: Sequence[tuple[Row, int]]) -> tuple[Canvas, IntArray]:
        """Outputs with unfilled positions behind them, and the indices of these."""
        words = [[*row.tokens, *[self.scorer.mask] * count] for row, count in drafting]
        lengths = np.array([len(each) for each in words], np.int32)
        memory = np.array([row.state for row, _ in drafting], np.int32)
        canvas = Canvas(memory, lengths, np.array(list(chain.from_iterable(words)), np.int32))
        ends = np.cumsum(lengths).tolist()
        only = [range(end - count, end) for end, (_, count) in zip(ends, drafting, strict=True)]
        return canvas, np.array(list(chain.from_iterable(only)), np.int32)

    def _up_to_eos(self, tokens: list[int]) -> list[int]:
        eos = self.scorer.vocab.eos
        return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens

    def _tree(self, tokens: list[int], top: IntArray, log_probs: FloatArray, levels: int) -> Draft:
        """The best words [K] and the likeliest ones [K,C] as a tree."""
        end, eos = len(tokens), self.scorer.vocab.eos
        onward = range(1, end + 1)
        rows = zip(top.tolist(), log_probs.tolist(), onward, strict=True)
        options = [options_of(*row, end, eos) for row in rows]
        lattice = Lattice.of(tokens, onward, options)
        return lattice.tree(0, longest=end, levels=levels, nodes=self.nodes)
