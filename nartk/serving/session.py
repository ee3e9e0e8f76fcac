"""Sessions: lines are submitted at any time, from any thread, and share batches while they are decoded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nartk.errors import NartkError, UsageError
from nartk.protocols.hypothesis import Hypothesis, Result
from nartk.protocols.runs import NOTHING, Batching
from nartk.protocols.sources import SourceLike
from nartk.registry import require_drafts_reader
from nartk.serving.line_runs import LineRequest, LineRun, given
from nartk.serving.model import Model
from nartk.serving.outcomes import Outcome, best_of

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy

_IDLE = 16  # runs without lines that are kept, and strategies
T = TypeVar("T")


class Session:
    """Decodes lines of one model in a thread of its own.

    Lines that are submitted with the same strategy share batches, in the order in which they came, whatever
    their own options are (`Strategy.own`: lengths, constraints, seed, n-best); those with others, such as
    another beam size or temperature, have batches of their own, and all take turns, a pass each. On the
    engine a line's output is bit for bit what it is alone. While a session is open the model is its own:
    nothing else decodes with it.

        with nartk.serving.Session(model, batch_size=8) as session:
            tickets = [session.submit(line) for line in lines]
            texts = [ticket.result().text for ticket in tickets]

    Args:
        batch_size: Most sentences at a time, of the lines that share batches.
        max_tokens: Most source tokens at a time, of the same.
    """

    def __init__(self, model: Model, *, batch_size: int = 8, max_tokens: int | None = None) -> None:
        self._batching = Batching(batch_size, max_tokens)
        self.model = model
        self._strategies: OrderedDict[tuple[object, ...], tuple[Strategy, Strategy]] = OrderedDict()
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = Lock()  # of strategies, and of whether it is closed
        self._is_closed = False
        self._lines: dict[Strategy, _Lines] = {}
        self._thread = Thread(target=self._work, name="nartk-session", daemon=True)
        self._thread.start()

    def submit(
        self,
        line: SourceLike,
        strategy: str | None = None,
        *,
        prefix: str = "",
        drafts: Sequence[str] = (),
        truncate: bool = False,
        trace: bool = False,
        index: int = 0,
        **options: Any,
    ) -> Ticket:
        """Takes a line, whatever its length and options, and gives its ticket at once.

        Args:
            line, strategy, truncate, trace, options: Same as in `Model.decode`.
            prefix: The output must begin with this.
            drafts: Guesses of the output, for the strategies that read drafts.
            index: Draws depend on it, as they do on the place of a line in `Model.decode`.

        Raises:
            UsageError: An option is unknown or out of bounds, or the session is closed.
            NartkError: Same as in `Model.strategy`.
        """
        for name, text in (("prefix", prefix), *(("drafts", each) for each in drafts)):
            if not isinstance(text, str):
                raise UsageError(f"{name} is {text!r}, not a string", fix="pass strings alone")
        (source,) = given(self.model, "line", [line])
        made, shared = self._strategy(strategy, options)
        if drafts:
            require_drafts_reader(made)
        asked = LineRequest(
            index, source, prefix, tuple(drafts), truncate=truncate, trace=trace, strategy=made
        )
        ticket = Ticket(self, shared, asked)
        self._call(partial(self._enter, ticket))
        return ticket

    def _strategy(self, name: str | None, options: dict[str, Any]) -> tuple[Strategy, Strategy]:
        """A strategy with options, and that of the run which decodes its requests."""
        key = (name, *sorted(options.items()))
        with self._lock:
            if self._is_closed:
                raise UsageError("the session is closed", fix="make another one")
            try:
                found = self._strategies.pop(key, None)
            except TypeError:  # an option's value is no plain one, which making the strategy refuses
                found = None
            if found is None:
                made = self.model.strategy(name, options)
                found = made, made.shared()
            self._strategies[key] = found  # the one used last is the last
            if len(self._strategies) > _IDLE:
                self._strategies.popitem(last=False)
            return found

    def close(self, *, cancel: bool = False) -> None:
        """Ends the session when all lines that were submitted have ended.

        Args:
            cancel: True to cancel them instead.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if cancel:
                    self._calls.put(self._cancel_all)
                self._calls.put(None)
        if current_thread() is not self._thread:  # which a callback runs in
            self._thread.join()

    def query(self, query: Callable[[], T], otherwise: T) -> T:
        """Runs a function of the model in the session's thread, between two passes.

        Args:
            otherwise: Value where the session is closed.
        """
        if current_thread() is self._thread:  # a callback asks
            return query()
        answer: Future[T] = Future()

        def reply() -> None:
            try:
                answer.set_result(query())
            except Exception as error:
                answer.set_exception(error)

        try:
            self._call(reply)
        except UsageError:
            self._thread.join()
            return otherwise
        return answer.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=type_ is not None)

    # What follows runs in the session's thread, but for `_call`.

    def _call(self, call: Callable[[], object]) -> None:
        with self._lock:
            if self._is_closed:
                raise UsageError("the session is closed", fix="make another one")
            self._calls.put(call)

    def _work(self) -> None:
        try:
            self._decode()
        except BaseException as error:  # a fault of the session's own: nobody may wait for ever
            with self._lock:
                self._is_closed = True
            with suppress(Empty):
                while True:
                    call = self._calls.get_nowait()
                    if call is not None:
                        call()
            for lines in self._lines.values():
                for ticket in lines.tickets():
                    ticket.future.set_exception(error)

    def _decode(self) -> None:
        """Decodes until the session is closed and no line is left."""
        is_open = True
        while is_open or any(self._lines.values()):
            is_open = self._obey(is_open)
            for lines in [*self._lines.values()]:
                if len(lines):
                    lines.step()
            idle = [strategy for strategy, lines in self._lines.items() if not len(lines)]
            for strategy in idle[: max(0, len(self._lines) - _IDLE)]:
                self._lines.pop(strategy).run.close()
        for lines in self._lines.values():
            lines.run.close()

    def _obey(self, is_open: bool) -> bool:
        """Makes the calls that wait, and waits for one where there is nothing to decode."""
        while is_open:
            try:
                call = self._calls.get(block=not any(self._lines.values()))
            except Empty:
                break
            if call is None:
                return False
            call()
        return is_open

    def _enter(self, ticket: Ticket) -> None:
        if ticket.future.set_running_or_notify_cancel():
            try:
                lines = self._lines.pop(ticket.strategy, None)
                if lines is None:
                    begin = partial(LineRun, self.model, ticket.strategy, self._batching)
                    lines = _Lines(begin, self._batching.size * self.model.replicas)
                self._lines[ticket.strategy] = lines  # the one used last is the last
                lines.waiting.append(ticket)
            except Exception as error:
                ticket.future.set_exception(error)

    def _drop(self, ticket: Ticket) -> bool:
        lines = self._lines.get(ticket.strategy)
        return lines is not None and lines.drop(ticket)

    def _so_far(self, ticket: Ticket) -> Hypothesis:
        lines = self._lines.get(ticket.strategy)
        return NOTHING if lines is None else lines.run.so_far(ticket.asked)

    def _cancel_all(self) -> None:
        for lines in self._lines.values():
            for ticket in lines.tickets():
                lines.drop(ticket)


