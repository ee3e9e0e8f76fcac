"""Workers of a Ray cluster write what one process writes, whichever of them dies, whatever ends the run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.sounds import wav
from support.speech_models import save_random_speech

import nartk
from nartk.cli import _job
from nartk.cli.decode import main
from nartk.data.text import read_corpus
from nartk.errors import ClusterError, ModelNotFoundError
from nartk.protocols.hypothesis import Result
from nartk.protocols.runs import Batching, run_in_order
from nartk.serving import cluster
from nartk.serving.cluster import ClusterRun
from nartk.serving.line_runs import LineRequest, LineRun

COMMAND = [sys.executable, "-c", "import sys; from nartk.cli.decode import main; sys.exit(main())"]
STRATEGIES = {
    "iad": ("--strategy", "iad", "--output-format", "jsonl"),
    "beam": ("--strategy", "beam", "--beam-size", "3", "--nbest", "2"),
    "sample": ("--strategy", "sample", "--temperature", "1.5", "--seed", "5", "--nbest", "2"),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[str]:
    """Connects this process to a cluster of two CPUs; its address."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'nartk[ray]'")
    with cluster.connected("local", 2):
        yield ray.get_runtime_context().gcs_address


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.random_model(tmp_path_factory.mktemp("random"), words=tiny.WORDS.split()))


