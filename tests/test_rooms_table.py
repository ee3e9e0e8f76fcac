"""The table of rooms and files in CONTRIBUTING.md is that of the tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from support.rooms import RANKS

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?:\*\*(?P<rooms>[\w, ]+)\*\*|`(?P<path>[^`]+\.py)`) \|(?P<holds>.*)\|$", re.M)


def rows() -> list[re.Match[str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return [*ROW.finditer(text[text.index("## Rooms and files") :])]


def is_of(path: str, pattern: str) -> bool:
    """Whether a row's path is that of a file; `*` stands for any name in a folder."""
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def complaints(files: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Files without a row, or with more than one, and rows without a file."""
    found = [f"{path} has {count} rows" for path in files
             if (count := sum(is_of(path, each) for each in patterns)) != 1]  # fmt: skip
    return found + [f"{each} is no file" for each in patterns if not any(is_of(path, each) for path in files)]


def test_each_file_has_a_row_and_each_row_a_file() -> None:
    linked = ("models", "decoders", "data")
    paths = [path.relative_to(ROOT) for name in ("nartk", *linked) for path in (ROOT / name).rglob("*.py")]
    files = [path.as_posix() for path in paths if path.name != "__init__.py" and path.parts[1] not in linked]
    assert complaints([*files, "nartk/__init__.py"], [row["path"] for row in rows() if row["path"]]) == []
    assert all(row["holds"].strip() for row in rows() if row["path"])


def test_a_row_that_is_missing_or_too_much_is_noticed() -> None:
    assert complaints(["a/b.py"], []) == ["a/b.py has 0 rows"]
    assert complaints(["a/b/c.py"], ["a/*.py"]) == ["a/b/c.py has 0 rows", "a/*.py is no file"]
    assert complaints(["a/b.py"], ["a/*.py", "a/b.py"]) == ["a/b.py has 2 rows"]


def test_the_rooms_stand_in_the_order_of_their_ranks() -> None:
    found = [{*row["rooms"].split(", ")} for row in rows() if row["rooms"]]
    assert found == [set(rank) for rank in RANKS]
