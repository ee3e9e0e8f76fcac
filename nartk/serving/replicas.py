"""Decodes parts of some sentences at the same time, each with a scorer of its own, in a thread of its own.

The engine computes without Python's lock, so that threads that each decode a part keep as many cores busy.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from nartk.errors import StrategyMismatchError, named
from nartk.protocols.hypothesis import Hypothesis, Request
from nartk.protocols.passes import Replicable
from nartk.protocols.runs import NOTHING, Batching, Ended, Run
from nartk.serving.long_form import BufferedFrames

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding

_Outcome: TypeAlias = Ended | BaseException
_WAIT = 0.05  # seconds


def require_replicable(strategy: Decoding, scorer: Any) -> None:
    """Raises StrategyMismatchError where a strategy, or a model of it, decodes in torch or in buffers."""
    if isinstance(scorer, BufferedFrames):
        raise StrategyMismatchError(
            f"{named('replicas')} with {named('long_form')}, whose buffers are read one after the other",
            fix="leave one of them out",
        )
    if not all(isinstance(each, Replicable) for each in (scorer, *strategy.auxiliary.values())):
        raise StrategyMismatchError(
            f"{named('replicas')} with strategy {strategy.name!r}, of which torch serves a model here",
            fix=f"leave {named('replicas')} out, or choose greedy or iad",
        )


class ReplicaRun:
    """Implements `nartk.protocols.runs.Run` with replicas, each of which runs in a thread of its own.

    A request goes to the replica with the fewest source tokens. Threads start with the first step.

    Args:
        count: Replicas at most.
        batching: Batching of each.
    """

    def __init__(self, strategy: Decoding, scorer: Replicable, count: int, batching: Batching) -> None:
        self._stop, self._outcomes = Event(), SimpleQueue[_Outcome]()
        self._owners: dict[Request, _Replica] = {}
        self._replicas = [
            _Replica(strategy, scorer, batching, self._stop, self._outcomes) for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._owners)

    def admit(self, request: Request) -> None:
        replica = min(self._replicas, key=lambda each: each.tokens)
        replica.tokens += len(request.source)
        self._owners[request] = replica
        replica.orders.put(("admit", request))

    def step(self) -> list[Ended]:
        """Waits a moment for what has ended.

        One long wait would go on after a signal that came just before it, or to another thread: Python
        handles signals in the main thread alone, between two of its operations.
        """
        for replica in {*self._owners.values()}:
            replica.start()
        found: list[Ended] = []
        with suppress(Empty):
            outcome = self._outcomes.get(timeout=_WAIT)
            while True:
                if isinstance(outcome, BaseException):
                    raise outcome
                request, result = outcome
                if request in self._owners:  # else it was dropped
                    self._owners.pop(request).tokens -= len(request.source)
                    found.append((request, result))
                outcome = self._outcomes.get_nowait()
        return found

    def so_far(self, request: Request) -> Hypothesis:
        """Nothing: a replica's rows are its thread's."""
        return NOTHING

    def drop(self, request: Request) -> None:
        replica = self._owners.pop(request, None)
        if replica is not None:
            replica.tokens -= len(request.source)
            replica.orders.put(("drop", request))

    def close(self) -> None:
        self._owners.clear()
        self._stop.set()
        for replica in self._replicas:
            replica.join()


class _Replica:
    """A run in a thread.

    Attributes:
        tokens: Source tokens of its requests.
        orders: Calls of the run that it is to make, by name, and their requests; None: to end.
    """

    def __init__(
        self,
        strategy: Decoding,
        scorer: Replicable,
        batching: Batching,
        stop: Event,
        outcomes: SimpleQueue[_Outcome],
    ) -> None:
        self.tokens = 0
        self.orders = SimpleQueue[tuple[str, Request] | None]()
        self._strategy, self._scorer, self._batching = strategy, scorer, batching
        self._stop, self._outcomes = stop, outcomes
        self._thread = Thread(target=copy_context().run, args=(self._decode,), daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        self.orders.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _begin(self) -> Run:
        """Begins a run with scorers of its own, which end where they are told to stop."""
        stopped = self._stop.is_set
        auxiliary = {name: each.replica(stopped) for name, each in self._strategy.auxiliary.items()}
        return replace(self._strategy, auxiliary=auxiliary).begin(
            self._scorer.replica(stopped), self._batching
        )

    def _decode(self) -> None:
        try:
            run = self._begin()
            try:
                while self._obey(run):
                    for outcome in run.step():
                        self._outcomes.put(outcome)
            finally:
                run.close()
        except BaseException as error:  # whatever ends a replica is raised where the results are read
            self._outcomes.put(error)

    def _obey(self, run: Run) -> bool:
        """Does what was ordered, and waits for an order where there is nothing to decode; False: to end."""
        while not self._stop.is_set():
            try:
                order = self.orders.get(block=not len(run))
            except Empty:
                return True
            if order is None:
                return False
            name, request = order
            getattr(run, name)(request)
        return False
