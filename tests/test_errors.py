"""Every error and every exit code has a row in docs/errors.md, and happens here."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import ROOT
from support.tiny import random_model
from support.wrong_strategies import own_strategies as own_strategies
from support.wrong_strategies import swapping, wrong_strategy

from nartk import errors, load
from nartk.checkpoints.names import CONFIG
from nartk.errors import NartkError
from nartk.protocols.passes import FeatureSource, texts_of

EOS = 2
WORDS = ["a", "b", "c", "d"]
TABLES = [
    [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in part.splitlines()
        if re.match(r"\| E?\d", row)
    ]
    for part in (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").split("\n## ")[1:]
]
CODES = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def error_classes() -> list[type[NartkError]]:
    """All of them; a test finds that they are defined in one file."""
    found = (each for each in vars(errors).values() if isinstance(each, type))
    return [each for each in found if issubclass(each, NartkError) and each is not NartkError]


def test_errors_are_defined_in_one_place() -> None:
    ours = "|".join(each.__name__ for each in (NartkError, *error_classes()))
    found = {
        path.name
        for path in (ROOT / "nartk").rglob("*.py")
        if re.search(rf"^ *class \w+\(({ours})\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {"errors.py"}


def test_every_exit_code_has_a_row() -> None:
    assert [int(row[0]) for row in TABLES[0]] == sorted(CODES.values())
    for code, cause, cure in TABLES[0]:
        assert cause, code
        assert cure or code == "0", code


def test_every_error_has_a_row() -> None:
    classes = sorted(error_classes(), key=lambda each: each.code)
    wanted = [[each.code, each.__name__.removesuffix("Error"), str(each.exit_code)] for each in classes]
    assert [row[:3] for row in TABLES[1]] == wanted
    assert all(len(row) == 5 and all(row) for row in TABLES[1])
    assert {each.exit_code for each in classes} <= {*CODES.values()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and files, sound ones and others."""
    folder = tmp_path_factory.mktemp("errors")
    random_model(folder / "model", words=WORDS, seed=3)
    random_model(folder / "larger", words=WORDS, layers=2)
    random_model(folder / "foreign", words=[*WORDS[:3], "e"])
    for name, key, value in (("damaged", "format", 99), ("unknown", "architecture", "perceptron")):
        random_model(folder / name, words=WORDS)
        path = folder / name / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    (folder / "in.txt").write_text("a b\nc d a\n")
    (folder / "other.txt").write_text("a b\n")
    (folder / "latin1.txt").write_bytes(b"na\xefve\n")
    (folder / "long.txt").write_text("a " * 100 + "\n")
    (folder / "bad.jsonl").write_text("{}\n")
    return folder


def failing(error: BaseException) -> Callable[[pytest.MonkeyPatch], None]:
    """Has the model's loading raise an error."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return lambda patch: patch.setattr(LOADED, fail)


LOADED = "nartk.serving.loading.load_checkpoint"
# A command of `place`, its exit code, the error it names, and what else is the matter.
CASES: list[tuple[str, int, str, Any]] = [
    ("decode model in.txt", 0, "", None),
    (
        "verify model in.txt --strategy swapper",
        1,
        "",
        lambda _: wrong_strategy("swapper", swapping(EOS, 4)),
    ),
    ("decode model in.txt --threads 0", 2, "E101 Usage", None),
    ("decode model in.txt --strategy none", 2, "E102 UnknownStrategy", None),
    ("decode model in.txt --strategy ctc-greedy", 2, "E103 StrategyMismatch", None),
    (
        "decode --print-completion bash",
        2,
        "E104 MissingDependency",
        lambda patch: patch.setitem(sys.modules, "shtab", None),
    ),
    ("decode model none.txt", 2, "E201 InputFile", None),
    ("decode model latin1.txt", 3, "E202 InputEncoding", None),
    ("decode model long.txt", 3, "E203 InputTooLong", None),
    ("decode model bad.jsonl", 3, "E204 InputFormat", None),
    ("decode model in.txt --strategy verify --drafts other.txt", 4, "E301 LengthMismatch", None),
    ("decode model in.txt --strategy speculative --drafter foreign", 4, "E302 VocabMismatch", None),
    ("distill model other.txt --target-lang x --output made", 4, "E303 ResumeMismatch", "in.txt"),
    ("decode none in.txt", 2, "E401 ModelNotFound", None),
    ("decode damaged in.txt", 5, "E402 Checkpoint", None),
    ("decode unknown in.txt", 5, "E403 UnsupportedCheckpoint", None),
    ("decode model in.txt --output in.txt/out", 6, "E501 Output", None),
    ("decode model in.txt", 7, "E601 OutOfMemory", failing(MemoryError())),
    ("decode model in.txt --ray 127.0.0.1:1", 8, "E701 Cluster", None),
    ("decode model in.txt", 70, "E901 Internal", failing(KeyError(1))),
    ("decode model in.txt", 130, "", failing(KeyboardInterrupt())),
    (
        "decode model in.txt",
        143,
        "",
        lambda patch: patch.setattr(LOADED, lambda *_, **__: signal.raise_signal(signal.SIGTERM)),
    ),
]
IN_PYTHON = ("E105 Pass", "E305 SourceMismatch")


@pytest.mark.parametrize(("command", "code", "error", "before"), CASES, ids=[f"{c[1]} {c[2]}" for c in CASES])
def test_each_happens(
    command: str,
    code: int,
    error: str,
    before: Any,
    place: Path,
    own_strategies: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    name, *args = command.split()
    main = import_module(f"nartk.cli.{name}").main
    if callable(before):
        before(monkeypatch)
    elif before is not None:
        main([before if each == "other.txt" else each for each in args])
    capsys.readouterr()
    assert main(args) == code
    assert (f"nartk: error[{error}]" in capsys.readouterr().err) == bool(error)


def test_all_happen() -> None:
    happening = {case[2] for case in CASES} | {*IN_PYTHON}
    assert {f"{row[0]} {row[1]}" for row in TABLES[1]} == happening - {""}
    assert {case[1] for case in CASES} == {*CODES.values()}


def test_those_of_python_happen(place: Path) -> None:
    passes = load(place / "model").passes
    with pytest.raises(errors.PassError):
        passes.close(np.array([99], np.int32))
    with pytest.raises(errors.SourceMismatchError):
        texts_of([FeatureSource(np.zeros((3, 80), np.float32), shift=0.01)])
