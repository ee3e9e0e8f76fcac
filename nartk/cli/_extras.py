"""Packages that nartk and its extras require: those that are installed, and those that are not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from pathlib import Path

import nartk

OWN = "nartk"
DEVELOPERS = ("test",)  # extras that serve no command
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([^]]*)\])?([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_CLAUSE = re.compile(r"(>=|<)\s*([\d.]+)")


@dataclass(frozen=True)
class Package:
    """A package that is required.

    Attributes:
        name: Name of the distribution.
        version: Version that is installed; empty where none is.
        lack: Reason why it does not serve; empty where it does.
    """

    name: str
    version: str
    lack: str


def requirements() -> dict[str, list[str]]:
    """Requirements of each extra, and under an empty name those of nartk itself.

    A checkout's own pyproject.toml goes before what was installed. Without either there are none.
    """
    file = Path(nartk.__file__).parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == OWN:
            return {"": project["dependencies"], **project["optional-dependencies"]}
    try:
        lines = requires(OWN) or []
    except PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {"": []}
    for line in lines:
        extra = _EXTRA.search(line)
        found.setdefault("" if extra is None else extra[1], []).append(line)
    return found


def packages(extra: str, declared: Mapping[str, Sequence[str]]) -> list[Package]:
    """Packages that an extra requires, those of the extras that it includes among them, each once."""
    found: dict[str, Package] = {}
    for name, bounds in _required(extra, declared):
        found.setdefault(name, _installed(name, bounds))
    return [*found.values()]


def _required(extra: str, declared: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Names of packages, each with the bounds of its version."""
    for line in declared[extra]:
        match = _REQUIREMENT.match(line)
        assert match is not None
        name, inner, bounds = match[1], match[2], match[3]
        if name != OWN:
            yield name, bounds
            continue
        for each in inner.split(","):
            yield from _required(each.strip(), declared)


def _installed(name: str, bounds: str) -> Package:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Package(name, "", "not installed")
    if not any(map(_is_found, _modules(found))):
        return Package(name, found.version, "its files cannot be imported")
    allowed = all(
        (_numbers(found.version) >= _numbers(bound)) == (relation == ">=")
        for relation, bound in _CLAUSE.findall(bounds)
    )
    return Package(name, found.version, "" if allowed else f"not {bounds.strip()}")


def _modules(found: Distribution) -> list[str]:
    """Names under which a distribution's files are imported."""
    names = (found.read_text("top_level.txt") or "").split()
    if names:
        return names
    parts = [file.parts for file in found.files or ()]
    inner = {each[0] for each in parts if len(each) == 2 and each[1] == "__init__.py"}
    alone = {
        each[0].partition(".")[0] for each in parts if len(each) == 1 and each[0].endswith((".py", ".so"))
    }
    return sorted(inner | alone)


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without zeros at their end: two of one version are equal."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    found = [] if match is None else [*map(int, match[0].split("."))]
    while found and not found[-1]:
        found.pop()
    return (*found,)