def lines_of(count: int) -> list[str]:
    """Lines of 1 to 12 words, of which the third is blank."""
    draw, words = np.random.default_rng(3), tiny.WORDS.split()
    lines = [" ".join(draw.choice(words, 1 + i % 12)) for i in range(count)]
    return [*lines[:2], "", *lines[3:]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    lines = [line.encode() for line in lines_of(150)]
    path.write_bytes(b"\n".join([*lines[:9], b"she \xff go", *lines[10:]]) + b"\n")
    return path


def run(*args: object, code: int = 3) -> None:
    """Runs the command, whose inputs have a line that fails."""
    assert main([*map(str, args), "--quiet"]) == code


# The same outputs


@pytest.mark.parametrize("name", STRATEGIES)
def test_they_write_what_one_process_writes(
    name: str, model: str, source: Path, tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [model, source, *STRATEGIES[name], "--batch-size", 2, "--output"]
    run(*args, tmp_path / "one")
    errors = capsys.readouterr().err
    run(*args, tmp_path / "two", "--stats", tmp_path / "stats", "--ray", "--workers", 2)
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert capsys.readouterr().err == errors
    assert errors.count("error[E202 InputEncoding]") == 1
    assert '"workers": 2' in (tmp_path / "stats").read_text()


def test_given_outputs_are_scored(model: str, source: Path, tmp_path: Path, workers: str) -> None:
    outputs = tmp_path / "outputs"
    outputs.write_text("".join(f"{line or 'she'}\n" for line in reversed(lines_of(150))))
    args = [model, source, "--score", outputs, "--output"]
    run(*args, tmp_path / "one")
    run(*args, tmp_path / "two", "--ray", "auto", "--replicas", 2)  # one worker of two engines
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_recordings(
    tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of relative names too; workers tell what this process would tell."""
    monkeypatch.chdir(tmp_path)
    save_random_speech(
        tmp_path / "model", "speech_ctc", 2, words=12, max_source_len=400, strategy="ctc-greedy"
    )
    names = [f"{i}.wav" for i in range(6)]
    for i, name in enumerate(names):
        samples = 0.3 * np.random.default_rng(i).normal(size=16000 + 3000 * i).astype(np.float32)
        Path(name).write_bytes(wav(samples))
    Path("list.txt").write_text("\n".join([*names[:2], "none.wav", *names[2:]]) + "\n")
    args = ["model", "--manifest", "list.txt", "--output-format", "jsonl", "--output"]
    assert main([*args, "one"]) == 3
    told = capsys.readouterr().err
    assert main([*args, "two", "--ray", "--stats", "stats"]) == 3
    assert Path("two").read_bytes() == Path("one").read_bytes()
    assert Path("two").read_bytes().count(b'"tokens"') == 6
    found = capsys.readouterr().err
    assert sorted(found.splitlines()[:-1]) == sorted(told.splitlines()[:-1])
    assert "real-time factor" in found
    seconds = sum(16000 + 3000 * i for i in range(6)) / 16000
    assert json.loads(Path("stats").read_text())["sound_seconds"] == seconds


# Workers and drivers that die


def killing(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Kills a worker when so many lines are written; what it was called."""
    killed: list[str] = []
    write = _job.Job._write

    def counted(job: _job.Job, *args: Any) -> None:
        write(job, *args)
        if job.lines == at and job.cluster is not None:
            worker = max(job.cluster._workers, key=lambda each: len(each.blocks))
            assert worker.blocks  # it has lines, which are lost
            killed.append(worker.name)
            os.kill(int(worker.name.rpartition(":")[2]), signal.SIGKILL)

    patch.setattr(_job.Job, "_write", counted)
    return killed


def test_a_worker_is_killed(
    model: str,
    tmp_path: Path,
    workers: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines_of(400)))
    args = [model, str(tmp_path / "in.txt"), *STRATEGIES["sample"], "--batch-size", "2", "--output"]
    assert main([*args, str(tmp_path / "one")]) == 0
    killed = killing(monkeypatch, 100)
    capsys.readouterr()
    assert main([*args, str(tmp_path / "two"), "--ray"]) == 0
    time.sleep(0.5)
    told = capsys.readouterr()
    assert f"nartk: worker {killed[0]} died; its lines are decoded again" in told.err
    assert told.out == ""  # where lines may go
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.slow
def test_a_worker_is_killed_amid_ten_thousand_lines(
    tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model that ships, in int8, from text that ships."""
    lines = [" ".join(tokens) for tokens in islice(read_corpus("ud_ewt"), 2000)]
    (tmp_path / "in.txt").write_text("\n".join(lines * 5) + "\n")
    args = ["gec-en", tmp_path / "in.txt", "--pretokenized", "--dtype", "int8", "--batch-size", 8, "--output"]
    run(*args, tmp_path / "one", "--threads", 1, code=0)
    killed = killing(monkeypatch, 5000)
    run(*args, tmp_path / "two", "--ray", "--workers", 2, code=0)
    assert len(killed) == 1
    one, two = ((tmp_path / name).read_bytes() for name in ("one", "two"))
    assert hashlib.sha256(two).hexdigest() == hashlib.sha256(one).hexdigest()
    assert one.count(b"\n") == 10000


def test_the_driver_is_killed(model: str, tmp_path: Path, workers: str) -> None:
    """A second run goes on after the lines in the journal, on workers that the first one has left."""
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines_of(1500)))
    args = [model, str(tmp_path / "in.txt"), "--batch-size", "2", "--output"]
    run(*args, tmp_path / "one", code=0)
    args += [str(tmp_path / "two"), "--resume", "--ray", workers]
    first = subprocess.Popen([*COMMAND, *args], stderr=subprocess.DEVNULL)
    journal, end = tmp_path / "two.journal", time.monotonic() + 60
    while not (journal.exists() and journal.stat().st_size > 9_000):
        assert first.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert not (tmp_path / "two").exists()
    run(*args, "--stats", tmp_path / "stats", code=0)
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert '"from_journal": 0' not in (tmp_path / "stats").read_text()


# The run itself


def started(folder: str, load: Callable[[], Any], **options: Any) -> ClusterRun:
    found = nartk.load(folder)
    return ClusterRun(load, found, found.strategy("greedy", {}), Batching(2), **options)


def test_requests_are_admitted_in_bounds_and_dropped(model: str, workers: str) -> None:
    """Small parts of few lines, the outcomes in order, and none of what was dropped."""

    def load() -> Any:
        found = nartk.load(model, threads=1)
        return found, found.strategy("greedy", {})

    run = started(model, load)
    lines = lines_of(300)
    requests = [LineRequest(index, line) for index, line in enumerate(lines)]
    read: list[int] = []
    most = 0
    texts: dict[int, str] = {}

    def reading() -> Iterator[LineRequest]:
        for request in requests:
            read.append(request.index)
            yield request

    for request, outcome in run_in_order(run, reading(), ahead=run.ahead):
        assert isinstance(outcome, Result)
        most = max(most, len(read) - len(texts))
        texts[request.index] = outcome.hypotheses[0].text
    assert run.count == 2
    assert most == run.ahead == 2 * 2 * 2 * 16
    assert [*texts] == [*range(300)]
    assert [*texts.values()] == [each.text for each in nartk.load(model).decode(lines, "greedy")]

    run = started(model, load, workers=1)
    for request in requests[:9]:
        run.admit(request)
    for request in requests[1:9:2]:
        run.drop(request)
    found: list[int] = []
    while len(run):
        found += [request.index for request, _ in run.step()]
    run.close()
    assert sorted(found) == [0, 2, 4, 6, 8]


class LastFirst:
    """Ray, but of results that are there the last one is taken first."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        ended, open_ = self._ray.wait(references, num_returns=len(references), timeout=timeout)
        return ended[::-1], open_


def test_results_may_come_in_any_order(model: str, workers: str) -> None:
    def load() -> Any:
        found = nartk.load(model, threads=1)
        return found, found.strategy("greedy", {})

    run = started(model, load)
    run._ray = LastFirst(run._ray)
    lines = lines_of(300)
    requests = [LineRequest(index, line) for index, line in enumerate(lines)]
    texts = [outcome.hypotheses[0].text for _, outcome in run_in_order(run, requests, ahead=run.ahead)]  # type: ignore[union-attr]
    assert texts == [each.text for each in nartk.load(model).decode(lines, "greedy")]


def test_lines_that_kill_workers_are_named(model: str, workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "TRIES", 2)

    def load() -> Any:
        class Deadly(LineRun):
            def admit(self, asked: LineRequest) -> None:
                if asked.index == 5:
                    os._exit(1)
                super().admit(asked)

        cluster.LineRun = Deadly  # type: ignore[misc]
        found = nartk.load(model)
        return found, found.strategy("greedy", {})

    class Late(LastFirst):
        """Late too, so that the result before a death is lost with the worker."""

        def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
            time.sleep(1)
            return super().wait(references, timeout)

    run = started(model, load, workers=1)
    run._ray = Late(run._ray)
    with pytest.raises(ClusterError, match=r"2 workers died with lines 6 to 7: .*Fix: lower batch_size, or"):
        dict(run_in_order(run, [LineRequest(index, "she goes") for index in range(9)]))


def load_dying() -> Callable[[], Any]:
    return lambda: os._exit(1)


def load_nothing() -> Callable[[], Any]:
    return lambda: nartk.load("/no/such/model")


def load_another() -> Callable[[], Any]:
    def load() -> Any:
        found = nartk.load("gec-en")
        return found, found.strategy("greedy", {})

    return load


@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        (
            load_dying(),
            ClusterError,
            "2 workers died before they had a model: .*Fix: install the same version",
        ),
        (
            load_nothing(),
            ModelNotFoundError,
            r"worker [\w.-]+:\d+: .*no/such.* Fix: give every machine the same",
        ),
        (load_another(), ClusterError, r"worker [\w.-]+:\d+ has another model or version: its signature is"),
    ],
)
def test_workers_that_cannot_be_had_are_named(
    load: Callable[[], Any],
    error: type[Exception],
    message: str,
    model: str,
    workers: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "TRIES", 2)
    with pytest.raises(error, match=message):
        started(model, load, workers=1)


def test_a_recording_that_a_worker_does_not_have_is_named(
    tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere relative names mean nothing; what this machine does not have either is the line's error."""
    save_random_speech(
        tmp_path / "model", "speech_ctc", 2, words=12, max_source_len=400, strategy="ctc-greedy"
    )
    folder = str(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    Path("a.wav").write_bytes(wav(0.3 * np.random.default_rng(0).normal(size=16000).astype(np.float32)))

    def load() -> Any:
        os.chdir("/")
        found = nartk.load(folder)
        return found, found.strategy("ctc-greedy", {})

    found = nartk.load(folder)
    made = ClusterRun(load, found, found.strategy("ctc-greedy", {}), Batching(2), workers=1)
    outcomes = run_in_order(made, [LineRequest(0, "none.wav"), LineRequest(1, "a.wav")], ahead=1)
    assert "none.wav" in str(next(outcomes)[1])
    with pytest.raises(ClusterError, match=r"worker \S+ cannot read 'a.wav', which is there on this machine"):
        next(outcomes)


def test_a_cluster_that_is_too_small_is_named(model: str, source: Path, workers: str) -> None:
    with pytest.raises(ClusterError, match="no machine of the cluster has the 3 CPUs that a worker computes"):
        started(model, lambda: None, cpus=3)


# What needs no cluster


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "2"], "--workers without --ray. Fix: give both"),
        (
            ["--ray", "in.txt"],
            "--ray 'in.txt' is no address of a cluster. Fix: give HOST:PORT or auto, or write",
        ),
        (["--ray", "auto", "--stream"], "--ray with --stream"),
        (["--ray", "auto", "--speech", "out"], "--ray with --speech"),
        (["--ray", "auto", "--partials"], "--ray with --partials"),
        (["--ray", "auto", "--device", "cuda"], "--ray with --device cuda: workers compute on CPUs"),
        (["--ray", "auto", "--no-cuda-graphs"], "--ray with --no-cuda-graphs"),
        (["--ray", "auto", "--format", "sound"], "--ray with sound on stdin: workers read files"),
        (["--ray", "auto", "--workers", "0"], "--workers is 0, below 1"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flags: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([model, *flags]) == 2
    assert message in capsys.readouterr().err


def test_without_ray_the_extra_is_named(
    model: str, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([model, str(source), "--ray"]) == 2
    assert "--ray needs the package 'ray', which is not installed" in capsys.readouterr().err
