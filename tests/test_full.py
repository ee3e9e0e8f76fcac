"""scripts/full: every recipe's quick run is one of its parts, and a part that fails does not end it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import ROOT
from support.recipe_scripts import RECIPES

SCRIPT = ROOT / "scripts" / "full"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the scripts are not beside the tests")


def parts() -> list[str]:
    done = subprocess.run([SCRIPT, "--dry-run"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_every_quick_run_and_slow_test_is_in_it() -> None:
    quick = {
        path.relative_to(ROOT).as_posix()
        for path in RECIPES.rglob("*.sh")
        if "[--quick]" in path.read_text(encoding="utf-8")
    }
    run = {part.split()[0] for part in parts() if "--quick" in part.split()}
    assert quick - run == {"recipes/speed.sh"}  # whose figures are slow tests
    assert run <= quick
    tests = [re.sub(r" -n \d --dist worksteal", "", part) for part in parts() if "pytest" in part]
    assert tests == ["python -m pytest", "python -m pytest -m slow"]
    tasks = re.search(r"--task simplify\|(\w+)\]", (RECIPES / "summarization" / "run.sh").read_text())
    assert tasks is not None
    assert any(f"--task {tasks[1]} " in part for part in parts())


def test_every_figure_of_speed_has_a_slow_test() -> None:
    figures = re.search(r"^figures=\((.*)\)$", (RECIPES / "speed.sh").read_text(), re.MULTILINE)
    assert figures is not None
    tests = (ROOT / "tests" / "test_recipe_speed.py").read_text(encoding="utf-8").split("@pytest.mark.slow")
    for figure in figures[1].split():
        assert any(f'"{figure}"' in test for test in tests[1:]), figure


def test_it_goes_on_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts" / "full")
    for program in {part.split()[0] for part in parts()}:
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho {program} "$@" >>ran\nexit {3 if "mt" in program else 0}\n')
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    environment.pop("NARTK_UD_EWT", None)
    done = subprocess.run(
        [tmp_path / "scripts" / "full"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    wanted = [part for part in parts() if "spacy" not in part]
    ran = re.sub(rf"{tmp_path}/tmp\.\w+", "WORK", (tmp_path / "ran").read_text()).splitlines()
    assert ran == wanted
    assert not [*tmp_path.glob("tmp.*")]
    assert re.sub(r"\| \d+ \|", "| N |", done.stdout).splitlines() == [
        "exit code | seconds | part",
        *(
            f"not run | - | {part}: NARTK_UD_EWT names no treebank"
            if "spacy" in part
            else f"{3 if 'recipes/mt' in part else 0} | N | {part}"
            for part in parts()
        ),
    ]
