"""Replicas decode what one engine decodes, and whatever ends a decoding ends all of their threads."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.engine import ISAS
from support.scorers import TransformerEngine
from support.tiny import WORDS, corrector

import nartk
from nartk.cli.decode import main as decode
from nartk.errors import OutOfMemoryError, PassError, StrategyMismatchError, UsageError
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import Pass, Scores, Want
from nartk.protocols.runs import Batching, BatchRun, Run, run_through
from nartk.serving.replicas import ReplicaRun

assert ISAS  # without the engine this file is left out
Passing = Callable[[TransformerEngine, Pass, Want], Scores]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corrector(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TransformerEngine]]:
    """The replicas that a test makes; afterwards none of their threads and cells may be in use."""
    made: list[TransformerEngine] = []
    replicate = TransformerEngine.replica

    def replica(self: TransformerEngine, stopped: Callable[[], bool]) -> TransformerEngine:
        made.append(replicate(self, stopped))
        return made[-1]

    monkeypatch.setattr(TransformerEngine, "replica", replica)
    before = threading.active_count()
    yield made
    assert made
    assert threading.active_count() == before
    for each in made:
        assert each.cells_in_use == 0
        assert each._engine.memories_in_use == 0


def random_lines(count: int) -> list[str]:
    rng = random.Random(0)
    words = WORDS.split()
    lengths = [0, 1, 12, *(rng.randint(1, 12) for _ in range(count))][:count]
    return [" ".join(rng.choices(words, k=length)) for length in lengths]


def failing(run: Passing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every pass of an engine go through `run`."""
    monkeypatch.setattr(TransformerEngine, "run", run)


STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "iad": {},
    "ngram": {},
    "sample": {"seed": 3},
    "beam": {"nbest": 2},
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("count", "batch_size"), [(2, 1), (2, 32), (3, 4)])
def test_they_decode_what_one_engine_decodes(
    name: str, count: int, batch_size: int, folder: Path, replicas: list[TransformerEngine]
) -> None:
    options = STRATEGIES[name]
    lines = random_lines(40)
    one = nartk.load(folder).run(lines, name, options, batch_size=batch_size)
    many = nartk.load(folder, replicas=count).run(lines, name, options, batch_size=batch_size)
    assert many.hypotheses == one.hypotheses
    assert many.errors == one.errors == {}
    assert many.signature == one.signature
    assert many.stats.tokens == one.stats.tokens > 100
    assert len(replicas) == count
    assert len({id(each._model) for each in replicas}) == 1  # they share the weights
    assert {each.threads for each in replicas} == {1}


def test_each_decodes_in_a_thread_of_its_own(
    folder: Path, replicas: list[TransformerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, set[int]] = {}
    run = TransformerEngine.run

    def watched(self: TransformerEngine, work: Pass, want: Want) -> Scores:
        seen.setdefault(id(self), set()).add(threading.get_ident())
        return run(self, work, want)

    failing(watched, monkeypatch)
    nartk.load(folder, replicas=3).decode(random_lines(30), "greedy")
    assert len(replicas) == len(seen) == 3
    threads = [thread for (thread,) in seen.values()]
    assert threading.get_ident() not in threads


def test_the_command_writes_the_same_lines(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in random_lines(50)))
    outputs = []
    for extra in ([], ["--replicas", "2"], ["--replicas", "2", "--max-tokens", "20"]):
        arguments = [str(folder), str(tmp_path / "in.txt"), "--output-format", "jsonl", *extra]
        arguments += ["--output", str(tmp_path / "out"), "--stats", str(tmp_path / "stats")]
        assert decode(arguments) == 0
        outputs.append((tmp_path / "out").read_text())
    assert outputs[0] == outputs[1] == outputs[2]
    stats = json.loads((tmp_path / "stats").read_text())
    assert (stats["replicas"], stats["threads"]) == (2, 1)


@dataclass(frozen=True)
class WithHelper:
    """Encodes with its helper, and gives how many encoded sources that holds then."""

    auxiliary: Mapping[str, Any]

    def begin(self, scorer: Any, batching: Batching) -> Run:
        drafter = self.auxiliary["drafter"]

        def decode(requests: Sequence[Request]) -> Iterator[Result]:
            memory = drafter.encode([request.source for request in requests])
            held = drafter._engine.memories_in_use
            for request in requests:
                yield Result(request.index, (Hypothesis(tokens=(held,), score=None),))
            drafter.free(memory)

        return BatchRun(decode, batching)


def test_requests_are_dealt_out_by_length(folder: Path, replicas: list[TransformerEngine]) -> None:
    """Each goes where the fewest source tokens are: 3 and 7 to the one, 1, 7 and 2 to the other."""
    model, other = nartk.load(folder), nartk.load(folder)
    run = ReplicaRun(WithHelper({"drafter": other.passes}), model.passes, 2, Batching(5))
    requests = [Request(index, (*[5] * (size - 1), 2), 9) for index, size in enumerate([3, 1, 7, 7, 2])]
    held = {request.index: result.hypotheses[0].tokens for request, result in run_through(run, requests)}
    assert held == {0: (2,), 1: (3,), 2: (3,), 3: (2,), 4: (3,)}


