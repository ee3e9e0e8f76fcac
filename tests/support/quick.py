"""The quick tests: those that tests/quick.txt names, which together execute a function of every module."""

from __future__ import annotations

import ast
import inspect
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "quick.txt"
PACKAGES = ("nartk", "models", "decoders", "data")
# What runs on a GPU or in a process of its own; of tasks/drafter.py no quick test is chosen yet.
ELSEWHERE = {"models/dag_triton.py", "nartk/bench/worker.py", "nartk/cli/train.py", "nartk/tasks/drafter.py"}


def names() -> set[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def called(item: pytest.Item) -> set[str]:
    """What the list may call a test: with its parameters and without."""
    return {item.nodeid, item.nodeid.partition("[")[0]}


def chosen(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that the list names, all parameters of a test that it names without."""
    listed = names()
    return [item for item in items if called(item) & listed]


def check(items: Sequence[pytest.Item]) -> None:
    """Refuses a list that names a test that there is not, so that whoever renames a test hears of it.

    Args:
        items: All tests of some files.

    Raises:
        UsageError: The list names a test of those files that is not among them, or a file that there is not.
    """
    files = {item.nodeid.partition("::")[0] for item in items}
    files |= {file for name in names() if not (ROOT / (file := name.partition("::")[0])).is_file()}
    there = {name for item in items for name in called(item)}
    gone = sorted(name for name in names() - there if name.partition("::")[0] in files)
    if gone:
        raise pytest.UsageError(f"{LIST.name} names what is no test: {', '.join(gone)}")


def complaint(missing: Sequence[str]) -> str:
    return (
        f"the quick tests execute no function of {', '.join(missing)}: "
        f"add a test that does, and takes less than half a second, to tests/{LIST.name}"
    )


class Executed:
    """The files of which a function is executed while it is open: without lines, so that tests stay fast."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def __enter__(self) -> Executed:
        sys.settrace(self._called)
        threading.settrace(self._called)  # of threads that begin meanwhile
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        self.codes.add(frame.f_code)

    def missing(self) -> list[str]:
        """The modules with functions of which none was executed, relative to the repository."""
        ran = {Path(code.co_filename).resolve() for code in self.codes if is_function(code)}
        files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
        found = [
            file.relative_to(ROOT).as_posix()
            for file in files
            if file.resolve() not in ran and has_functions(file.read_text(encoding="utf-8"))
        ]
        return [file for file in found if file not in ELSEWHERE]


def is_function(code: CodeType) -> bool:
    """Whether it is a function's, not what runs when a module is imported."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def has_functions(source: str) -> bool:
    """Whether a module defines a function that does more than say what another class must have."""
    tree = ast.parse(source)
    protocols = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    ]
    ignored = {id(inner) for protocol in protocols for inner in ast.walk(protocol)}
    return any(isinstance(node, ast.FunctionDef) and id(node) not in ignored for node in ast.walk(tree))
