"""Edges of the system and of the input: each is an error in one line, by its name, and has its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.commands import ROOT, SCRIPTS, main_of
from support.tiny import random_model

from nartk.checkpoints.names import CONFIG

WORDS = ["a", "b", "c", "d"]
LONG = "x" * 300  # more than a name of a file may have


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a checkpoint, its dictionary and sentences, and what is damaged of them."""
    folder = tmp_path_factory.mktemp("edges")
    random_model(folder / "model", words=WORDS)
    for key in ("d_model", "max_target_len", "max_source_len"):
        random_model(folder / key, words=WORDS)
        path = folder / key / CONFIG
        config = json.loads(path.read_text())
        config["model"][key] = 0
        path.write_text(json.dumps(config))
    checkpoint = fairseq_host.native_checkpoint(folder / "a.pt")
    state = torch.load(checkpoint, weights_only=False)
    damaged: dict[str, Any] = {"optimizer_history": "x", "extra_state": [3], "val_loss": {"val_loss": "low"}}
    for name, value in damaged.items():
        torch.save({**state, {"val_loss": "extra_state"}.get(name, name): value}, folder / f"{name}.pt")
    number = {**state["model"], "core.output.weight": torch.tensor(1.0)}
    torch.save({**state, "model": number}, folder / "number.pt")
    torch.save({**state, "model": {3: torch.ones(1)}}, folder / "words.pt")
    state["cfg"]["task"] = {"data": LONG}
    torch.save(state, folder / "task.pt")
    (folder / "dict.txt").write_text("".join(f"w{i} 1\n" for i in range(20)))
    (folder / "in.txt").write_text("a b\n")
    (folder / "gec-en").write_text("a file by the name of a shipped model\n")
    (folder / "latin1.md").write_bytes(b"na\xefve")
    for key, change in (("strategy", {"strategy": "none"}), ("reads", {})):
        random_model(folder / key, words=WORDS)
        path = folder / key / CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), "generation": change}))
    (folder / "reads" / "calibration.json").symlink_to("/dev/zero")
    (folder / "id.jsonl").write_text('{"id": 1e400, "source": "a"}\n{"id": [1, -1e400], "source": "b"}\n')
    (folder / "loop").symlink_to(folder / "loop")
    return folder


