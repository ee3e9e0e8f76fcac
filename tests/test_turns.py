"""The harness of benchmarks: whose turn it is, what counts, and contenders in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nartk.bench.turns import EngineError, TimedCall, apart, in_turns, turns


def contender(name: str, broken: bool = False) -> Callable[[], Any]:
    """A call gives the contender's name, its process and how often it was called."""
    if broken:
        raise ValueError(f"{name} is broken")
    calls: list[int] = []

    def run() -> Any:
        calls.append(len(calls))
        if len(calls) == 4:
            os._exit(3)
        return name, os.getpid(), len(calls)

    return run


def test_each_round_begins_with_another() -> None:
    assert [*turns(2, 3)] == [(-1, 0), (-1, 1), (0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]
    order: list[str] = []
    contenders = {name: partial(lambda each: order.append(each) or len(order), name) for name in "abc"}
    assert in_turns(contenders, 3) == {"a": [4, 9, 11], "b": [5, 7, 12], "c": [6, 8, 10]}
    assert "".join(order) == "abcabcbcacab"


def test_calls_are_timed_whatever_comes_of_them() -> None:
    times = iter([0.0, 1.0, 10.0, 12.5])
    watch = TimedCall(lambda value: 1 / value, lambda: next(times))
    assert watch(2) == 0.5
    assert watch.seconds == 1.0
    with pytest.raises(ZeroDivisionError):
        watch(0)
    assert watch.seconds == 3.5


def test_contenders_have_processes_of_their_own() -> None:
    makers = {("one", 1): partial(contender, name="a"), ("two", 2): partial(contender, name="b")}
    with apart(makers) as contenders:
        found = in_turns(contenders, 2)
        with pytest.raises(EngineError, match="the process ended with status 3"):
            contenders["one", 1]()
    assert [(name, count) for name, _, count in found["one", 1]] == [("a", 2), ("a", 3)]
    processes = {process for each in found.values() for _, process, _ in each}
    assert len(processes) == 2
    assert os.getpid() not in processes
    with (
        pytest.raises(EngineError, match="ValueError: c is broken"),
        apart({"c": partial(contender, name="c", broken=True)}),
    ):
        pass
