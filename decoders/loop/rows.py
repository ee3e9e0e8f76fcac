"""The rows of a batch: where sentences enter, what is known of each, and where they leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from nartk.decoders.loop.drafter import State
from nartk.decoders.loop.packing import Unread
from nartk.decoders.loop.prompting import Prompt, prompts_of
from nartk.protocols.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import ENCODE, NOTHING, Batching, Ended, Stopwatch, Waiting

_PATIENCE = 4  # most passes that sentences wait for others to be encoded with


@dataclass(slots=True, eq=False)
class Known(Unread):
    """An output as far as it is known.

    Attributes:
        prompt: Tokens that the output begins after, such as the start token.
        tokens: The output; at first what is forced, such as the request's prefix.
        log_probs: Log-probabilities of these, but for those `pending`.
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

    @property
    def last(self) -> int:
        """The last known token."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

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
        started: Time at which it entered, seconds of `time.perf_counter`.
        budget: Levels of the draft that were asked for.
        was_rejected: True if a token of its last draft was, if it had one in its last pass.
        is_drafting: True if the drafter has been started for it.
        state: The drafter's, if so.
        trace: Origin of each token, if that is requested.
        no_speech: Probability that nobody speaks in the source; None: it was not computed.
        ended: True if the output is complete.
    """

    started: float
    budget: int = 0
    was_rejected: bool = False
    is_drafting: bool = False
    state: State = None
    trace: list[TokenTrace] = field(default_factory=list)
    no_speech: float | None = None
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
    """Row as a batch knows it; beam search's rows have several contexts."""

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
        make_row: A row of a request, its prompt, the handles of its encoded source and of an open context,
            and the time.
        batching: Most rows at a time; its `max_tokens` count the sources of all rows.
    """

    def __init__(
        self,
        scorer: PassScorer,
        make_row: Callable[[Request, Prompt, int, int, float], R],
        batching: Batching,
    ) -> None:
        self.scorer, self.make_row = scorer, make_row
        self.size, self.max_tokens = batching.size, batching.max_tokens
        self.waiting = Waiting()
        self.rows: list[R] = []
        self._waited = 0  # passes

    def __len__(self) -> int:
        return len(self.waiting) + len(self.rows)

    def enter(self) -> list[R]:
        """Lets waiting sentences in, so many at once that the encoder gets batches; the new rows.

        Where less than a quarter of the rows is free, those that wait have patience: until there is more
        space if they need it, else for a few passes, so that requests that come one by one get batches too.
        """
        free = self.size - len(self.rows)
        if not self.waiting:
            return []
        self._waited += 1
        is_patient = len(self.waiting) > free or self._waited <= _PATIENCE
        if self.rows and 4 * free < self.size and is_patient:
            return []
        requests = self.waiting.take(free if self.max_tokens is None else self._fitting(free))
        if not requests:
            return []
        self._waited = 0
        now = time.perf_counter()
        memory = self.scorer.encode([request.source for request in requests]).tolist()
        try:
            asked, vad = [request.prompt for request in requests], [request.vad for request in requests]
            before = [request.before for request in requests]
            prompts = prompts_of(self.scorer, memory, asked, vad, before)
            contexts = self.scorer.open(len(requests)).tolist()
        except BaseException:
            self.scorer.free(memory)
            raise
        new = [self.make_row(*each, now) for each in zip(requests, prompts, memory, contexts, strict=True)]
        self.rows += new
        return new

    def _fitting(self, free: int) -> int:
        """Number of the next sources that fit into `max_tokens`, padding of the new ones included."""
        assert self.max_tokens is not None
        rest = self.max_tokens - sum(len(row.request.source) for row in self.rows)
        return max(min(free, rest // self.waiting.longest), int(not self.rows))

    def row_of(self, request: Request) -> R | None:
        """The row of a request; None: it waits, or has left."""
        return next((row for row in self.rows if row.request is request), None)

    def leave(self) -> list[R]:
        """Lets rows go that have ended; these."""
        ended = [row for row in self.rows if row.ended]
        if ended:
            self.rows = [row for row in self.rows if not row.ended]
            self._give_back(ended)
        return ended

    def drop(self, request: Request) -> R | None:
        """Lets a request go, whether it waits or not; its row, if it has one."""
        row = self.row_of(request)
        if row is None:
            self.waiting.drop(request)
        else:
            self.rows.remove(row)
            self._give_back([row])
        return row

    def close(self) -> None:
        """Lets all rows go, ended or not, and what waits."""
        self.waiting.clear()
        rows, self.rows = self.rows, []
        if rows:
            self._give_back(rows)

    def _give_back(self, rows: Sequence[R]) -> None:
        self.scorer.close([context for row in rows for context in row.contexts])
        self.scorer.free([row.memory for row in rows])


class RowRun(Generic[R]):
    """Base of the runs whose requests are rows of a batch, each with a source and contexts of the scorer.

    A subclass makes a row of a request, takes a step with all rows, and makes a result of a row that ended.
    """

    def __init__(self, scorer: PassScorer, batching: Batching) -> None:
        self.scorer = scorer
        self.batch = Batch(scorer, self._row, batching)
        self.clock = Stopwatch()

    def __len__(self) -> int:
        return len(self.batch)

    def admit(self, request: Request) -> None:
        self.batch.waiting.add(request)

    def step(self) -> list[Ended]:
        self.clock.start()
        if self.batch.waiting:
            self.batch.enter()
        self.clock.lap(ENCODE)
        if self.batch.rows:
            self._step(self.batch.rows)
        ended = self.batch.leave()
        if not ended:
            return []
        self._left(ended)
        is_early = bool(self.batch.rows)
        return [(row.request, self._result(row, early=is_early)) for row in ended]

    def so_far(self, request: Request) -> Hypothesis:
        row = self.batch.row_of(request)
        return NOTHING if row is None else self._so_far(row)

    def drop(self, request: Request) -> None:
        row = self.batch.drop(request)
        if row is not None:
            self._left([row])

    def close(self) -> None:
        """Gives everything back. A pass that was not committed ends with its contexts."""
        rows = self.batch.rows
        try:
            self.batch.close()
        finally:
            self._left(rows)

    def _row(self, request: Request, prompt: Prompt, memory: int, context: int, now: float) -> R:
        raise NotImplementedError

    def _step(self, rows: list[R]) -> None:
        """Takes a pass, after which each row's output is longer."""
        raise NotImplementedError

    def _result(self, row: R, *, early: bool) -> Result:
        raise NotImplementedError

    def _so_far(self, row: R) -> Hypothesis:
        raise NotImplementedError

    def _left(self, rows: Sequence[R]) -> None:
        """Gives back what rows that left held besides source and contexts."""