CONVERT = "convert a.pt --dict dict.txt --output"
DECODE = "decode model in.txt"
# A command, its exit code, and what its line of error has.
EDGES = [
    ("decode d_model in.txt", 5, "error[E402 Checkpoint] d_model: `d_model` is 0, below 1"),
    (
        "decode max_target_len in.txt",
        5,
        "error[E402 Checkpoint] max_target_len: `max_target_len` is 0,",
    ),
    (
        "decode max_source_len in.txt",
        5,
        "error[E402 Checkpoint] max_source_len: `max_source_len` is 0,",
    ),
    (f"{CONVERT} in.txt", 6, "error[E501 Output] in.txt: cannot write: Not a directory"),
    (f"{CONVERT} /dev/null", 6, "error[E501 Output] /dev/null: cannot write: Not a directory"),
    (f"{CONVERT} in.txt/model", 6, "error[E501 Output] in.txt/model: cannot write: "),
    (f"{CONVERT} {LONG}", 6, "cannot write: File name too long"),
    (f"{CONVERT} /proc/model", 6, "error[E501 Output] /proc/model: cannot write: "),
    (f"{CONVERT} loop", 6, "error[E501 Output] loop: cannot write: "),
    (f"{CONVERT} .", 6, "error[E501 Output] .: holds 'a.pt', which would be lost"),
    (f"{DECODE} --output model", 6, "error[E501 Output] model: cannot write: Is a directory"),
    (f"{DECODE} --output in.txt/out", 6, "error[E501 Output] in.txt/out: cannot write: Not a directory"),
    (f"{DECODE} --output {LONG}", 6, "cannot write: File name too long"),
    (f"{DECODE} --output /proc/out", 6, "error[E501 Output] /proc/out: cannot write: "),
    (f"{DECODE} --output loop/out", 6, "error[E501 Output] loop/out: cannot write: "),
    (f"decode {LONG} in.txt", 2, "error[E401 ModelNotFound]"),
    ("decode loop in.txt", 2, "error[E401 ModelNotFound]"),
    (f"decode model {LONG}", 2, "error[E201 InputFile]"),
    ("decode model loop", 2, "error[E201 InputFile] loop: no such file"),
    ("decode model /proc/self/mem", 2, "error[E201 InputFile] /proc/self/mem: cannot read: "),
    ("decode gec-en in.txt", 2, "error[E101 Usage] 'gec-en' is a shipped model, and a file here. Fix: name"),
    ("verify gec-en", 2, "error[E101 Usage] 'gec-en' is a shipped model, and a file here. Fix: name"),
    ("decode a.pt in.txt", 2, "error[E401 ModelNotFound] 'a.pt' is a checkpoint, not a model's folder. Fix"),
    (
        "decode in.txt model",
        2,
        "error[E201 InputFile] model: a folder without a sound file. Fix: give a file, or a folder of",
    ),
    (
        "distill in.txt in.txt --output new",
        2,
        "error[E401 ModelNotFound] 'in.txt' is no shipped model (gec-en-medium, gec-en, asr-digits, ",
    ),
    (
        "convert model --output new --dict dict.txt",
        2,
        "error[E101 Usage] 'model' is a model of nartk already. Fix: give --quantize or --to as well.",
    ),
    (f"convert {LONG} --output new", 2, "error[E201 InputFile]"),
    ("convert /proc/self/mem --output new", 5, "error[E402 Checkpoint] /proc/self/mem: cannot read: "),
    (f"average --last 2 {LONG} --output new", 2, "no such folder"),
    (f"{CONVERT} new --card latin1.md", 2, "error[E201 InputFile] latin1.md: not UTF-8: "),
    ("convert optimizer_history.pt --dict dict.txt --output made1", 0, ""),
    ("convert extra_state.pt --dict dict.txt --output made2", 0, ""),
    ("convert val_loss.pt --dict dict.txt --output made3", 0, ""),
    ("convert number.pt --output new", 5, "error[E402 Checkpoint] number.pt: damaged settings or tensors: "),
    ("convert words.pt --output new", 5, "error[E402 Checkpoint] words.pt: not a checkpoint of fairseq"),
    ("convert task.pt --output new", 5, "error[E402 Checkpoint] task.pt: the source dictionary of its"),
    (
        "convert a.pt --dict /dev/zero --output new",
        5,
        "error[E402 Checkpoint] /dev/zero: larger than 1000",
    ),
    (f"{DECODE} --threads 100000", 2, "error[E101 Usage] --threads is 100000. Fix: give 1 to 1024"),
    (f"{DECODE} --threads 0", 2, "error[E101 Usage] --threads is 0. Fix: give 1 to 1024"),
    (f"{DECODE} --replicas 100000", 2, "error[E101 Usage] --replicas is 100000. Fix: give 1 to 1024"),
    (f"{DECODE} --strategy beam --beam-size 100000", 2, "--beam-size"),
    (f"{DECODE} --strategy beam --length-penalty 400", 2, "give a value between -50 and 50"),
    (f"{DECODE} --strategy beam --length-penalty=-1e300", 2, "give a value between -50 and 50"),
    (f"{DECODE} --strategy beam --length-penalty nan", 2, "of 'beam' is nan. Fix: give a value between"),
    (f"{DECODE} --strategy sample --top-k 3000000000", 2, "is 3000000000. Fix: give a value between 0 and"),
    (f"{DECODE} --strategy sample --temperature inf", 2, "is inf. Fix: give a value between 0.001 and 1000"),
    (f"{DECODE} --strategy sample --repetition-penalty inf", 2, "give a value between 0.001 and 1000"),
    *((f"{DECODE} --device {name}", 2, "choose cpu, cuda or cuda:N") for name in ("mps", "meta", "xla:0")),
    (f"{DECODE} --output out --trace out", 2, "error[E101 Usage] two outputs go to 'out'. Fix: name two"),
    (f"{DECODE} --stats -", 2, "error[E101 Usage] two outputs go to 'stdout'. Fix: name two files"),
    (f"{DECODE} --stats - --output - --trace out", 2, "two outputs go to 'stdout'"),
    (f"{DECODE} --stats ./out --trace out", 2, "error[E101 Usage] two outputs go to 'out'. Fix: name two"),
    (
        "decode strategy in.txt",
        5,
        "error[E402 Checkpoint] strategy/config.json: 'generation': no strategy 'none'",
    ),
    (
        "decode reads in.txt --strategy bild --drafter model",
        5,
        "calibration.json: larger than 10000000 bytes",
    ),
    ("bench model in.txt --threads 1,5000", 2, "--threads is '1,5000'. Fix: give numbers from 1 to 1024"),
    (
        "decode model id.jsonl --output-format jsonl",
        3,
        "error[E204 InputFormat] id.jsonl:1: 'id' holds a",
    ),
]


