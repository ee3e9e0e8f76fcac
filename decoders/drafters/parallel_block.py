"""Drafts with a blockwise model, which fills positions behind the output (Xia et al. 2022, arXiv:2203.16487).

Symbols: K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

import numpy as np

from nartk.decoders.drafters.parallel import ParallelDrafts
from nartk.decoders.loop.drafter import Draft, Drafter, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import BlockScorer, Canvas, always_banned
from nartk.protocols.passes import IntArray, Want, costs_of
from nartk.registry import register_drafter

_OUTPUT = 15  # tokens that an output is taken to have when it is drafted for


@register_drafter("block")
class BlockDrafts(ParallelDrafts):
    """The positions behind the output, filled at once."""

    needs = (BlockScorer,)

    def make_drafter(self, scorer: BlockScorer) -> Drafter:
        return BlockDrafter(scorer, longest=self.block_size)


class BlockDrafter(PlainDrafter):
    """Fills so many positions behind the output, for all rows at once; the model's eos ends a draft.

    A row's state is the handle of its source, as the model has encoded it.

    Args:
        longest: Most tokens of a draft.
    """

    def __init__(self, scorer: BlockScorer, *, longest: int) -> None:
        self.scorer, self.longest = scorer, min(longest, scorer.block)
        self.costs = costs_of(scorer)

    def tokens(self, levels: int) -> int:
        return min(levels, self.longest)

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
        best = iter(self.scorer.fill(canvas, Want(only=only, banned=banned)).best.tolist())
        tokens = [self._up_to_eos([*islice(best, count)]) for count in counts]
        return [Draft(each, passes=int(bool(each))) for each in tokens]

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
