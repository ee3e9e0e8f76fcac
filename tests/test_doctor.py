"""`nartk-doctor`: what it says is here is here, and what it says is missing is missing."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.commands import ROOT
from support.engine import ISAS

from nartk import engine
from nartk.checkpoints import names
from nartk.cli import _extras, doctor
from nartk.cli._extras import Package, packages, requirements
from nartk.cli.doctor import main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


@pytest.fixture
def examined(capsys: pytest.CaptureFixture[str]) -> Callable[[int], tuple[str, dict[str, Any]]]:
    """The report and its JSON, of runs that end with a code."""

    def call(code: int) -> tuple[str, dict[str, Any]]:
        assert main([]) == code
        text = capsys.readouterr().out
        assert main(["--json"]) == code
        return text, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads no models, which take a second."""
    monkeypatch.setattr(doctor, "installed", list)


def hide(patch: pytest.MonkeyPatch, *hidden: str, version: str | None = None) -> None:
    """Takes distributions away, or gives them a version."""

    def find(name: str) -> Any:
        found = metadata.distribution(name)
        if name not in hidden:
            return found
        if version is None:
            raise metadata.PackageNotFoundError(name)

        class Older:
            files, read_text = found.files, found.read_text

        Older.version = version  # type: ignore[attr-defined]
        return Older()

    patch.setattr(_extras, "distribution", find)


def expanded(extra: str) -> dict[str, Requirement]:
    """Requirements of an extra by name, as `packaging` reads them."""
    found: dict[str, Requirement] = {}
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        if requirement.name == "nartk":
            for inner in requirement.extras:
                found |= expanded(inner)
        else:
            found[requirement.name] = requirement
    return found


def test_requirements_are_read_as_packaging_reads_them() -> None:
    declared, draw = requirements(), random.Random(1)
    assert {*declared} == {"", *EXTRAS}
    judged = set()
    for extra in EXTRAS:
        wanted = expanded(extra)
        found = dict(_extras._required(extra, declared))
        assert {*found} == {*wanted}
        for name, bounds in found.items():
            for _ in range(60):
                version = ".".join(str(draw.randrange(9)) for _ in range(draw.randrange(1, 4)))
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(_extras, "distribution", lambda name, v=version: FakeDistribution(v))
                    is_allowed = not _extras._installed(name, bounds).lack
                assert is_allowed == wanted[name].specifier.contains(version, prereleases=True), (
                    name,
                    version,
                )
                judged.add(is_allowed)
    assert judged == {True, False}


class FakeDistribution:
    files = None

    def __init__(self, version: str) -> None:
        self.version = version

    def read_text(self, name: str) -> str:
        return "json"