@pytest.mark.parametrize(("command", "code", "message"), EDGES, ids=[each[0][:60] for each in EDGES])
def test_an_edge_is_an_error_in_a_line(
    command: str, code: int, message: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(place)
    found, out, errors = main_of(command, capfd)
    assert found == code
    assert message in errors
    if code not in (0, 3):
        assert errors.startswith("nartk: error[")
        assert errors.count("\n") == 1
    assert not (place / "new").exists()
    for line in out.splitlines() if "jsonl" in command else ():
        json.loads(line, parse_constant=pytest.fail)


# What a shell does with the standard streams of a command; {} stands for the command.
STREAMS = [
    ("{} decode model in.txt --quiet <&-", 0, ""),
    ("{} decode model <&-", 2, "nartk: error[E201 InputFile] stdin: cannot read: "),
    (
        "{} decode model in.txt >&-",
        6,
        "nartk: error[E501 Output] stdout: cannot write: Bad file descriptor. Fix: leave stdout open.",
    ),
    ("{} decode model in.txt --quiet --output out.txt >&-", 0, ""),
    ("{} decode model in.txt 2>&-", 0, None),
    ("{} decode none in.txt 2>&-", 2, None),
    ("{} decode model in.txt 2>/dev/full", 0, None),
    ("{} decode none in.txt 2>/dev/full", 2, None),
    ("{} decode model in.txt <&- >&- 2>&-", 6, None),
    ("{} decode --version >/dev/full", 6, "nartk: error[E501 Output] stdout: cannot write: No space left"),
    ("{} decode --help >/dev/full", 6, "nartk: error[E501 Output] stdout: cannot write: No space left"),
    (
        "{} verify model in.txt --quiet >/dev/full",
        6,
        "nartk: error[E501 Output] stdout: cannot write: No",
    ),
    (
        "{} verify model in.txt --quiet >&-",
        6,
        "nartk: error[E501 Output] stdout: cannot write: Bad file descriptor. Fix: leave stdout open.",
    ),
    ("{} score gleu in.txt --ref in.txt --source in.txt >/dev/full", 6, "nartk: error[E501 Output] stdout: "),
]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(("line", "code", "message"), STREAMS, ids=[each[0] for each in STREAMS])
def test_streams_that_are_closed_or_full(line: str, code: int, message: str | None, place: Path) -> None:
    script = "import sys; from importlib import import_module\n"
    script += "name = sys.argv.pop(1); sys.exit(import_module(f'nartk.cli.{name}').main())"
    run = f"{sys.executable} -c '{script.replace(chr(39), chr(34))}'"
    done = subprocess.run(
        ["bash", "-c", line.format(run)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    if message is not None:
        assert done.stderr.startswith(message)
        assert done.stderr.count("\n") == bool(message)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "output", "error"),
    [
        (["--help"], 0, "usage: nartk-train ", ""),
        (["data"], 2, "", "nartk: error[E101 Usage] --arch is missing. Fix: name the model's architecture;"),
    ],
)
def test_training_without_an_architecture(args: list[str], code: int, output: str, error: str) -> None:
    fairseq_host.require_fairseq()
    script = "import sys; from nartk.cli.train import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(output)
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("folder", ["in.txt", "in.txt/new", "/dev/null", "/proc/new", LONG, "loop"])
def test_training_into_what_is_no_folder(
    folder: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    fairseq_host.require_fairseq()
    monkeypatch.chdir(place)
    flags = ["none", "--arch", "nartk_transformer_tiny", "--max-tokens", "9", "--cpu", "--save-dir", folder]
    assert import_module("nartk.cli.train").main(flags) == 6
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"nartk: error[E501 Output] {folder}: cannot write: ")


@pytest.mark.parametrize("name", [name for name, _ in SCRIPTS])
def test_what_nobody_foresaw_is_no_failed_comparison(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of nothing")

    main: Callable[[list[str]], int] = import_module(dict(SCRIPTS)[name]).main
    monkeypatch.setattr("nartk.cli._common._signals_unwind", fail)
    assert main(["--help"]) == 70
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == [
        "ZeroDivisionError: of nothing",
        "nartk: error[E901 Internal] ZeroDivisionError: of nothing. Fix: report it with the traceback above: "
        "it is a fault of nartk's.",
    ]


def test_memory_that_runs_out_has_an_exit_code(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("nartk.serving.loading.load_checkpoint", refuse)
    main: Callable[[list[str]], int] = import_module("nartk.cli.decode").main
    assert main([str(place / "model"), str(place / "in.txt")]) == 7
    assert capsys.readouterr().err.startswith("nartk: error[E601 OutOfMemory] memory ran out")
