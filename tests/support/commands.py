"""Commands from the checkout, in processes of their own or in this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import nartk

ROOT = Path(nartk.__file__).parents[1]
# The name and the module of each command that is installed.
SCRIPTS = re.findall(
    r'^(nartk(?:-\w+)?) = "([\w.]+):main"$',
    (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def run(command: list[str], folder: Path = ROOT, **environment: str) -> str:
    """Runs a command in a folder and returns what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def own(command: str, *arguments: str) -> str:
    """One of nartk's commands, from the checkout."""
    code = f"import sys; from nartk.cli.{command} import main; sys.exit(main())"
    return run([sys.executable, "-c", code, *arguments])


def main_of(command: str, capfd: Any) -> tuple[int, str, str]:
    """Runs a command line, without ``nartk-``, in this process: exit code, stdout and stderr."""
    name, *args = command.split()
    capfd.readouterr()
    code: int = import_module(f"nartk.cli.{name}").main(args)
    return code, *capfd.readouterr()
