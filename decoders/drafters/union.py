"""The drafts of several drafters, verified together as one tree."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing

from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft, Drafter, State, combined, verifiable
from nartk.decoders.loop.rows import Row
from nartk.decoders.loop.trees import merged
from nartk.protocols.hypothesis import Request


class Union:
    """Proposes what each of several drafters does, as one tree.

    A row's state is a tuple of theirs.

    Args:
        drafters: The first one's draft is the first path.
        words: V.
        max_draft: Most levels.
        nodes: Most tokens at once.
    """

    def __init__(self, drafters: Sequence[Drafter], *, words: int, max_draft: int, nodes: int) -> None:
        self.drafters, self.words, self.max_draft, self.nodes = drafters, words, max_draft, nodes
        self.want = combined([drafter.want for drafter in drafters])

    @property
    def pays(self) -> float:
        return max(drafter.pays for drafter in self.drafters)

    @property
    def rates(self) -> tuple[float, float]:
        return self.drafters[0].rates

    def tokens(self, levels: int) -> int:
        levels = min(levels, self.max_draft)
        return min(self.nodes, sum(drafter.tokens(levels) for drafter in self.drafters))

    def start_time(self, source: float) -> float:
        return sum(drafter.start_time(source) for drafter in self.drafters)

    def draft_time(self, rows: int, levels: int) -> float:
        levels = min(levels, self.max_draft)
        return sum(drafter.draft_time(rows, levels) for drafter in self.drafters)

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[tuple[State, ...]]:
        states: list[list[State]] = []
        with ExitStack() as undo:
            for drafter in self.drafters:
                states.append(drafter.start(requests, memory))
                undo.callback(drafter.stop, states[-1])
            undo.pop_all()
        return list(zip(*states, strict=True))

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        levels = [min(budget, self.max_draft) for budget in budgets]
        with closing(self._turns(rows)) as turns:
            drafts = [drafter.draft(rows, levels) for drafter in turns]
        return [
            merged([verifiable(draft, self.words, most) for draft in of_row], most=self.nodes)
            for of_row, most in zip(zip(*drafts, strict=True), levels, strict=True)
        ]

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        with closing(self._turns(rows)) as turns:
            for drafter in turns:
                drafter.observe(rows, verdicts, verified)

    def stop(self, states: Sequence[tuple[State, ...]]) -> None:
        for drafter, own in zip(self.drafters, zip(*states, strict=True), strict=False):
            drafter.stop(own)

    def _turns(self, rows: Sequence[Row]) -> Generator[Drafter, None, None]:
        """Each drafter, while the rows have its states."""
        states = [row.state for row in rows]
        try:
            for i, drafter in enumerate(self.drafters):
                for row, each in zip(rows, states, strict=True):
                    row.state = each[i]
                yield drafter
        finally:
            for row, each in zip(rows, states, strict=True):
                row.state = each
