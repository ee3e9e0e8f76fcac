"""Models that are served, and what bounds the requests to them."""

from __future__ import annotations

import asyncio
import hmac
import io
import logging
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from nartk.errors import NartkError, UnknownStrategyError, UsageError
from nartk.registry import DEFAULT_STRATEGY, implied, is_greedy, options_of, strategies
from nartk.serving.session import Session, Ticket
from nartk.serving.strategies import fits, fitting

if TYPE_CHECKING:
    from nartk.protocols.hypothesis import Hypothesis, Result
    from nartk.protocols.sources import SourceLike
    from nartk.serving.model import Model

_CODE = r"[a-z]{2,3}(?:_[A-Za-z]+)?"  # en, zh_Hans
_PAIR = re.compile(f"({_CODE})-({_CODE})")
_ONE = re.compile(f".+-({_CODE})(?:-(?:small|medium|large))?")
_LOG = logging.getLogger(__name__)
_RETRY = 1  # seconds that a client is asked to wait


class RefusedError(Exception):
    """The server refuses a request.

    Attributes:
        status: Status of HTTP.
        headers: Its headers.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


@dataclass(frozen=True)
class Limits:
    """Bounds of requests.

    Attributes:
        body: Bytes of a body.
        lines: Lines, or recordings, of a request.
        queue: Lines of a model that have come and not ended.
        seconds: Longest time that a request takes, s.
        read_seconds: Longest time until more of a body comes, s.
        audio_seconds: Length of a recording, s.
    """

    body: int = 25 << 20  # as OpenAI's server
    lines: int = 256
    queue: int = 1024
    seconds: float = 60.0
    read_seconds: float = 20.0
    audio_seconds: float = 1800.0


@dataclass(eq=False)
class Served:
    """A model with its session.

    Attributes:
        name: Name that requests give.
        languages: Codes of the languages that it translates from and to, or of the one that it corrects;
            empty: its name tells none.
        waiting: Lines that have come and not ended.
    """

    name: str
    model: Model
    session: Session
    languages: tuple[str, ...]
    waiting: int = field(default=0)
    created: int = field(default_factory=lambda: int(time.time()))
    _lock: Lock = field(default_factory=Lock, init=False)

    @property
    def strategies(self) -> Sequence[str]:
        """Names of strategies that decode with it. They are found once, when a request first needs them."""
        with self._lock:
            return self._fitting

    @cached_property
    def _fitting(self) -> Sequence[str]:
        return fitting(self.model)

    @property
    def corrects(self) -> bool:
        """True if its outputs are corrections of its sources: it has a guard."""
        return self.model.checkpoint.guard is not None

    @property
    def does(self) -> str:
        """Purpose: correct, translate, transcribe or generate."""
        if not self.model.reads_text:
            return "transcribe"
        if self.corrects:
            return "correct"
        return "translate" if self.languages else "generate"

    @cached_property
    def strategy(self) -> str:
        """The strategy that it decodes with where a request names none, nor has options that imply one."""
        default = DEFAULT_STRATEGY if fits(self.model, DEFAULT_STRATEGY) else "greedy"
        return str(self.model.checkpoint.generation.get("strategy", default))

    @property
    def reference(self) -> str | None:
        """Its greedy search: ``greedy``, ``ctc-greedy`` or ``dag-greedy``; None: it has none."""
        return next((name for name in self.strategies if is_greedy(name)), None)


class Submitted:
    """Lines of a request, in sessions.

    Attributes:
        tickets: Their tickets.
        left: Number of lines that have not ended, as far as the event loop knows.
        changed: Set when some have ended.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.left, self.changed = 0, asyncio.Event()

    async def all_ended(self) -> None:
        """Waits until no line is left."""
        while self.left:
            self.changed.clear()
            await self.changed.wait()


class Mailbox:
    """Calls for an event loop from other threads, which wake it once for those that come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._calls, self._is_woken = loop, deque[Callable[[], None]](), False

    def put(self, call: Callable[[], None], _: object = None) -> None:
        """Calls soon within the event loop; never if it is closed."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_woken = False  # before the calls are taken: what comes later wakes the loop again
        while self._calls:
            self._calls.popleft()()


