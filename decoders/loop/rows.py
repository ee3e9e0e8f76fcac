"""The rows of a batch: where sentences enter, what is known of each, and where they leave."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from nartk.decoders.loop.drafter import State
from nartk.decoders.loop.packing import Unread
from nartk.protocols.hypothesis import Request, TokenTrace
from nartk.protocols.passes import PassScorer


@dataclass(slots=True, eq=False)
class Known(Unread):
    """An output as far as it is known.

    Attributes:
        prompt: What the output begins after, such as the start token.
        tokens: The output; at first what is forced, such as the request's prefix.
        log_probs: Of these, but for those `pending`.
        closing: The last token of an output that is forced as a whole, which is not among the tokens; -1:
            the output goes on.
    """

    request: Request
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    closing: int = -1

    @property
    def unread(self) -> Sequence[int]:
        begin = self.cells - len(self.prompt)
        return self.tokens[begin:] if begin >= 0 else [*self.prompt[begin:], *self.tokens]

    def force(self, output: Sequence[int], *, is_whole: bool) -> None:
        """Begins with forced tokens; `is_whole`: nothing follows them."""
        if output:
            self.tokens = [*output[: len(output) - is_whole]]
            self.closing = output[-1] if is_whole else -1
            self.pending = len(self.tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class Row(Known):
    """A sentence in the batch.

    Attributes:
        started: When it entered, seconds of `time.perf_counter`.
        budget: Levels of the draft that were asked for.
        was_rejected: Whether a token of its last draft was, if it had one in its last pass.
        is_drafting: Whether the drafter has been started for it.
        state: The drafter's, if so.
        trace: Where each token came from, if that is asked for.
        ended: Whether the output is complete.
    """

    started: float
    budget: int = 0
    was_rejected: bool = False
    is_drafting: bool = False
    state: State = None
    trace: list[TokenTrace] = field(default_factory=list)
    ended: bool = False
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    branches: int = 0
    drafter_passes: int = 0

    @property
    def contexts(self) -> tuple[int, ...]:
        return (self.context,)


class Seated(Protocol):
    """What a batch knows of a row; beam search's rows have several contexts."""

    request: Request
    memory: int
    ended: bool

    @property
    def contexts(self) -> Sequence[int]:
        """Handles that are open."""


R = TypeVar("R", bound=Seated)


class Batch(Generic[R]):
    """Rows that come and go: sources are encoded as rows enter, cells and memory given back as they leave.

    Args:
        make_row: A row of a request, the handles of its encoded source and of an open context, and the time.
        size: Most rows.
        max_tokens: Most source tokens of all rows; one row is always allowed. None: no bound.
    """

    def __init__(
        self,
        scorer: PassScorer,
        requests: Iterable[Request],
        make_row: Callable[[Request, int, int, float], R],
        *,
        size: int,
        max_tokens: int | None,
    ) -> None:
        self.scorer, self.make_row, self.size, self.max_tokens = scorer, make_row, size, max_tokens
        # Long sentences first: they end last, and sources that are encoded together are alike in length.
        self.waiting = deque(sorted(requests, key=lambda request: (-len(request.source), request.index)))
        self.rows: list[R] = []

    def enter(self) -> list[R]:
        """Lets waiting sentences in, so many at once that the encoder gets batches; the new rows."""
        free = self.size - len(self.rows)
        if not self.waiting or (self.rows and 4 * free < self.size):
            return []
        requests = self._next(free)
        if not requests:
            return []
        now = time.perf_counter()
        memory = self.scorer.encode([request.source for request in requests]).tolist()
        try:
            contexts = self.scorer.open(len(requests)).tolist()
        except BaseException:
            self.scorer.free(memory)
            raise
        handles = zip(requests, memory, contexts, strict=True)
        new = [self.make_row(request, source, context, now) for request, source, context in handles]
        self.rows += new
        return new

    def _next(self, free: int) -> list[Request]:
        if self.max_tokens is None:
            return [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]
        capacity = self.max_tokens - sum(len(row.request.source) for row in self.rows)
        longest = len(self.waiting[0].source)
        taken: list[Request] = []
        while self.waiting and len(taken) < free and (len(taken) + 1) * longest <= capacity:
            taken.append(self.waiting.popleft())
        if not taken and not self.rows:
            taken.append(self.waiting.popleft())
        return taken

    def leave(self) -> list[R]:
        """Lets rows go that have ended; these."""
        ended = [row for row in self.rows if row.ended]
        if ended:
            self.rows = [row for row in self.rows if not row.ended]
            self._give_back(ended)
        return ended

    def close(self) -> None:
        """Lets all rows go, ended or not."""
        rows, self.rows = self.rows, []
        if rows:
            self._give_back(rows)

    def _give_back(self, rows: Sequence[R]) -> None:
        self.scorer.close([context for row in rows for context in row.contexts])
        self.scorer.free([row.memory for row in rows])
