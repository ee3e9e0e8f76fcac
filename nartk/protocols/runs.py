"""Runs: requests are admitted at any time, decoded a step at a time, and may be dropped before they end.

A request is its own handle: the object that is admitted names it until it ends.
"""

from __future__ import annotations

from bisect import insort_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Protocol, TypeAlias, TypeVar

from nartk.errors import require_count
from nartk.protocols.hypothesis import WINDOW, Hypothesis, PhaseSeconds, Request, Result

Ended: TypeAlias = tuple[Request, Result]
NOTHING = Hypothesis(tokens=())  # output so far


@dataclass(frozen=True)
class Batching:
    """Bounds on the requests that are decoded at a time.

    Attributes:
        size: Most rows.
        max_tokens: Most source tokens; one row is always allowed. None: no bound.

    Raises:
        UsageError: One is no whole number from 1 on.
    """

    size: int
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        require_count("batch_size", self.size)
        if self.max_tokens is not None:
            require_count("max_tokens", self.max_tokens)


Q = TypeVar("Q", contravariant=True)
R = TypeVar("R", covariant=True)


class Steps(Protocol[Q, R]):
    """Decodes what it admits: lines or their requests. Its length is how many have not ended."""

    def __len__(self) -> int: ...

    def admit(self, request: Q, /) -> None:
        """Takes a request, which waits until a place is free.

        Raises:
            UsageError: The strategy cannot do what it asks for.
        """

    def step(self) -> Sequence[R]:
        """Lets waiting requests in, and decodes one pass further; the requests that ended, and their results.

        Where it raises, the run is to be closed.
        """

    def so_far(self, request: Q, /) -> Hypothesis:
        """The output of a request as far as it is known; empty while it waits."""

    def drop(self, request: Q, /) -> None:
        """Gives up a request: whatever it holds is given back now. One that has ended is left alone."""

    def close(self) -> None:
        """Drops all requests."""


Run: TypeAlias = Steps[Request, Ended]
T = TypeVar("T")
U = TypeVar("U")


def run_through(run: Steps[T, U], requests: Iterable[T], *, ahead: int = WINDOW) -> Iterator[U]:
    """Yields what `step` gives, until all requests have ended; further ones are read as others end.

    Args:
        ahead: Most requests that are admitted and have not ended.
    """
    rest, is_more = iter(requests), True
    try:
        while True:
            if is_more and (count := ahead - len(run)) > 0:
                taken = [*islice(rest, count)]
                is_more = len(taken) == count
                for request in taken:
                    run.admit(request)
            if not len(run):
                return
            yield from run.step()
    finally:
        run.close()


def run_in_order(
    run: Steps[T, tuple[T, U]], requests: Iterable[T], *, ahead: int = WINDOW
) -> Iterator[tuple[T, U]]:
    """Yields requests and their results, as `step` gives them, in the order of the requests.

    Args:
        ahead: Most requests that are admitted and not yielded yet.
    """
    rest, order, ended = iter(requests), deque[T](), dict[T, U]()
    try:
        while True:
            for request in islice(rest, ahead - len(order)):
                run.admit(request)
                order.append(request)
            if not order:
                return
            ended |= run.step()
            while order and order[0] in ended:
                request = order.popleft()
                yield request, ended.pop(request)
    finally:
        run.close()


ENCODE, DRAFT, VERIFY, ACCEPT = range(4)  # phases, in the order of `PhaseSeconds`


class Stopwatch:
    """Measures the time that a run spends in each phase: encoding, drafting, verifying, accepting."""

    def __init__(self) -> None:
        self._seconds, self._last = [0.0] * 4, 0.0

    def start(self) -> None:
        """Begins to count; the time before is nobody's."""
        self._last = perf_counter()

    def lap(self, phase: int) -> None:
        """Counts the time since the last call for a phase."""
        now = perf_counter()
        self._seconds[phase] += now - self._last
        self._last = now

    def take(self) -> PhaseSeconds:
        """Takes the time that was counted since it was last taken."""
        taken, self._seconds = PhaseSeconds(*self._seconds), [0.0] * 4
        return taken


class Waiting:
    """Requests that wait for a place, those with the longest sources first.

    They end last, and sources that are encoded together are alike in length.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []  # the next one is the last

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def longest(self) -> int:
        """Tokens of the next source."""
        return len(self._requests[-1].source)

    def add(self, request: Request) -> None:
        insort_left(self._requests, request, key=lambda each: (len(each.source), -each.index))

    def take(self, count: int) -> list[Request]:
        """The next requests, at most so many."""
        cut = max(0, len(self._requests) - count)
        taken = self._requests[cut:]
        del self._requests[cut:]
        return taken[::-1]

    def drop(self, request: Request) -> None:
        """Drops a request, if it waits."""
        if request in self._requests:  # which is itself alone
            self._requests.remove(request)

    def clear(self) -> None:
        self._requests.clear()


class BatchRun:
    """Implements `Run` for what decodes whole batches at once: batches of like sources, the longest first.

    Args:
        decode: Gives the results of a batch, in the order of its requests.
        batching: Its `max_tokens` count padding.
        check: Raises for requests that cannot be decoded.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[Request]], Iterable[Result]],
        batching: Batching,
        check: Callable[[Request], None] = lambda _: None,
    ) -> None:
        self._decode, self._batching, self._check = decode, batching, check
        self._waiting = Waiting()

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, request: Request) -> None:
        self._check(request)
        self._waiting.add(request)

    def step(self) -> list[Ended]:
        if not self._waiting:
            return []
        count, most = self._batching.size, self._batching.max_tokens
        if most is not None:
            count = max(1, min(count, most // self._waiting.longest))
        batch = self._waiting.take(count)
        return [*zip(batch, self._decode(batch), strict=True)]

    def so_far(self, request: Request) -> Hypothesis:
        return NOTHING

    def drop(self, request: Request) -> None:
        self._waiting.drop(request)

    def close(self) -> None:
        self._waiting.clear()
