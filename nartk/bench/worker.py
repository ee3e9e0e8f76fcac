"""Engines in a process of their own: ``python -m nartk.bench.worker`` answers requests, a JSON line each.

A request is the name of a method of `_Server` with its arguments, such as ``{"load": {"spec": ..., "setup":
...}}``. The answer is what the method returns, or ``{"error": ...}`` where it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import IO, Any

from nartk.errors import naming_flags
from nartk.files import JsonObject

MB = 1_000_000  # bytes


def main() -> None:
    """Serves requests until stdin ends."""
    # What libraries print goes to stderr; the answers alone to stdout.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    worker = _Server()
    with naming_flags():
        for line in sys.stdin:
            _answer(worker, json.loads(line), replies)


def _answer(worker: _Server, request: JsonObject, replies: IO[str]) -> None:
    ((name, arguments),) = request.items()
    try:
        reply = getattr(worker, name)(**arguments)
    except Exception as error:  # whatever another library raises: the benchmark goes on without it
        traceback.print_exc()
        reply = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
    print(json.dumps(reply), file=replies, flush=True)


class _Server:
    """Holds the engines; its methods are the requests."""

    def __init__(self) -> None:
        self.engines: list[Any] = []

    def load(self, spec: JsonObject, setup: JsonObject) -> JsonObject:
        """Loads an engine; gives its number and signature."""
        from nartk.bench.engines import open_engine
        from nartk.bench.specs import Setup, Spec

        self.setup = Setup(**setup)
        self.cuda = self.setup.device.startswith("cuda")
        self.engines.append(open_engine(Spec(**spec), self.setup))
        if (torch := sys.modules.get("torch")) is not None:  # nartk's own engines do without it
            torch.set_num_threads(setup["threads"])
        return {"engine": len(self.engines) - 1, "signature": self.engines[-1].signature}

    def run(self, engine: int, job: JsonObject, batch_size: int, *, costs: bool = False) -> JsonObject:
        """Decodes a job; gives times, outputs and what they took; also, decoding again, where time goes."""
        from nartk.bench.work import Workload

        chosen, clock = self.engines[engine], getattr(time, self.setup.clock)
        work, apart = Workload.from_dict(job), batch_size == 1 and chosen.by_sentence
        parts = [work.part(i, i + 1) for i in range(len(work.lines))] if apart else [work]
        reset_peak(cuda=self.cuda)
        seconds, outcomes = [], []
        for part in parts:
            start = clock()
            outcomes.append(chosen.decode(part, batch_size))
            took = clock() - start
            measured = outcomes[-1].seconds
            seconds.append(took if measured is None else measured)
        counts = {}
        for name in ("passes", "drafted", "accepted"):
            each = [getattr(outcome, name) for outcome in outcomes]
            counts[name] = None if None in each else sum(each)
        return {
            "seconds": sum(seconds),
            "latencies": seconds if apart else outcomes[0].latencies,
            "tokens": [row for outcome in outcomes for row in outcome.tokens],
            "texts": [text for outcome in outcomes for text in outcome.texts],
            "peak_mb": peak_mb(cuda=self.cuda) if not self.setup.together and chosen.in_process else None,
            "costs": chosen.costs(work, batch_size) if costs and hasattr(chosen, "costs") else None,
            **counts,
        }

    def ties(self, engine: int, job: JsonObject, **outputs: Any) -> JsonObject:
        """For outputs that are not greedy search's True if they leave it at a tie."""
        from nartk.bench.work import Workload

        return {"ties": self.engines[engine].ties(Workload.from_dict(job), **outputs)}

    def make(self, script: str, function: str, arguments: JsonObject) -> JsonObject:
        """Makes the contender of a recipe by a function of its script."""
        sys.path.insert(0, str(Path(script).parent))  # as for a script that is run
        found = spec_from_file_location("__recipe__", script)
        assert found is not None
        assert found.loader is not None
        module = module_from_spec(found)
        sys.modules[module.__name__] = module  # where dataclasses look for it
        found.loader.exec_module(module)
        self.contender = getattr(module, function)(**arguments)
        return {}

    def call(self) -> JsonObject:
        """Calls the contender once."""
        return {"result": self.contender()}


def reset_peak(*, cuda: bool) -> None:
    """Forgets the peak so far. Elsewhere than on Linux, resident memory keeps its."""
    if cuda:
        import torch

        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_mb(*, cuda: bool) -> float:
    """The peak, in MB."""
    if cuda:
        import torch

        return torch.cuda.max_memory_allocated() / MB
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


if __name__ == "__main__":
    main()
