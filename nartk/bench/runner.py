"""Runs engines against each other: rounds interleaved and rotated, one engine active at a time."""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nartk
from nartk import engine
from nartk.bench.specs import Outcome, Setup, Spec
from nartk.bench.turns import EngineError, Worker, turns, worker
from nartk.bench.work import Workload
from nartk.files import JsonObject
from nartk.protocols.guarantee import Guarantee
from nartk.registry import make_strategy, strategies

GREEDY = "greedy"
_SETTLE = 0.25  # seconds between two engines: thread pools wait that long for more work before they sleep


@dataclass(frozen=True)
class Measurement(Outcome):
    """Output of one run of a job by one engine, measured.

    Attributes:
        seconds: Time of all sentences, from text to text, by `Setup.clock`.
        peak_mb: Peak memory, MB of 10^6 bytes: resident on a CPU, torch's own on a GPU; None where engines
            share a process.
        costs: Seconds of a further run by part, where that was asked and the engine measures them.
    """

    seconds: float = 0.0
    peak_mb: float | None = None
    costs: dict[str, float] | None = None


@dataclass
class EngineRuns:
    """Samples of one engine in one cell, one a round, or the reason why there are none.

    Attributes:
        ties: Outputs that leave greedy search's at a numerical tie, each with its sentence's number.
    """

    spec: Spec
    signature: str = ""
    samples: list[Measurement] = field(default_factory=list)
    not_run: str = ""
    ties: frozenset[tuple[int, tuple[int, ...]]] = frozenset()

    @property
    def guarantee(self) -> Guarantee | None:
        """Guarantee of its output; None where another library or model has made it."""
        if self.spec.name not in strategies() or self.spec.model:
            return None
        found: Guarantee = make_strategy(self.spec.name, self.spec.options).promised.guarantee
        return found


@dataclass
class Cell:
    """One job at one batch size.

    Attributes:
        edits: Words that the forced outputs replace; None: outputs are free.
    """

    job: Workload
    batch_size: int
    edits: int | None
    series: list[EngineRuns] = field(default_factory=list)

    def find(self, label: str, dtype: str) -> EngineRuns | None:
        """The engine of that label and type, if it ran."""
        for series in self.series:
            if (series.spec.label, series.spec.dtype) == (label, dtype) and series.samples:
                return series
        return None


def measure(
    cells: Sequence[Cell],
    specs: Sequence[Spec],
    setup: Setup,
    *,
    rounds: int,
    tell: Callable[[str], None],
    costs: bool = False,
) -> None:
    """Fills in the series of all cells.

    Engines are loaded once, into a process each or into one. In each cell every engine runs a few sentences
    unmeasured, then the whole job once a round; each round begins with another engine.

    Args:
        tell: Takes a line after each step.
        costs: Run once more in each round, to measure the time by part.
    """
    with ExitStack() as stack:
        engines: dict[int, tuple[Worker, int]] = {}  # each one's process, and its number there
        process: Worker | None = None
        loaded = [EngineRuns(spec) for spec in specs]
        for i, series in enumerate(loaded):
            if process is None or not setup.together:
                process = stack.enter_context(worker(setup.threads))
            try:
                asked = {"spec": dataclasses.asdict(series.spec), "setup": dataclasses.asdict(setup)}
                reply = process.request("load", **asked)
                series.signature, engines[i] = reply["signature"], (process, reply["engine"])
            except EngineError as error:
                series.not_run = str(error)
            tell(f"{_name(series)}: {series.not_run or 'loaded'}")
        for cell in cells:
            cell.series = [dataclasses.replace(series, samples=[]) for series in loaded]
            _measure_cell(cell, engines, setup, rounds, tell, costs=costs)


def _measure_cell(
    cell: Cell,
    engines: dict[int, tuple[Worker, int]],
    setup: Setup,
    rounds: int,
    tell: Callable[[str], None],
    *,
    costs: bool,
) -> None:
    where = f"batch {cell.batch_size}" + ("" if cell.edits is None else f", {cell.edits} edits")
    few = cell.job.part(0, max(2, cell.batch_size))
    for turn, i in turns(len(cell.series), rounds):
        series = cell.series[i]
        if series.not_run:
            continue
        process, number = engines[i]
        if setup.threads > 1:
            time.sleep(_SETTLE)
        try:
            reply = process.request(
                "run",
                engine=number,
                job=dataclasses.asdict(few if turn < 0 else cell.job),
                batch_size=cell.batch_size,
                costs=costs and turn >= 0,
            )
        except EngineError as error:
            series.not_run, series.samples = str(error), []
            tell(f"{where}: {_name(series)}: {error}")
            continue
        if turn >= 0:
            sample = Measurement(**reply)
            series.samples.append(sample)
            speed = sum(map(len, sample.tokens)) / sample.seconds
            tell(f"{where}, round {turn + 1} of {rounds}: {_name(series)}: {speed:.0f} tokens/s")
    for i, series in enumerate(cell.series):
        if series.samples and series.guarantee is Guarantee.IDENTICAL:
            try:
                _find_ties(cell, series, *engines[i])
            except EngineError as error:
                tell(f"{where}: {_name(series)}: whether it differs by ties alone is not known: {error}")


def _find_ties(cell: Cell, series: EngineRuns, process: Worker, number: int) -> None:
    """Fills in the ties of an engine that promises greedy search's output."""
    greedy = cell.find(GREEDY, series.spec.dtype)
    if greedy is None:
        return
    expected = greedy.samples[0].tokens
    found = sorted(
        {
            (row, tuple(tokens))
            for sample in series.samples
            for row, tokens in enumerate(sample.tokens)
            if tokens != expected[row]
        }
    )
    if found:
        outputs = {"batch_size": cell.batch_size, "expected": expected, "found": found}
        job = dataclasses.asdict(cell.job)
        allowed = process.request("ties", engine=number, job=job, **outputs)["ties"]
        series.ties = frozenset(itertools.compress(found, allowed))


def _name(series: EngineRuns) -> str:
    return f"{series.spec.label} {series.spec.dtype}"


def environment(device: str) -> JsonObject:
    """Environment of a measurement: hardware, versions and load."""
    gpu = capability = None
    try:
        import torch
    except ModuleNotFoundError:
        pass
    else:
        gpu = torch.cuda.get_device_name() if device.startswith("cuda") else None
        capability = torch.backends.cpu.get_cpu_capability()
    return {
        "cpu": _cpu_name(),
        "cpu_capability": capability,  # of torch
        "instruction_set": engine.instruction_set() if engine.available() else None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu,
        "device": device,
        "load_average": os.getloadavg()[0],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {
            "nartk": nartk.__version__,
            **{name: version_of(name) for name in ("torch", "transformers", "ctranslate2", "fairseq")},
        },
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def version_of(package: str) -> str | None:
    """Version of a package that is installed; None: it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