def test_an_installation_has_the_requirements_of_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no checkout: in the form of METADATA, which names extras by markers."""
    lines = [*PROJECT["dependencies"]]
    for extra, own in EXTRAS.items():
        lines += [f'{line}; extra == "{extra}"' for line in own]
    here = requirements()
    wanted = {extra: packages(extra, here) for extra in EXTRAS}
    (tmp_path / "nartk").mkdir()
    monkeypatch.setattr("nartk.__file__", str(tmp_path / "nartk" / "__init__.py"))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')  # which lies in site-packages
    monkeypatch.setattr(_extras, "requires", lambda name: lines)
    there = requirements()
    assert {*there} == {*here}
    assert {extra: packages(extra, there) for extra in EXTRAS} == wanted

    def refuse(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_extras, "requires", refuse)
    assert requirements() == {}


def test_what_is_here(examined: Callable[[int], tuple[str, dict[str, Any]]]) -> None:
    text, found = examined(0)
    assert found["problems"] == []
    assert text.endswith("no problem\n")
    assert {*found["extras"]} == {*EXTRAS} - {"test"}
    for described in (found["packages"], *(extra["packages"] for extra in found["extras"].values())):
        for name, each in described.items():
            if each["lack"] is None:
                assert each["version"] == metadata.version(name)
                assert f"{name} {each['version']}" in text
    assert {*found["packages"]} == {"numpy", "sentencepiece"}
    assert found["models"] == dict.fromkeys(names.SHIPPED)
    if engine.available():
        assert found["engine"]["instruction_sets"] == ISAS
        assert found["engine"]["instruction_set"] in ISAS
        assert found["engine"]["types"] == ["fp32", "bf16", "int8"]
        assert found["engine"]["threads"] == engine.cores()
        assert f"types fp32, bf16, int8; {engine.cores()} threads" in text


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "test"])
def test_an_extra_that_is_missing_is_named_with_its_command(
    extra: str,
    no_models: None,
    examined: Callable[[int], tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = [*expanded(extra)][-1]
    hide(monkeypatch, hidden)
    text, found = examined(0)
    assert f"{hidden} (not installed)" in text
    lacking = {name for name in found["extras"] if hidden in expanded(name)}
    for name, each in found["extras"].items():
        is_named = f"pip install 'nartk[{name}]'" in (each["install"] or "")
        missing = {key for key, described in each["packages"].items() if described["lack"] is not None}
        assert is_named == bool(missing - {"fairseq"})
        assert (hidden in missing) == (name in lacking)
        if is_named:
            assert f"-> pip install 'nartk[{name}]'" in text
    assert found["extras"][extra]["packages"][hidden] == {"version": None, "lack": "not installed"}


def test_versions_and_files_are_looked_at(
    no_models: None, examined: Callable[[int], tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "shtab", version="1.5.9")
    text, found = examined(0)
    assert "completion  shtab 1.5.9 (not >=1.9)" in text
    assert found["extras"]["completion"]["install"] == "pip install 'nartk[completion]'"
    hide(monkeypatch, "fairseq")
    _, found = examined(0)
    assert found["extras"]["train"]["install"].endswith("pip install --no-deps fairseq==0.12.2")
    hide(monkeypatch, "numpy", version="1.23.5")
    text, found = examined(2)
    assert "problem: numpy: not >=1.24; pip install --upgrade numpy\n" in text
    assert found["problems"] == ["numpy: not >=1.24; pip install --upgrade numpy"]


def test_packages_whose_files_are_hidden() -> None:
    """In a process that can import neither ERRANT nor spaCy, whose metadata are still there."""
    pytest.importorskip("errant")
    path = os.pathsep.join([str(ROOT / "tests" / "support" / "without"), str(ROOT)])
    code = "import sys; from nartk.cli.doctor import main; sys.exit(main(['--json']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)["extras"]["score"]
    assert score["packages"]["errant"]["lack"] == "its files cannot be imported"
    assert score["install"] == "pip install 'nartk[score]'"


def test_no_engine_is_a_problem_unless_it_is_left_out(
    no_models: None, examined: Callable[[int], tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(engine.LEFT_OUT, "1")
        if not engine.LACK:
            text, found = examined(0)
            assert "engine: none, NARTK_NO_ENGINE=1 leaves it out\n" in text
            assert found["engine"]["types"] == []
    monkeypatch.setattr(engine, "LACK", "it was not built; install a compiler")
    text, found = examined(2)
    assert "problem: there is no engine: it was not built; install a compiler\n" in text
    assert not found["engine"]["available"]


def test_a_damaged_model_is_a_problem(
    tmp_path: Path, examined: Callable[[int], tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = names.model_folder("gec-en-medium")
    shutil.copytree(folder, tmp_path / "gec-en-medium")
    weights = tmp_path / "gec-en-medium" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-9] ^= 1  # of a mapped file, which loading alone does not look at
    weights.write_bytes(data)
    monkeypatch.setattr(names, "_SHIPPED_AT", tmp_path)
    text, found = examined(2)
    assert "error[E402 Checkpoint]" in found["models"]["gec-en-medium"]
    assert "is not in this installation" in found["models"]["asr-digits"]
    assert [*found["models"]] == ["gec-en-medium", "asr-digits"]  # a wheel has the others not
    assert len(found["problems"]) == 2
    assert "problem: the model gec-en-medium cannot be read: error[E402 Checkpoint]" in text


def test_figures_go_to_a_file(no_models: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.startswith("nartk ")
    assert json.loads((tmp_path / "found.json").read_text())["problems"] == []
    assert main(["in.txt"]) == 2


def test_a_package_is_what_it_says() -> None:
    assert packages("x", {"x": ["no-such-package>=1"]}) == [Package("no-such-package", "", "not installed")]
