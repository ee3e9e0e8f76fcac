"""Runs contenders in turns, each in a process of its own if need be: the harness of every benchmark.

A recipe says what a contender does once, and what of it is shown; `nartk.bench.report` shows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, ParamSpec, TypeVar

import nartk
from nartk.files import JsonObject

Name = TypeVar("Name")
T = TypeVar("T")
P = ParamSpec("P")


def turns(count: int, rounds: int) -> Iterator[tuple[int, int]]:
    """Pairs of a round and a contender's index: round -1 warms up, each later one begins with another."""
    for turn in range(-1, rounds):
        for step in range(count):
            yield turn, (step + max(turn, 0)) % count


def in_turns(contenders: Mapping[Name, Callable[[], T]], rounds: int) -> dict[Name, list[T]]:
    """Calls each contender once a round; returns the results by round, without the one that warms up."""
    names = [*contenders]
    found: dict[Name, list[T]] = {name: [] for name in names}
    for turn, i in turns(len(names), rounds):
        result = contenders[names[i]]()
        if turn >= 0:
            found[names[i]].append(result)
    return found


class TimedCall(Generic[P, T]):
    """A function whose calls are timed.

    Attributes:
        seconds: Sum over the calls so far.
    """

    def __init__(self, call: Callable[P, T], clock: Callable[[], float] = time.process_time) -> None:
        self.call, self.clock, self.seconds = call, clock, 0.0

    def __call__(self, *args: P.args, **options: P.kwargs) -> T:
        start = self.clock()
        try:
            return self.call(*args, **options)
        finally:
            self.seconds += self.clock() - start


class EngineError(Exception):
    """An engine or a contender failed in its process; the message says why."""


class Worker:
    """A process that answers requests, see `nartk.bench.worker`."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self.process, self.log = process, log

    def request(self, name: str, **arguments: object) -> JsonObject:
        """Sends one request and returns the reply.

        Raises:
            EngineError: The request failed, or the process ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({name: arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(self._last_words())
        reply: JsonObject = json.loads(line)
        if "error" in reply:
            raise EngineError(reply["error"])
        return reply

    def _last_words(self) -> str:
        status = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().split("\n")
        printed = [line for line in lines if line.strip()]
        return f"the process ended with status {status}" + (f": {printed[-1]}" if printed else "")


@contextmanager
def worker(threads: int) -> Iterator[Worker]:
    """Starts a process that waits for requests; it ends with the block."""
    root = str(Path(nartk.__file__).parents[1])  # a bare checkout is found wherever the user stands
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "nartk.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        with process:
            try:
                yield Worker(process, log)
            finally:
                process.kill()
                assert process.stdin is not None
                with suppress(BrokenPipeError):  # of a request to a process that had ended
                    process.stdin.close()


@contextmanager
def apart(
    makers: Mapping[Name, partial[Callable[[], Any]]], *, threads: int = 1
) -> Iterator[dict[Name, Callable[[], Any]]]:
    """Makes each contender in a process of its own; the processes end with the block.

    Args:
        makers: Functions of a script's top level with their keyword arguments, which make a contender; these,
            and what a contender returns, are what JSON holds.

    Raises:
        EngineError: A contender cannot be made. It is also what a call of a contender raises.
    """
    with ExitStack() as stack:
        made: dict[Name, Callable[[], Any]] = {}
        for name, maker in makers.items():
            process = stack.enter_context(worker(threads))
            script = os.path.abspath(maker.func.__code__.co_filename)
            process.request("make", script=script, function=maker.func.__name__, arguments=maker.keywords)
            made[name] = partial(_result, process)
        yield made


def _result(process: Worker) -> Any:
    return process.request("call")["result"]
