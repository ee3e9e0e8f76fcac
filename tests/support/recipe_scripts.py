"""How the tests of the recipes run their scripts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


def script(recipe: str, name: str, *args: str) -> str:
    """What a recipe's Python script prints."""
    command = [sys.executable, str(RECIPES / recipe / name), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def imported(recipe: str, name: str) -> Any:
    """A recipe's Python script as a module; its tests are left out where the recipes are not beside them."""
    if not RECIPES.is_dir():
        pytest.skip("the recipes are not beside the tests", allow_module_level=True)
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), RECIPES / recipe / name)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPES / recipe)  # where the modules are that it imports
        spec.loader.exec_module(module)
    return module


def assert_refused(recipe: str, args: list[str], said: str, folder: Path, name: str = "run.sh") -> None:
    """A recipe's script refuses its options before any work, and says why in its last line."""
    work = folder / "work"
    command = ["bash", str(RECIPES / recipe / name), "--work", str(work), *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not work.exists()
