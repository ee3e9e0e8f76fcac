"""Decodes lines in worker processes of a Ray cluster, each with a model of its own.

Workers are actors of Ray Core, and the driver hands them blocks of lines. Ray Data does not fit: it needs
pyarrow, whose tables hold neither requests nor results, and its own tasks read its sources. It takes no lines
from a reader as outcomes are written, which here bounds the lines in memory.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nartk.errors import ClusterError, InputFileError, NartkError, named, number_of, require_count, requiring
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.runs import NOTHING, Batching, run_through
from nartk.serving.line_runs import LineRequest, LineRun

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding
    from nartk.serving.model import Model
    from nartk.serving.outcomes import Outcome

LOCAL = "local"  # address of a cluster that is started on this machine, and ends with the run
BATCHES = 8  # of text in a block of lines: the rows that stay empty at its end are few
IN_FLIGHT = 2  # blocks of a worker: one that it decodes, and the next
TRIES = 4  # of a block, or of a start, whose worker dies
SHARED = "give every machine the same files at the same place, as on a shared file system"
_STORE = 1 << 28  # bytes of a local cluster's object store
_CONNECT = 10.0  # seconds that a cluster may take to accept a connection
_WAIT = 0.2  # seconds that a step waits, so that signals are handled
_LONG = 30.0  # seconds without a worker, after which the user is told


@contextmanager
def connected(address: str, cpus: int | None = None) -> Iterator[None]:
    """Connects this process to a cluster; one that it is connected to already is taken.

    Args:
        address: ``HOST:PORT`` of a cluster, ``auto`` for that of this machine, or ``local`` to start one.
        cpus: CPUs of a cluster that is started; None: all of this machine.

    Raises:
        MissingDependencyError: Ray is not installed.
        ClusterError: There is no such cluster, or one of another version of Ray or Python.
    """
    if ":" in address:
        _require_open(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
    with requiring(f"{named('ray')} needs the package {{name}}, which is not installed", "ray"):
        import ray
    if ray.is_initialized():
        yield
        return
    started: dict[str, Any] = {}
    if address == LOCAL:
        started = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _STORE}
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **started)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _unusable(address, error) from error
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray leaves signals alone too
            signal.signal(signal.SIGTERM, terminated)
    logs = ray._private.worker
    logs._worker_logs_enabled = False  # else it prints on stdout, among the lines, that a worker died
    try:
        yield
    finally:
        logs._worker_logs_enabled = True
        ray.shutdown()


def _require_open(address: str) -> None:
    """Refuses an address where nothing listens, which Ray would try for minutes; raises ClusterError."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise _unusable(address, error) from error


def _unusable(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"Ray at {address!r} cannot be used: {' '.join(str(error).split())[:300].rstrip('.')}",
        fix="start a head node with the same versions of Ray and Python, and give its address",
    )


@dataclass(frozen=True)
class _Decoded:
    """Outcomes of a block, in the order of its requests.

    Attributes:
        absent: Indices of the requests whose recording is no file on the worker's machine.
        notices: Lines to tell the user.
    """

    outcomes: list[Outcome]
    absent: list[int]
    notices: list[str]


class _Worker:
    """Decodes blocks of requests in a process of Ray's. Errors that the user is to see are returned.

    Args:
        folder: Folder of the driver: relative names mean the same here.
        load: Loads the model, with the strategy.
    """

    def __init__(self, folder: str, load: Callable[[], tuple[Model, Decoding]]) -> None:
        self._folder, self._load = folder, load
        self._notices: list[str] = []

    def start(self) -> tuple[str, NartkError | str]:
        """Loads the model; the name of this process, and the signature or an error."""
        name = f"{socket.gethostname()}:{os.getpid()}"
        try:
            with suppress(OSError):
                os.chdir(self._folder)
            self._model, self._strategy = self._load()
            if self._model.sound is not None:
                self._model.sound.tell = self._notices.append
            return name, self._model.signature(self._strategy)
        except NartkError as error:
            return name, error

    def decode(self, requests: list[LineRequest], batching: Batching) -> _Decoded | NartkError:
        self._notices.clear()
        try:
            run = LineRun(self._model, self._strategy, batching)
            found = dict(run_through(run, requests, ahead=len(requests)))
        except NartkError as error:
            return error
        outcomes = [found[request] for request in requests]
        absent = [
            i
            for i, (request, outcome) in enumerate(zip(requests, outcomes, strict=True))
            if isinstance(outcome, InputFileError) and not os.path.isfile(str(request.source))
        ]
        return _Decoded(outcomes, absent, [*self._notices])


