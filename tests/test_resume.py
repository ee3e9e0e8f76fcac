"""`nartk-decode --resume`: whatever ends a run, the file is at last that of a run which nothing ended."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.sounds import wav
from support.speech_models import save_random_speech

import nartk
from nartk import journal as journals
from nartk.cli import _journal, _transcripts, decode
from nartk.cli.decode import main
from nartk.errors import ResumeMismatchError
from nartk.journal import Journal
from nartk.serving.line_runs import LineRun

COMMAND = [sys.executable, "-c", "import sys; from nartk.cli.decode import main; sys.exit(main())"]
WORDS = ("she", "go", "to", "school", "yesterday", "he", "the", "big", "cat", "sees", "it", "home")
# One that is not UTF-8, one that is blank, and one whose output has a character of two units in UTF-16.
ODD = (b"she \xff go\n", b"\n", "the \N{SMILING FACE WITH OPEN MOUTH} cat .\n".encode())
FORMATS = {
    "text": (),
    "jsonl": ("--output-format", "jsonl"),
    "m2": ("--output-format", "m2"),
    "n-best": ("--strategy", "beam", "--beam-size", "3", "--nbest", "2"),
    "sampled": ("--strategy", "sample", "--temperature", "1.5", "--seed", "5"),
}
HEAD = 8  # bytes of a record before its payload: length and checksum


def lines_of(count: int, seed: int = 1) -> bytes:
    draw = random.Random(seed)
    made = [f"{' '.join(draw.choices(WORDS, k=1 + i % 9))} .\n".encode() for i in range(count - len(ODD))]
    return b"".join([*made[:2], *ODD, *made[2:]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.corrector(tmp_path_factory.mktemp("corrector")))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_bytes(lines_of(12))
    return path


@pytest.fixture
def loaded(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads the model once for all runs of a test."""
    found = nartk.load(model)
    monkeypatch.setattr(decode, "load_model", lambda *args, **options: found)


def run(*args: object, code: int = 3) -> None:
    """Runs the command, whose inputs have a line that fails."""
    assert main([*map(str, args), "--quiet"]) == code


def kept_journal(patch: pytest.MonkeyPatch, *args: object, code: int = 3) -> bytes:
    """The journal of a whole run, which it removes."""
    found = []

    def remove(journal: Journal) -> None:
        found.append(journal.path.read_bytes())
        journal.path.unlink()

    with patch.context() as patched:
        patched.setattr(Journal, "remove", remove)
        run(*args, "--resume", code=code)
    return found[0]


def traced(path: Path) -> list[Any]:
    """What a trace says of each line, but for the drafts, whose lengths go by the batch."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [[line["line"], line["id"], line.get("output_text"), line.get("error")] for line in lines]


def counted(stats: Path) -> dict[str, Any]:
    """Figures of a report that depend neither on the machine nor on when a run was killed."""
    names = ("lines", "failed", "sentences", "tokens", "passes", "drafted", "accepted", "guard", "signature")
    report = json.loads(stats.read_text())
    return {name: report[name] for name in (*names, "sound_seconds") if name in report}


def seconds_in(journal: bytes) -> list[float]:
    """Time that each line took, by its record."""
    ends = ends_of(journal)
    records = [json.loads(journal[begin + HEAD : end]) for begin, end in pairwise(ends)]
    return [record["stats"]["seconds"] for record in records]


def ends_of(journal: bytes) -> list[int]:
    """Where each record ends, the header's first."""
    ends = [0]
    while ends[-1] < len(journal):
        ends.append(ends[-1] + HEAD + struct.unpack_from("<I", journal, ends[-1])[0])
    return ends[1:]


