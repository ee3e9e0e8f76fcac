"""The engine: a model's pass as one call, in C++, in which no result depends on what is computed beside it.

Use `nartk.engine.scorer`; `available` says whether this installation has it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

FORCED_ISA = "NARTK_ENGINE_ISA"  # environment: an instruction set by name, for tests
LEFT_OUT = "NARTK_NO_ENGINE"  # environment: 1 leaves the engine out
TYPES = ("fp32", "bf16", "int8")


def available() -> bool:
    """Whether this installation has the engine, and the environment does not leave it out."""
    return os.environ.get(LEFT_OUT) != "1" and find_spec("nartk.engine._native") is not None


def instruction_set() -> str:
    """The instruction set that the engine uses here, such as ``avx512_bf16``."""
    import nartk.engine._native as _native  # not `from`: mypy looks for it in this file

    return _native.isa(os.environ.get(FORCED_ISA, ""))


def describe() -> str:
    """The engine in words, for ``--version``."""
    if os.environ.get(LEFT_OUT) == "1":
        return f"no engine: {LEFT_OUT}=1 leaves it out"
    if not available():
        return "no engine: it was not built; install nartk where a C++17 compiler is, or from a wheel"
    import nartk.engine._native as _native  # not `from`: mypy looks for it in this file

    return f"engine {instruction_set()}, types {', '.join(TYPES)}, {_native.cores()} threads"