@dataclass(eq=False)
class _Block:
    """Requests that are decoded together.

    Attributes:
        tries: Workers that died while they decoded it.
    """

    requests: list[LineRequest]
    tries: int = 0


@dataclass(eq=False)
class _Process:
    """A worker as the driver sees it.

    Attributes:
        actor: Handle of the actor.
        name: Host and process; empty until its model is loaded.
        blocks: Blocks in its queue, the first of which it decodes.
    """

    actor: Any
    name: str = ""
    blocks: deque[_Block] = field(default_factory=deque)


class ClusterRun:
    """Implements `nartk.protocols.runs.Steps` for lines, with workers of the connected cluster.

    Lines go to workers in blocks, which become smaller when few lines are left. The lines of a worker that
    dies are decoded by others, and a worker is started in its place as soon as a machine has CPUs for it. The
    outcome of a line does not depend on its block: it is that of one process.

    Args:
        load: Loads the model and the strategy in a worker; can be pickled.
        model: The driver's own model.
        strategy: Strategy of the model.
        batching: Batching of each engine.
        workers: Number of workers; None: as many as the cluster's CPUs allow.
        cpus: CPUs that each one computes with.
        tell: Receives a line on what happens to workers.

    Attributes:
        count: Number of workers.
        ahead: Most requests to admit before their outcomes are taken.

    Raises:
        ClusterError: A worker cannot be started, or has another model or other code than the driver.
        NartkError: Same as in `load`.
    """

    def __init__(
        self,
        load: Callable[[], tuple[Model, Decoding]],
        model: Model,
        strategy: Decoding,
        batching: Batching,
        *,
        workers: int | None = None,
        cpus: int = 1,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        import ray

        self._ray, self._batching, self._cpus, self._tell = ray, batching, cpus, tell
        self._signature, self._sound = model.signature(strategy), model.sound
        if workers is not None:
            require_count("workers", workers)
        most = self._capacity()
        self.count = most if workers is None else min(workers, most)
        if not self.count:
            raise ClusterError(
                f"no machine of the cluster has the {number_of(cpus, 'CPU')} that a worker computes with",
                fix=f"lower {named('replicas')} or {named('threads')}, or add a machine",
            )
        batch = batching.size * model.replicas
        self._least, self._most = (batch, BATCHES * batch) if model.reads_text else (1, batch)
        self.ahead = 2 * IN_FLIGHT * self.count * self._most
        self._actor = ray.remote(num_cpus=cpus, max_restarts=0)(_Worker)
        self._arguments = (os.getcwd(), ray.put(load))
        self._waiting, self._returned = deque[LineRequest](), deque[_Block]()
        self._open: set[LineRequest] = set()
        self._workers: list[_Process] = []
        # By the references of their results, which do not come in the order of the blocks; None: a start.
        self._tasks: dict[Any, tuple[_Process, _Block | None]] = {}
        self._starts = 0  # that have failed since one did not
        self._since = time.monotonic()
        try:
            for _ in range(self.count):
                self._start()
            while not self._ready():
                self.step()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, request: LineRequest) -> None:
        self._waiting.append(request)
        self._open.add(request)

    def step(self) -> list[tuple[LineRequest, Outcome]]:
        """Hands blocks to workers, and waits a moment for what they have decoded.

        Raises:
            ClusterError: Workers die again and again, or none can be started.
        """
        self._hand_out()
        ended, _ = self._ray.wait([*self._tasks], timeout=_WAIT)
        if not ended and not self._ready():
            self._check_capacity()
        return [each for reference in ended for each in self._take(reference)]

    def so_far(self, request: LineRequest) -> Hypothesis:
        """Nothing: a line that is decoded is on another machine."""
        return NOTHING

    def drop(self, request: LineRequest) -> None:
        """Gives up a request; one that a worker has is decoded, for nothing."""
        self._open.discard(request)

    def close(self) -> None:
        self._waiting.clear()
        self._returned.clear()
        self._open.clear()
        self._tasks.clear()
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()

    def _capacity(self) -> int:
        """Workers that the machines have CPUs for."""
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        return sum(int(cpus // self._cpus) for cpus in nodes)

    def _start(self) -> None:
        worker = _Process(self._actor.remote(*self._arguments))
        self._workers.append(worker)
        self._tasks[worker.actor.start.remote()] = worker, None

    def _ready(self) -> list[_Process]:
        return [worker for worker in self._workers if worker.name]

    def _hand_out(self) -> None:
        """Gives blocks to the workers that have the fewest.

        A block that a worker died with is decoded alone: a death may also lose what was decoded just before,
        so that the wrong block is blamed, but not again and again.
        """
        while self._waiting or self._returned:
            free = [each for each in self._ready() if not (each.blocks and each.blocks[0].tries)]
            worker = min(free, key=lambda each: len(each.blocks), default=None)
            if worker is None or len(worker.blocks) >= IN_FLIGHT:
                return
            if worker.blocks and self._returned and self._returned[0].tries:
                return
            block = self._returned.popleft() if self._returned else self._next()
            if block.requests:
                worker.blocks.append(block)
                self._tasks[worker.actor.decode.remote(block.requests, self._batching)] = worker, block

    def _next(self) -> _Block:
        share = math.ceil(len(self._waiting) / (IN_FLIGHT * self.count))
        size = min(len(self._waiting), max(self._least, min(self._most, share)))
        requests = [self._waiting.popleft() for _ in range(size)]
        return _Block([request for request in requests if request in self._open])

    def _take(self, reference: Any) -> Iterator[tuple[LineRequest, Outcome]]:
        """Takes the result of a task."""
        if reference not in self._tasks:  # of a worker that died in this step
            return
        worker, block = self._tasks.pop(reference)
        exceptions = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except exceptions.RayTaskError:  # a fault of the code in the worker
            raise
        except exceptions.RayError as error:
            self._lose(worker, error)
            return
        if block is None:
            self._greet(worker, *result)
            return
        worker.blocks.remove(block)
        if isinstance(result, NartkError):
            raise result
        for i in result.absent:
            source = str(block.requests[i].source)
            if os.path.isfile(source):
                raise ClusterError(
                    f"worker {worker.name} cannot read {source!r}, which is there on this machine", fix=SHARED
                )
        if self._sound is not None:
            for line in result.notices:
                self._sound.tell(line)
        for request, outcome in zip(block.requests, result.outcomes, strict=True):
            if request in self._open:
                self._open.remove(request)
                yield request, outcome

    def _greet(self, worker: _Process, name: str, answer: NartkError | str) -> None:
        """Takes a worker that has loaded the model; raises NartkError where it could not, or has another."""
        if isinstance(answer, NartkError):
            answer.where = f"worker {name}" + (f": {answer.where}" if answer.where else "")
            answer.fix = f"{SHARED}; of one machine alone: {answer.fix}" if answer.fix else SHARED
            raise answer
        if answer != self._signature:
            raise ClusterError(
                f"worker {name} has another model or version: its signature is {answer}, here it is "
                f"{self._signature}",
                fix=SHARED,
            )
        worker.name, self._starts = name, 0

    def _lose(self, worker: _Process, error: Exception) -> None:
        """Starts a worker in place of one that died; its blocks are the next ones to be decoded."""
        self._workers.remove(worker)
        self._tasks = {key: each for key, each in self._tasks.items() if each[0] is not worker}
        self._ray.kill(worker.actor)  # where its result was lost, and not the process
        cause = " ".join(str(error).split())[:600].rstrip(".")
        if worker.name:
            self._tell(f"worker {worker.name} died; its lines are decoded again")
        else:
            self._starts += 1
        if worker.blocks:
            worker.blocks[0].tries += 1
            if worker.blocks[0].tries == TRIES:
                found = [request.index + 1 for request in worker.blocks[0].requests]
                raise ClusterError(
                    f"{TRIES} workers died with lines {found[0]} to {found[-1]}: {cause}",
                    fix=f"lower {named('batch_size')}, or give the machines more memory",
                )
        if self._starts == TRIES:
            raise ClusterError(
                f"{TRIES} workers died before they had a model: {cause}",
                fix="install the same version of nartk on every machine",
            )
        self._returned.extendleft(reversed(worker.blocks))
        self._since = time.monotonic()
        self._start()

    def _check_capacity(self) -> None:
        """Raises ClusterError where no machine can have a worker; tells where one is waited for."""
        if not self._capacity():
            raise ClusterError(
                "the cluster has lost its machines", fix="start them again, and give the command again"
            )
        if time.monotonic() - self._since > _LONG:
            self._since = math.inf
            self._tell("no worker has a model yet: other work may have the cluster's CPUs")
