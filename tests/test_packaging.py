"""What is built from a checkout: its packages, with the linked folders in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("models", "decoders", "data")


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds packages in `cwd` first."""
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", LINKED)
def test_the_package_holds_a_link_to_each_folder(name: str) -> None:
    assert (ROOT / "nartk" / name).readlink() == Path("..", name)
    assert (ROOT / "nartk" / name / "__init__.py").samefile(ROOT / name / "__init__.py")


@pytest.mark.parametrize("name", LINKED)
def test_a_linked_package_has_one_name(name: str) -> None:
    wanted = f"ImportError: import this package as nartk.{name}, not as {name!r}"
    assert last_line(python(f"import {name}", ROOT)) == wanted
    found = python(f"import nartk.{name} as package; print(package.__file__)", ROOT).stdout
    assert Path(found.strip()) == ROOT / "nartk" / name / "__init__.py"


def test_every_folder_with_code_is_found_once() -> None:
    code = "from setuptools import find_packages; print(*find_packages(include=['nartk', 'nartk.*']))"
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "nartk").rglob("*.py")}
    for name in LINKED:
        folders |= {"nartk" / path.parent.relative_to(ROOT) for path in (ROOT / name).rglob("*.py")}
    found = python(code, ROOT).stdout.split()
    assert sorted(found) == sorted(".".join(folder.parts) for folder in folders)


def test_ruff_checks_no_file_twice() -> None:
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if ruff is None:
        pytest.skip("ruff is not installed")
    done = subprocess.run(
        [ruff, "check", "--show-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = done.stdout.splitlines()
    assert str(ROOT / "models" / "__init__.py") in paths
    assert len({Path(path).resolve() for path in paths}) == len(paths)


def project(folder: Path) -> Path:
    """A checkout in small: the real build files and empty packages."""
    (folder / "nartk").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("__init__.py", "_fairseq_compat.py", "py.typed"):
        shutil.copy(ROOT / "nartk" / name, folder / "nartk")
    for name in LINKED:
        (folder / name).mkdir()
        shutil.copy(ROOT / name / "__init__.py", folder / name)
        (folder / "nartk" / name).symlink_to(Path("..", name))
    return folder


@pytest.mark.parametrize("name", LINKED)
def test_a_link_that_git_wrote_as_text_is_one_error(name: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "nartk" / name).unlink()
    (folder / "nartk" / name).write_text(f"../{name}", encoding="utf-8")
    wanted = (
        f"nartk/{name} is not a folder: git made no symbolic link to ../{name}. Fix: `git config "
        f"core.symlinks true` (on Windows in Developer Mode), then `git checkout -- nartk/{name}`."
    )
    assert last_line(python("import nartk", folder)) == f"ImportError: {wanted}"
    building = python("import runpy; runpy.run_path('setup.py', run_name='__main__')", folder)
    assert last_line(building) == f"nartk: {wanted}"
