"""Engines as users name them, what they run under, and what they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nartk.errors import UsageError, named
from nartk.files import JsonObject
from nartk.registry import strategies


@dataclass(frozen=True)
class Spec:
    """One engine as the user names it.

    Attributes:
        label: Its name on the command line, such as ``iad:anchor=unique``.
        name: A strategy, or a peer of `nartk.bench.peers.PEERS`.
        options: Its options that were given.
        dtype: fp32, bf16, fp16 or int8.
        model: The model that a strategy decodes with; empty: the benchmark's.
        replicas: Engines of one thread of a strategy.
        command: Command of a program that is a peer; empty: none.
    """

    label: str
    name: str
    options: JsonObject
    dtype: str
    model: str = ""
    replicas: int = 1
    command: str = ""

    @property
    def peer(self) -> bool:
        """True for another library or program."""
        return bool(self.command) or self.name not in strategies()


@dataclass(frozen=True)
class Setup:
    """Settings under which an engine runs.

    Attributes:
        model: Its name or folder.
        threads: CPU threads.
        together: All engines share a process, and its models; times are then of the CPU if it decodes.
        languages: Languages of a Hugging Face folder's text, as `nartk.load` takes them.
    """

    model: str
    device: str
    threads: int
    together: bool = False
    languages: JsonObject = field(default_factory=dict)

    @property
    def clock(self) -> str:
        """Name of the clock, a function of the module `time`."""
        return "process_time" if self.together and self.device == "cpu" else "perf_counter"


@dataclass(frozen=True)
class Outcome:
    """Output of an engine.

    Attributes:
        tokens: Ids of each sentence, with eos unless its limit cut it off.
        texts: Texts of the outputs.
        latencies: Seconds of each sentence from its entry into a batch to its end, in any order, of a peer at
            batch 1 from text to text; empty where the engine does not tell.
        passes, drafted, accepted: Summed over sentences; None where the engine does not tell.
        seconds: Time taken, where the engine itself measures it.
    """

    tokens: Sequence[Sequence[int]]
    texts: Sequence[str]
    latencies: Sequence[float] = field(default_factory=list)
    passes: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    seconds: float | None = None


def require_threads(replicas: int, threads: int) -> None:
    """Refuses more replicas than threads: figures are of as many threads as they say."""
    if replicas > threads:
        raise UsageError(
            f"{replicas} replicas have {replicas} threads, more than {named('threads', threads)}"
        )