class Service:
    """Decodes lines of requests, within limits. Used within one event loop.

    Args:
        models: Models by the names that requests give. One that is named ``en-pt`` translates between these
            languages; one with a guard that is named ``gec-en`` or ``gec-en-medium`` corrects this one.
        batch_size: Most sentences of a model at a time.
        keys: If any, each request has one of them.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        limits: Limits | None = None,
        *,
        batch_size: int = 8,
        keys: Iterable[str] = (),
    ) -> None:
        self.limits = Limits() if limits is None else limits
        self.is_closing = False
        self.on_decoded: Callable[[str, Result], None] = lambda *_: None
        self._mailbox: Mailbox | None = None
        self._keys = [key.encode() for key in keys]
        self.models = {
            name: Served(name, model, Session(model, batch_size=batch_size), _languages(name, model))
            for name, model in models.items()
        }
        for served in self.models.values():
            if (sound := served.model.sound) is not None:
                sound.tell = _LOG.warning  # of recordings that are cut short and the like
        self._strategies = frozenset(strategies())
        self._refused = frozenset(
            name
            for strategy in self._strategies
            for name, item in options_of(strategy).items()
            if item.metadata["model"] or item.metadata["file"]
        )

    def close(self) -> None:
        """Gives up what is not decoded yet, and ends the sessions."""
        self.is_closing = True
        for served in self.models.values():
            served.session.close(cancel=True)

    def authorise(self, given: Iterable[str | None]) -> None:
        """Raises RefusedError unless a key that is given is the server's, or it has none."""
        if not self._keys:
            return
        matches = [
            hmac.compare_digest(key, each.encode("utf-8", "replace"))
            for each in given
            if each
            for key in self._keys
        ]
        if not any(matches):
            raise RefusedError(401, "the API key is missing or wrong", {"WWW-Authenticate": "Bearer"})

    def named(self, name: str | None, does: Sequence[str]) -> Served:
        """The model of a name; without one, the first for one of these purposes."""
        if name:
            if name not in self.models:
                raise RefusedError(404, f"no model {name!r}; there are {', '.join(self.models)}")
            found = self.models[name]
            if found.does not in does:
                raise RefusedError(400, f"the model {name!r} is to {found.does}, not to {does[0]}")
            return found
        for served in self.models.values():
            if served.does in does:
                return served
        raise RefusedError(404, f"no model here is to {does[0]}")

    def options(self, strategy: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a strategy that a request gives; none may name a file or a model of the server's."""
        if strategy is not None and strategy not in self._strategies:
            raise UnknownStrategyError(f"no strategy {strategy!r}", fix="see GET /v1/strategies")
        if refused := sorted(self._refused & given.keys()):
            raise UsageError(f"requests cannot give {refused[0]!r}, which names a file or a model")
        return dict(given)

    @asynccontextmanager
    async def submitted(
        self,
        served: Served,
        lines: Sequence[SourceLike],
        strategy: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        prefixes: Sequence[str] = (),
        trace: bool = False,
    ) -> AsyncIterator[Submitted]:
        """Submits lines; what has not ended behind it is given up.

        Raises:
            RefusedError: There are too many, too many wait already, or the server ends.
            NartkError: A strategy or an option is wrong.
        """
        self._admit(served, len(lines))
        options = self.options(strategy, options or {})
        strategy = implied(options, served.strategy) if strategy is None else strategy
        found = Submitted()
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        mailbox = self._mailbox
        try:
            for index, line in enumerate(lines):
                prefix = prefixes[index] if prefixes else ""
                ticket = served.session.submit(
                    line, strategy, prefix=prefix, trace=trace, index=index, **options
                )
                served.waiting += 1
                found.left += 1
                found.tickets.append(ticket)
                ended = partial(self._ended, served, found, ticket)
                ticket.future.add_done_callback(partial(mailbox.put, ended))
            yield found
        finally:
            for ticket in found.tickets:
                ticket.give_up()

    async def decode(
        self,
        served: Served,
        lines: Sequence[SourceLike],
        strategy: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[Hypothesis | NartkError]:
        """The output of each line, or why it has none.

        Raises:
            RefusedError, NartkError: Same as in `ended`.
        """
        return [outcome(each) for each in await self.ended(self.submitted(served, lines, strategy, options))]

    async def ended(self, given: AbstractAsyncContextManager[Submitted]) -> list[Ticket]:
        """Tickets of lines that are `submitted`, all of which have ended.

        Raises:
            RefusedError, NartkError: Same as in `submitted`, or it takes too long.
        """
        try:
            async with asyncio.timeout(self.limits.seconds), given as submitted:
                await submitted.all_ended()
                return submitted.tickets
        except TimeoutError:
            raise self.too_late() from None

    def require_short(self, sound: bytes) -> None:
        """Refuses a recording that is longer than the limit, by its header where it has one."""
        import soundfile

        try:
            seconds = soundfile.info(io.BytesIO(sound)).duration
        except (soundfile.LibsndfileError, RuntimeError):
            return  # what reads it tells
        if seconds > self.limits.audio_seconds:
            raise RefusedError(
                413, f"a recording of {seconds:.0f} s, more than {self.limits.audio_seconds:g}"
            )

    def too_late(self) -> RefusedError:
        """The error of a request that is not done by its deadline."""
        return RefusedError(504, f"not done within {self.limits.seconds:g} s")

    def _admit(self, served: Served, lines: int) -> None:
        if self.is_closing:
            raise ending()
        if lines > self.limits.lines:
            raise RefusedError(413, f"{lines} lines, more than {self.limits.lines}")
        if served.waiting + lines > self.limits.queue:
            raise RefusedError(
                429,
                f"{served.waiting} lines wait already, of at most {self.limits.queue}",
                {"Retry-After": str(_RETRY)},
            )

    def _ended(self, served: Served, submitted: Submitted, ticket: Ticket) -> None:
        """Counts a line that has ended."""
        served.waiting -= 1
        submitted.left -= 1
        submitted.changed.set()
        if ticket.found is not None:
            self.on_decoded(served.name, ticket.found)


def outcome(ticket: Ticket) -> Hypothesis | NartkError:
    """The output of a line that has ended, or why it has none.

    Raises:
        RefusedError: It was given up, since the server ends.
    """
    try:
        return ticket.result()
    except NartkError as error:
        return error
    except CancelledError:
        raise ending() from None


def ending() -> RefusedError:
    """The error of a request to a server that ends."""
    return RefusedError(503, "the server is about to end", {"Retry-After": str(_RETRY)})


def keys_of(headers: Mapping[str, str]) -> list[str | None]:
    """Keys in the headers of a request."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return [key.strip() if scheme.lower() == "bearer" else None, headers.get("x-api-key")]


def _languages(name: str, model: Model) -> tuple[str, ...]:
    found = (_PAIR if model.checkpoint.guard is None else _ONE).fullmatch(name)
    return () if found is None or not model.reads_text else found.groups()
