"""What the tests of the engine share: the instruction sets that run here, and test builds of its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nartk.engine import LEFT_OUT

if os.environ.get(LEFT_OUT) == "1":
    pytest.skip(f"{LEFT_OUT}=1 leaves the engine out", allow_module_level=True)
from nartk.engine import _native

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("avx512_amx", "avx512_bf16", "avx512", "avx2", "neon", "plain")


def _runs(isa: str) -> bool:
    try:
        return _native.isa(isa) == isa
    except ValueError:
        return False


ISAS = [isa for isa in NAMES if _runs(isa)]


def build_engine(folder: Path, flags: str) -> Path:
    """Builds the engine's extension module with more compiler flags into a folder, which takes a minute."""
    subprocess.run(
        [
            sys.executable,
            "setup.py",
            "-q",
            "build_ext",
            "--build-lib",
            folder / "lib",
            "--build-temp",
            folder,
        ],
        cwd=ROOT,
        env={**os.environ, "NARTK_ENGINE_FLAGS": flags, "NARTK_REQUIRE_ENGINE": "1"},
        check=True,
        capture_output=True,
    )
    (built,) = (folder / "lib" / "nartk" / "engine").glob("_native.*")
    return built


def run_tests(native: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in another process, on an engine that was built elsewhere."""
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('nartk.engine._native', {str(native)!r})\n"
        "sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "import nartk.engine, pytest\n"
        "nartk.engine._native = module\n"
        f"sys.exit(pytest.main(['-p', 'no:cacheprovider', *{list(arguments)!r}]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
    )


def wide_linear(weights: np.ndarray, bias: np.ndarray | None) -> _native.Linear:
    """A layer of weights [m,k] that lie as fp32 whatever their values, [m/32][k][32]."""
    outputs, inputs = weights.shape
    filled = np.pad(weights, ((0, -outputs % 32), (0, 0)))
    panels = np.ascontiguousarray(filled.reshape(-1, 32, inputs).swapaxes(1, 2))
    return _native.Linear.packed(panels.reshape(-1), bias, None, outputs, inputs, "fp32")


def same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """Asserts that two fp32 arrays are equal, NaN and signs of zeros included."""
    assert found.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