def test_what_is_dropped_has_no_result(folder: Path, replicas: list[TransformerEngine]) -> None:
    model = nartk.load(folder)
    run = ReplicaRun(nartk.strategy_class("greedy")(max_len=5), model.passes, 2, Batching(2))
    requests = [Request(index, (5, 6, 2), 4) for index in range(9)]
    for request in requests:
        run.admit(request)
    for request in requests[1::2]:
        run.drop(request)
    found: list[int] = []
    while len(run):
        found += [request.index for request, _ in run.step()]
    run.close()
    assert sorted(found) == [0, 2, 4, 6, 8]


def test_auxiliary_models_are_replicated_too(folder: Path, replicas: list[TransformerEngine]) -> None:
    model, other = nartk.load(folder), nartk.load(folder)
    strategy = WithHelper({"drafter": other.passes})
    requests = [Request(index, (5, 2), 4) for index in range(5)]
    run = ReplicaRun(strategy, model.passes, 2, Batching(5))
    results = [result for _, result in run_through(run, requests)]
    assert len({id(each._model) for each in replicas}) == 2
    assert len(replicas) == 4
    held = {result.index: result.hypotheses[0].tokens for result in results}
    assert held == {0: (3,), 1: (2,), 2: (3,), 3: (2,), 4: (3,)}


# How it ends


def test_an_error_of_one_ends_all(
    folder: Path, replicas: list[TransformerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TransformerEngine.run

    def spoilt(self: TransformerEngine, work: Pass, want: Want) -> Scores:
        if self in replicas[1:2] and work.positions.max() == 3:
            raise PassError("a pass that fails")
        return run(self, work, want)

    failing(spoilt, monkeypatch)
    with pytest.raises(PassError, match="a pass that fails"):
        nartk.load(folder, replicas=3).decode(random_lines(60), "greedy", batch_size=2)


def test_a_closed_iterator_ends_all(folder: Path, replicas: list[TransformerEngine]) -> None:
    model = nartk.load(folder, replicas=2)
    stream = model.stream(random_lines(200)[1:], model.strategy("greedy", {}), batch_size=2)
    next(stream)
    assert len(replicas) == 2
    stream.close()


@pytest.mark.parametrize("to_main_thread", [True, False])
def test_an_interrupt_ends_all(
    to_main_thread: bool, folder: Path, replicas: list[TransformerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no sentence of theirs ends, and nobody reads results; whichever thread the signal is for."""
    begun, run = threading.Event(), TransformerEngine.run

    def endless(self: TransformerEngine, work: Pass, want: Want) -> Scores:
        scores = run(self, work, want)
        while not self._stopped():  # type: ignore[misc]
            begun.wait(0.001)
            begun.set()
        return scores

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.3)  # until the main thread waits
        thread = threading.main_thread() if to_main_thread else threading.current_thread()
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, signal.SIGINT)

    failing(endless, monkeypatch)
    waiting = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
    try:
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            nartk.load(folder, replicas=2).decode(random_lines(20), "greedy")
    finally:
        signal.signal(signal.SIGINT, before)
    waiting.join()


def test_where_memory_runs_out_batches_are_halved(
    folder: Path, replicas: list[TransformerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = random_lines(40)
    wanted = nartk.load(folder).decode(lines, "greedy")
    run, largest = TransformerEngine.run, []

    def scarce(self: TransformerEngine, work: Pass, want: Want) -> Scores:
        largest.append(len(work.tokens))
        if len(work.tokens) > 2:
            raise MemoryError
        return run(self, work, want)

    failing(scarce, monkeypatch)
    assert nartk.load(folder, replicas=2).decode(lines, "greedy", batch_size=8) == wanted
    assert max(largest) > 4
    assert len(replicas) == 6  # batches of 8, 4 and 2


def test_memory_that_lacks_for_one_sentence_is_an_error(
    folder: Path, replicas: list[TransformerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scarce(self: TransformerEngine, work: Pass, want: Want) -> Scores:
        raise MemoryError

    failing(scarce, monkeypatch)
    with pytest.raises(OutOfMemoryError, match="memory ran out with one sentence in the batch"):
        nartk.load(folder, replicas=2).decode(random_lines(5), "greedy", batch_size=1)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "replicas is 0. Fix: give 1 to 1024"),
        ({"replicas": 2, "threads": 2}, "threads=2 with replicas=2, each of which has one thread"),
    ],
)
def test_what_cannot_be_replicated_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        nartk.load(folder, **options)
    assert message in str(caught.value)


def test_without_the_engine_there_are_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    with pytest.raises(UsageError, match="replicas=2 needs the engine"):
        nartk.load(folder, replicas=2)


def test_a_model_in_torch_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nartk.load(folder, replicas=2)
    monkeypatch.setattr(type(model), "scorer_for", lambda self, strategy: object())
    with pytest.raises(StrategyMismatchError) as caught:
        model.strategy("greedy", {})
    assert "replicas with strategy 'greedy', of which torch serves a model here" in str(caught.value)