class _Lines:
    """The lines of a session that share batches.

    Where a step fails, the lines of the run are decoded again, each by itself: only those fail that fail so.

    Args:
        begin: Begins a run.
        size: Requests that are decoded at a time. Lines are admitted while there are fewer, so that none
            waits for longer ones that came later.
    """

    def __init__(self, begin: Callable[[], LineRun], size: int) -> None:
        self._begin, self.size = begin, size
        self.run = begin()
        self.waiting: deque[Ticket] = deque()
        self._apart: deque[Ticket] = deque()  # of a run that failed
        self._admitted: dict[LineRequest, Ticket] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self._apart) + len(self._admitted)

    def tickets(self) -> list[Ticket]:
        return [*self.waiting, *self._apart, *self._admitted.values()]

    def step(self) -> None:
        """Takes a step."""
        if self._apart and not self._admitted:
            self._admit(self._apart.popleft())
        while not self._apart and self.waiting and self.run.requests < self.size:
            self._admit(self.waiting.popleft())
        try:
            found = self.run.step()
        except Exception as error:
            self._again(error)
            return
        for asked, outcome in found:
            self._admitted.pop(asked).end(outcome)

    def _admit(self, ticket: Ticket) -> None:
        try:
            self.run.admit(ticket.asked)
        except Exception as error:  # of this line alone
            self.run.drop(ticket.asked)
            ticket.future.set_exception(error)
        else:
            self._admitted[ticket.asked] = ticket

    def _again(self, error: Exception) -> None:
        """Begins a new run after one that failed."""
        tickets = [*self._admitted.values()]
        self._admitted.clear()
        try:
            self.run.close()
            self.run = self._begin()
        except Exception as other:
            for ticket in [*tickets, *self.waiting, *self._apart]:
                ticket.future.set_exception(other)
            self.waiting.clear()
            self._apart.clear()
            return
        if len(tickets) == 1:
            tickets[0].future.set_exception(error)
        else:
            self._apart.extend(tickets)

    def drop(self, ticket: Ticket) -> bool:
        """Cancels the ticket of a line that has not ended; False: it has ended."""
        if ticket.future.done():
            return False
        if self._admitted.pop(ticket.asked, None) is not None:
            self.run.drop(ticket.asked)
        else:
            (self.waiting if ticket in self.waiting else self._apart).remove(ticket)
        ticket.future.set_exception(CancelledError())
        return True


