"""`nartk-doctor`: tells what is installed here, what is missing, and the command that brings it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

from nartk import engine
from nartk.checkpoints.names import installed
from nartk.cli._common import Parser, command
from nartk.cli._extras import DEVELOPERS, Package, packages, requirements
from nartk.cli._output import add_json, json_writer
from nartk.errors import EXIT_OK, EXIT_USAGE, FAIRSEQ, NartkError
from nartk.files import STDIN, JsonObject
from nartk.version import __version__

DESCRIPTION = """Tells what this installation has: the engine with its types and instruction sets, the
packages of each extra with their versions, and whether the models that ship can be read, with their hashes
compared. Of what is missing it gives the command that brings it. Exit code 2 if the engine, a package that
nartk always needs, or a model that ships is missing or broken, else 0: an extra may be missing."""
EXAMPLES = """  nartk-doctor
  nartk-doctor --json          the same for programs
  nartk-doctor --json doctor.json"""
AFTER = {"train": ("fairseq", FAIRSEQ)}  # packages that an extra cannot bring, and what does


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(prog="nartk-doctor", description=DESCRIPTION, examples=EXAMPLES)
    add_json(parser)
    args = parser.parse_args(argv)
    with json_writer(args.json) as write:
        found = examine()
        write(found)
        if args.json != STDIN:
            print("\n".join(report(found)))
    return EXIT_USAGE if found["problems"] else EXIT_OK


def examine() -> JsonObject:
    """Examines the installation, for `--json`; `problems` keep nartk from working as it should."""
    declared = requirements()
    needed = packages("", declared) if declared else []
    found: JsonObject = {
        "nartk": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "engine": _engine(),
        "packages": _described(needed),
        "extras": {
            name: _extra(name, packages(name, declared))
            for name in declared
            if name and name not in DEVELOPERS
        },
        "models": {name: _read(name) for name in installed()},
    }
    return found | {"problems": [*_problems(found)]}


def report(found: JsonObject) -> list[str]:
    """Lines that say what `examine` found."""
    has = found["engine"]
    lines = [
        f"nartk {found['nartk']}, Python {found['python']}, {found['platform']}",
        f"engine: {has['instruction_set']} of {', '.join(has['instruction_sets'])}; types "
        f"{', '.join(has['types'])}; {has['threads']} threads"
        if has["available"]
        else f"engine: none, {has['lack']}",
        f"packages: {_listed(found['packages'])}",
        "models:",
        *(
            f"  {name}: {'can be read' if error is None else error}"
            for name, error in found["models"].items()
        ),
        "extras:",
    ]
    width = max(map(len, found["extras"]), default=0)
    for name, extra in found["extras"].items():
        lines.append(f"  {name:<{width}}  {_listed(extra['packages'])}")
        if extra["install"] is not None:
            lines.append(f"  {'':<{width}}  -> {extra['install']}")
    problems = found["problems"]
    return lines + [f"problem: {each}" for each in problems] if problems else [*lines, "no problem"]


def _engine() -> JsonObject:
    available = engine.available()
    return {
        "available": available,
        "lack": "" if available else engine.LACK or f"{engine.LEFT_OUT}=1 leaves it out",
        "types": [*engine.TYPES] if available else [],
        "instruction_set": engine.instruction_set() if available else None,
        "instruction_sets": engine.instruction_sets() if available else [],
        "threads": engine.cores() if available else None,
    }


def _described(found: Sequence[Package]) -> JsonObject:
    return {each.name: {"version": each.version or None, "lack": each.lack or None} for each in found}


def _extra(name: str, found: list[Package]) -> JsonObject:
    """The packages of an extra, and the command that brings those that are missing; None where none is."""
    commands = [f"pip install 'nartk[{name}]'"] if any(each.lack for each in found) else []
    if name in AFTER:
        package, brings = AFTER[name]
        found = [*found, *packages("", {"": [package]})]
        commands += [brings] if found[-1].lack else []
    return {"packages": _described(found), "install": " && ".join(commands) or None}


def _read(name: str) -> str | None:
    """Loads a model that ships; the error that this gives, or None."""
    from nartk.serving.loading import load

    try:
        load(name, check=True, threads=1, tell=lambda line: None)
    except NartkError as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error}"
    return None


def _problems(found: JsonObject) -> Iterator[str]:
    if engine.LACK:
        yield f"there is no engine: {engine.LACK}"
    for name, package in found["packages"].items():
        if package["lack"] is not None:
            yield f"{name}: {package['lack']}; pip install --upgrade {name}"
    for name, error in found["models"].items():
        if error is not None:
            yield f"the model {name} cannot be read: {error}"


def _listed(described: JsonObject) -> str:
    """Packages in a line, what is missing with its reason."""
    return ", ".join(
        f"{name} {each['version'] or ''}".rstrip() + ("" if each["lack"] is None else f" ({each['lack']})")
        for name, each in described.items()
    )
