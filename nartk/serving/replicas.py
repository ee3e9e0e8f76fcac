"""Decodes parts of some sentences at the same time, each with a scorer of its own, in a thread of its own.

The engine computes without Python's lock, so that threads that each decode a part keep as many cores busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeAlias

from nartk.errors import StrategyMismatchError, named
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import Replicable
from nartk.serving.long_form import BufferedFrames

_Outcome: TypeAlias = Result | BaseException | None  # None: a part has ended


def require_replicable(strategy: Any, scorer: Any) -> None:
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


def run_replicas(
    strategy: Any, scorer: Replicable, requests: Sequence[Request], *, count: int, **settings: Any
) -> Iterator[Result]:
    """Yields what `strategy.run` yields, of so many replicas; when it ends, so have their threads.

    Args:
        settings: Of `strategy.run`, the batch size among them: each replica has batches of that size.
    """
    stop, finished = Event(), SimpleQueue[_Outcome]()

    def decode(part: Sequence[Request]) -> None:
        try:
            auxiliary = {name: each.replica(stop.is_set) for name, each in strategy.auxiliary.items()}
            own = replace(strategy, auxiliary=auxiliary)
            for result in own.run(scorer.replica(stop.is_set), part, **settings):
                finished.put(result)
            finished.put(None)
        except BaseException as error:  # whatever ends a part is raised where the results are read
            finished.put(error)

    threads = [
        Thread(target=copy_context().run, args=(decode, part), daemon=True) for part in deal(requests, count)
    ]
    try:
        for thread in threads:
            thread.start()
        left = len(threads)
        while left:
            outcome = _next(finished)
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is None:
                left -= 1
            else:
                yield outcome
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _next(finished: SimpleQueue[_Outcome]) -> _Outcome:
    """The next outcome, waited for in parts.

    One long wait would go on after a signal that came just before it, or to another thread: Python handles
    signals in the main thread alone, between two of its operations.
    """
    while True:
        with suppress(Empty):
            return finished.get(timeout=0.1)


def deal(requests: Sequence[Request], count: int) -> list[list[Request]]:
    """At most so many parts, none empty, of like numbers and lengths of sources."""
    ordered = sorted(requests, key=lambda request: (-len(request.source), request.index))
    return [ordered[i::count] for i in range(min(count, len(ordered)))]