class Ticket:
    """A line that was submitted. It may be awaited, too.

    Attributes:
        future: Its outcome, for callbacks and `asyncio`; they run in the session's thread.
        found: Result with all hypotheses and what they took, once it has ended well.
    """

    def __init__(self, session: Session, strategy: Strategy, asked: LineRequest) -> None:
        self.strategy, self.asked = strategy, asked
        self.future: Future[Hypothesis] = Future()
        self.found: Result | None = None
        self._session = session

    def result(self, timeout: float | None = None) -> Hypothesis:
        """The best hypothesis, with the further ones as its `alternatives`, once the line has ended.

        Args:
            timeout: Longest wait, seconds.

        Raises:
            NartkError: The line could not be decoded.
            CancelledError: It was cancelled (`concurrent.futures`).
            TimeoutError: It has not ended by then.
        """
        return self.future.result(timeout)

    def partial(self) -> Hypothesis:
        """The output as far as it is known: tokens and their text, or the result once the line has ended.

        Of strategies that decode from left to right, but for beam search and several samples, its tokens are
        a beginning of the final ones, where no guard puts others in their place.
        """
        found = self._session.query(lambda: self._session._so_far(self), NOTHING)
        if self.future.done() and not self.future.cancelled() and self.future.exception() is None:
            return self.future.result()
        return found

    def done(self) -> bool:
        """Tells whether the line has ended, failed or been cancelled."""
        return self.future.done()

    def cancel(self) -> bool:
        """Gives the line up: what it holds is given back now; False: it has ended already."""
        return self._session.query(lambda: self._session._drop(self), False)

    def give_up(self) -> None:
        """Cancels the line soon, without waiting for the session's thread."""
        if not self.future.done():
            with suppress(UsageError):  # of a closed session
                self._session._call(partial(self._session._drop, self))

    def end(self, outcome: Outcome) -> None:
        """Takes the line's outcome."""
        if isinstance(outcome, NartkError):
            self.future.set_exception(outcome)
        else:
            self.found = outcome
            self.future.set_result(best_of(outcome.hypotheses))

    def __await__(self) -> Generator[Any, None, Hypothesis]:
        return self._awaited().__await__()

    async def _awaited(self) -> Hypothesis:
        try:
            return await asyncio.wrap_future(self.future)
        except asyncio.CancelledError:  # whoever waits is cancelled, and the line with it
            self.give_up()
            raise
