"""The engine: a model's pass as one call, in C++, in which no result depends on what is computed beside it.

Use `nartk.engine.scorer`; `available` says whether this installation has it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

FORCED_ISA = "NARTK_ENGINE_ISA"  # environment: an instruction set by name, for tests
LEFT_OUT = "NARTK_NO_ENGINE"  # environment: 1 leaves the engine out
TYPES = ("fp32", "bf16", "int8")
# That it knows, the fastest first.
INSTRUCTION_SETS = ("avx512_amx", "avx512_bf16", "avx512", "avx2", "neon", "plain")


def _lack(here: Path) -> str:
    """Returns the reason why there is no engine, or an empty string.

    A source tree in which none was compiled takes that of an installation, if it is of the same sources: so
    Python that is started in a clone decodes as it does elsewhere.

    Args:
        here: The folder of this package.
    """
    name = f"{__name__}._native"
    if PathFinder.find_spec(name, [str(here)]) is not None:
        return ""
    if not (here / "csrc").is_dir():
        return "it was not built; install nartk where a C++17 compiler is, or from a wheel"
    entries = [Path(entry, "nartk", "engine") for entry in sys.path]
    found = PathFinder.find_spec(name, [str(each) for each in entries if each.resolve() != here.resolve()])
    if found is None or found.origin is None:
        return f"none was compiled in {here}, where this Python finds nartk; run `pip install -e .` there"
    from nartk.engine.stamp import stamp

    if stamp(here / "csrc").encode() not in Path(found.origin).read_bytes():
        return (
            f"that of {found.origin} was compiled from other sources than those in {here}, where this Python "
            "finds nartk; leave that folder, or run `pip install .` in it again"
        )
    __path__.append(str(Path(found.origin).parent))
    return ""


LACK = _lack(Path(__file__).parent)


def available() -> bool:
    """Tells whether this installation has the engine, and the environment does not leave it out."""
    return os.environ.get(LEFT_OUT) != "1" and not LACK


def instruction_set() -> str:
    """The instruction set that the engine uses here, such as ``avx512_bf16``."""
    import nartk.engine._native as _native  # not `from`: mypy looks for it in this file

    return _native.isa(os.environ.get(FORCED_ISA, ""))


def instruction_sets() -> list[str]:
    """Those of `INSTRUCTION_SETS` that this processor and this build have, the fastest first."""
    import nartk.engine._native as _native  # not `from`: mypy looks for it in this file

    found = []
    for name in INSTRUCTION_SETS:
        with contextlib.suppress(ValueError):
            found.append(_native.isa(name))
    return found


def cores() -> int:
    """Cores that this process may use, as the engine counts them."""
    import nartk.engine._native as _native  # not `from`: mypy looks for it in this file

    return _native.cores()


def describe() -> str:
    """The engine in words, for ``--version``."""
    if os.environ.get(LEFT_OUT) == "1":
        return f"no engine: {LEFT_OUT}=1 leaves it out"
    if LACK:
        return f"no engine: {LACK}"
    return f"engine {instruction_set()}, types {', '.join(TYPES)}, {cores()} threads"