@pytest.mark.parametrize("form", FORMATS)
def test_cut_at_every_byte_of_the_last_records(
    form: str, model: str, source: Path, tmp_path: Path, loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # which takes longer than all else
    plain, out, kept = tmp_path / "plain", tmp_path / "out", tmp_path / "out.journal"
    args, traces = [model, source, *FORMATS[form]], form == "jsonl"
    run(*args, *(["--trace", tmp_path / "plain.trace"] if traces else []), "--output", plain)
    wanted = plain.read_bytes()
    assert wanted.count(b"\n") >= 12
    args += [*(["--trace", tmp_path / "out.trace"] if traces else []), "--output", out]
    journal = kept_journal(monkeypatch, *args)
    assert out.read_bytes() == wanted
    ends = ends_of(journal)
    assert len(ends) == 13
    admitted: list[object] = []
    admit = LineRun.admit

    def counting(run: LineRun, line: Any) -> None:
        admitted.append(line)
        admit(run, line)

    monkeypatch.setattr(LineRun, "admit", counting)
    step = 1 if form == "text" else 61
    for cut in (*range(0, ends[-4], 211), *range(ends[-4], len(journal) + 1, step), len(journal)):
        kept.write_bytes(journal[:cut])
        out.unlink(missing_ok=True)
        admitted.clear()
        run(*args, "--resume")
        assert out.read_bytes() == wanted, cut
        if traces:
            assert traced(tmp_path / "out.trace") == traced(tmp_path / "plain.trace")
        assert len(admitted) == sum(end > cut for end in ends[1:])
        assert not kept.exists()


class Faults:
    """Lets the n-th call of one operation on files fail; half of what a write was given is written then.

    Attributes:
        count: Calls so far.
    """

    def __init__(self, patch: pytest.MonkeyPatch, operation: str, n: int, number: int) -> None:
        self.count, self.n, self.number = 0, n, number
        faults, opened = self, io.open

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                if faults.fails():
                    super().write(memoryview(data)[: len(data) // 2])
                    raise OSError(number, os.strerror(number))
                return super().write(data)

        def open_file(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            if mode not in ("wb", "a+b"):
                return opened(file, mode, buffering, *rest, **options)
            raw = Raw(file, mode.replace("b", ""))
            return raw if buffering == 0 else io.BufferedWriter(raw)

        def failing(call: Callable[..., object]) -> Callable[..., object]:
            def called(*args: object) -> object:
                if self.fails():
                    raise OSError(number, os.strerror(number))
                return call(*args)

            return called

        if operation == "write":
            patch.setattr(io, "open", open_file)
        else:
            patch.setattr(os, operation, failing(getattr(os, operation)))

    def fails(self) -> bool:
        self.count += 1
        return self.count == self.n


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize(("operation", "least"), [("write", 14), ("fsync", 15), ("replace", 1)])
def test_any_call_may_fail(
    operation: str,
    least: int,
    number: int,
    model: str,
    source: Path,
    tmp_path: Path,
    loaded: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_journal, "_SYNC", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    out = folder / "out"
    run(model, source, "--output", tmp_path / "plain")
    wanted = (tmp_path / "plain").read_bytes()
    for n in range(1, 201):
        out.write_bytes(b"older")
        with monkeypatch.context() as patch:
            faults = Faults(patch, operation, n, number)
            code = main([model, str(source), "--output", str(out), "--resume", "--quiet"])
        err = capsys.readouterr().err
        left = {path.name for path in folder.iterdir()}
        if faults.count < n:
            assert code == 3
            assert n > least
            break
        assert code == 6, n
        assert "error[E501 Output]" in err
        assert os.strerror(number) in err
        assert left == {"out", "out.journal"}
        assert out.read_bytes() in (b"older", wanted)  # the second where the folder's fsync fails
        run(model, source, "--output", out, "--resume")
        capsys.readouterr()
        assert out.read_bytes() == wanted
        assert [*folder.iterdir()] == [out]
    else:
        raise AssertionError("nothing was counted")


@pytest.mark.parametrize(
    "kills", [5, pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.slow)]
)
def test_killed_at_random_moments(kills: int, model: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out"
    source.write_bytes(lines_of(1500))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    args = [*COMMAND, model, str(source), "--batch-size", "2", "--threads", "1", "--quiet"]
    start = time.monotonic()
    done = subprocess.run(args, env=environment, capture_output=True, check=False)
    seconds = time.monotonic() - start
    assert done.returncode == 3
    wanted = hashlib.sha256(done.stdout).hexdigest()
    args += ["--output", str(out), "--resume"]
    draw, killed, held = random.Random(kills), 0, set()
    while killed < kills:
        process = subprocess.Popen(args, env=environment, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.2, 1.0) * seconds)
        process.send_signal(signal.SIGKILL)
        if process.wait(timeout=300) == -signal.SIGKILL:
            killed += 1
            if (tmp_path / "out.journal").exists():
                held.add((tmp_path / "out.journal").stat().st_size)
        if out.exists():  # this run was faster, or was killed between its last two steps
            assert hashlib.sha256(out.read_bytes()).hexdigest() == wanted
            out.unlink()
    assert len(held) > 1  # some were killed while they wrote
    assert subprocess.run(args, env=environment, capture_output=True, check=False).returncode == 3
    assert hashlib.sha256(out.read_bytes()).hexdigest() == wanted
    assert not (tmp_path / "out.journal").exists()


def change_input(args: list[Any], tmp_path: Path) -> None:
    args[1].write_bytes(args[1].read_bytes().upper())


def other_model(args: list[Any], tmp_path: Path) -> None:
    args[0] = tiny.random_model(tmp_path / "other", words=[*WORDS, "."])


def other_drafts(args: list[Any], tmp_path: Path) -> None:
    (tmp_path / "drafts").write_text("it .\n" * 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_input, r"in.txt '\w{12}', now it is '\w{12}'\. Fix: give the inputs"),
        (other_drafts, r"drafts '\w{12}', now it is '\w{12}'\. Fix: give the inputs"),
        (other_model, r"model '\w{12}', now it is '\w{12}'\. Fix: give the settings"),
        (["--max-len", "9"], r"max_len '\d+', now it is '9'"),
        (["--output-format", "jsonl"], "output_format 'text', now it is 'jsonl'"),
        (["--truncate"], "truncate False, now it is True"),
        (["--dtype", "bf16"], "dtype 'fp32', now it is 'bf16'"),
        (["--trace", os.devnull], "trace False, now it is True"),
        ("version", "version 2, now it is 3. Fix: finish with the version of nartk that began it"),
    ],
)
def test_what_changes_outputs_is_refused(
    change: Any,
    message: str,
    model: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "drafts").write_text("she goes .\n" * 12)
    out, path = tmp_path / "out", tmp_path / "out.journal"
    args = [model, source, "--strategy", "verify", "--drafts", tmp_path / "drafts", "--output", out]
    journal = kept_journal(monkeypatch, *args)[:-3]
    path.write_bytes(journal)
    out.unlink()
    if change == "version":
        monkeypatch.setattr(_journal, "VERSION", 3)
    elif isinstance(change, list):
        args += change
    else:
        change(args, tmp_path)
    assert main([*map(str, args), "--resume"]) == 4
    err = capsys.readouterr().err
    assert "error[E303 ResumeMismatch]" in err
    assert re.search(message, err), err
    assert path.read_bytes() == journal
    assert not out.exists()


def test_what_changes_no_output_is_not_refused(
    model: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, stats = tmp_path / "out", tmp_path / "stats"
    args = [model, source, "--output", out]
    journal = kept_journal(monkeypatch, *args)
    wanted = out.read_bytes()
    (tmp_path / "out.journal").write_bytes(journal[: ends_of(journal)[5]])
    capsys.readouterr()
    args += ["--batch-size", "1", "--threads", "1", "--replicas", "2", "--stats", stats, "--resume"]
    assert main([*map(str, args)]) == 3
    assert out.read_bytes() == wanted
    err = capsys.readouterr().err
    assert f"goes on after 5 lines, read from {tmp_path / 'out.journal'}" in err
    assert "in.txt:3: byte 5 of the line" in err  # its error again, which the first run printed
    report = json.loads(stats.read_text())
    assert (report["lines"], report["failed"], report["from_journal"]) == (12, 1, 5)


@pytest.mark.parametrize("flags", [["--strategy", "greedy"], ["--strategy", "iad", "--no-adaptive"]])
def test_statistics_are_of_all_lines(
    flags: list[str],
    model: str,
    source: Path,
    tmp_path: Path,
    loaded: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every number of lines that a first run has left, also where a second one left some more."""
    out, stats, path = tmp_path / "out", tmp_path / "stats", tmp_path / "out.journal"
    args = [model, source, *flags, "--batch-size", "1", "--output", out, "--stats", stats]
    run(*args)
    wanted = counted(stats)
    assert (wanted["lines"], wanted["failed"], wanted["sentences"]) == (12, 1, 10)  # one more is blank
    assert wanted["tokens"] > 0
    journal = kept_journal(monkeypatch, *args)
    assert counted(stats) == wanted
    ends = ends_of(journal)
    for count, end in enumerate(ends):
        path.write_bytes(journal[:end])
        again = kept_journal(monkeypatch, *args)
        path.write_bytes(again[: ends_of(again)[(count + 12) // 2]])
        run(*args, "--resume")
        assert counted(stats) == wanted
        report = json.loads(stats.read_text())
        assert report["from_journal"] == (count + 12) // 2
        assert report["seconds"] >= sum(seconds_in(journal)[:count])
        assert report["latency_ms"]["p99"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["in.txt", "--resume"], "--resume without a file as --output. Fix: give --output FILE, or"),
        (["in.txt", "-o", "-", "--resume"], "--resume without a file as --output"),
        (["in.txt", "-o", os.devnull, "--resume"], "--resume without a file as --output"),
        (["-o", "out", "--resume"], "--resume of stdin: it is read only once. Fix: store it as a file first"),
        (["in.txt", "-", "-o", "out", "--resume"], "--resume of stdin"),
        (["pipe", "-o", "out", "--resume"], "--resume of 'pipe', which is no regular file"),
        (["-", "--output-dir", "out", "--resume"], "--resume of stdin"),
        (["in.txt", "--speech", "s", "-o", "out", "--resume"], "--resume with --speech"),
        (["in.txt", "-o", "out.srt", "--resume"], "--resume with --output out.srt: it holds one recording"),
        (["in.txt", "-o", "out", "--trace", "out", "--resume"], "two outputs go to 'out'"),
        (["in.txt", "-o", "out", "--trace", "out.journal", "--resume"], "two outputs go to 'out.journal'"),
    ],
)
def test_what_cannot_be_resumed_is_named(
    args: list[str],
    message: str,
    model: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert main([model, *args]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "pipe"}


def test_a_second_run_is_refused_while_the_first_goes_on(
    model: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, path = tmp_path / "out", tmp_path / "out.journal"
    args = [model, source, "--output", out]
    journal = kept_journal(monkeypatch, *args)
    out.unlink()
    path.write_bytes(journal[: ends_of(journal)[3]])
    header = journal[HEAD : ends_of(journal)[0]]
    with Journal.open(path, header):
        second = subprocess.run([*COMMAND, *map(str, args), "--resume"], capture_output=True, check=False)
        assert second.returncode == 6
        assert b"another run writes to it. Fix: let that one finish" in second.stderr
        assert path.read_bytes() == journal[: ends_of(journal)[3]]
    run(*args, "--resume")
    assert out.read_bytes().count(b"\n") == 12


def test_a_journal_that_was_removed_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ends between the second's opening of the file and its lock."""
    path, lock = tmp_path / "journal", journals._lock
    path.write_bytes(b"")

    def late(*args: Any) -> None:
        if path.exists() and not path.stat().st_size:
            path.unlink()
            path.write_bytes(b"\x06")  # the beginning of a header
        lock(*args)

    monkeypatch.setattr(journals, "_lock", late)
    with Journal.open(path, b"header") as journal:
        journal.append(b"one")
        assert os.path.samestat(path.stat(), os.fstat(journal._file.fileno()))
    with Journal.open(path, b"header") as journal:
        assert [*journal.records()] == [b"one"]


@pytest.mark.parametrize("other", [b"somebody's diary\n", b"\0\0\0\0\0\0\0\0diary"])
def test_a_file_that_is_no_journal_stays(
    other: bytes, model: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.journal"
    path.write_bytes(other)
    run(model, source, "--output", tmp_path / "out", "--resume", code=4)
    assert "error[E303 ResumeMismatch]" in capsys.readouterr().err
    assert path.read_bytes() == other
    with pytest.raises(ResumeMismatchError), Journal.open(path, b"header"):
        pass
    path.write_bytes(bytes(40))  # as a loss of power leaves a new file
    with Journal.open(path, b"header") as journal:
        assert not journal.count


def test_nothing_is_decoded_where_the_journal_holds_all(
    model: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed before it wrote its file, or before it removed the journal."""
    out = tmp_path / "out"
    args = [model, source, "--output", out]
    journal = kept_journal(monkeypatch, *args)
    wanted = out.read_bytes()

    def refuse(*args: object) -> None:
        raise AssertionError("decodes again")

    monkeypatch.setattr(LineRun, "admit", refuse)
    for has_output in (True, False):
        (tmp_path / "out.journal").write_bytes(journal)
        if not has_output:
            out.unlink()
        run(*args, "--resume")
        assert out.read_bytes() == wanted


def test_scores_and_empty_files(
    model: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    given.write_text("she goes .\the .\n" * 12)
    run(model, source, "--score", given, "--output", tmp_path / "plain")
    args = [model, source, "--score", given, "--output", out]
    journal = kept_journal(monkeypatch, *args)
    (tmp_path / "out.journal").write_bytes(journal[:-1])
    run(*args, "--resume")
    assert out.read_bytes() == (tmp_path / "plain").read_bytes()
    empty = tmp_path / "empty"
    empty.touch()
    run(model, empty, "--output", out, "--resume", code=0)
    assert out.read_bytes() == b""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, five recordings, and a list of them and of one that is missing."""
    pytest.importorskip("kaldi_native_fbank")
    folder = tmp_path_factory.mktemp("sound")
    save_random_speech(folder / "model", "conformer", 2, words=12, max_source_len=400, strategy="ctc-greedy")
    names = []
    for i in range(5):
        samples = 0.3 * np.random.default_rng(i).normal(size=16000 + 3000 * i).astype(np.float32)
        (folder / f"{i}.wav").write_bytes(wav(samples))
        names.append(f"{folder / str(i)}.wav\n")
    (folder / "list.txt").write_text("".join([*names[:2], f"{folder}/none.wav\n", *names[2:]]))
    return folder


@pytest.mark.parametrize("form", ["text", "jsonl", "ctm"])
@pytest.mark.parametrize("listed", [True, False])
def test_recordings(
    form: str,
    listed: bool,
    recordings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, stats, path = tmp_path / "out", tmp_path / "stats", tmp_path / "out.journal"
    sounds = sorted(recordings.glob("?.wav"))
    files = ["--manifest", recordings / "list.txt"] if listed else sounds
    code = 3 if listed else 0
    args = [recordings / "model", *files, "--no-vad", "--output-format", form, "--stats", stats]
    run(*args, "--output", tmp_path / "plain", code=code)
    wanted, figures = (tmp_path / "plain").read_bytes(), counted(stats)
    assert figures["sound_seconds"] == sum(16000 + 3000 * i for i in range(5)) / 16000
    assert wanted.strip()
    args += ["--output", out]
    journal = kept_journal(monkeypatch, *args, code=code)
    assert out.read_bytes() == wanted
    for end in ends_of(journal):
        path.write_bytes(journal[: end + 5])
        run(*args, "--resume", code=code)
        assert out.read_bytes() == wanted
        assert counted(stats) == figures
    first = sounds[0].read_bytes()
    try:
        sounds[0].write_bytes(wav(np.zeros(16000, np.float32)))
        path.write_bytes(journal[: ends_of(journal)[2]])
        run(*args, "--resume", code=4)
        assert "line 1 was decoded from another input" in capsys.readouterr().err
    finally:
        sounds[0].write_bytes(first)


@pytest.mark.parametrize("form", ["text", "jsonl", "srt"])
def test_a_file_of_each_recording(
    form: str, recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of recordings that the journal holds stay; one that is gone is written again."""
    folder, path = tmp_path / "out", tmp_path / "out.journal"
    args = [recordings / "model", "--manifest", recordings / "list.txt", "--no-vad", "--output-format", form]
    run(*args, "--output-dir", tmp_path / "plain")
    wanted = {each.name: each.read_bytes() for each in (tmp_path / "plain").iterdir()}
    assert len(wanted) == 5
    args += ["--output-dir", folder]
    journal = kept_journal(monkeypatch, *args)
    assert len(ends_of(journal)) == 7
    for count, end in enumerate(ends_of(journal)):
        path.write_bytes(journal[: end + 5])
        times = {each: each.stat().st_ino for each in folder.iterdir()}
        gone = folder / f"{'01'[count % 2]}.{_transcripts.SUFFIXES.get(form, 'jsonl')}"
        gone.unlink()
        run(*args, "--resume")
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == wanted
        # Of six lines the third has no file: those before the cut are not written again.
        kept = sum(each.stat().st_ino == node for each, node in times.items() if each != gone)
        assert kept == len([i for i in (0, 1, 3, 4, 5) if i < count and i != count % 2])
        assert not path.exists()
