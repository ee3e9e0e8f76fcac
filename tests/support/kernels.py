"""Single kernels of the engine, which tests compile by themselves: the extension module that ships has none.

Symbols: n tokens, k inputs, m outputs, f features of a head, T keys.
"""

from __future__ import annotations

import ast
import ctypes
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nartk.engine import TYPES, _native
from support.engine import ROOT

Array = npt.NDArray[np.float32]
CSRC = ROOT / "nartk" / "engine" / "csrc"
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid")  # in the order of kernels.h
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and os.environ.get("NARTK_REQUIRE_ENGINE") != "1", reason="needs g++"
)


def compile_library(library: Path, sources: Sequence[Path], flags: Sequence[str]) -> None:
    """Compiles sources that read the engine's headers to a library for ctypes."""
    command = ["g++", "-std=c++17", *flags, "-fPIC", "-shared", "-pthread", f"-I{CSRC}", "-o", library]
    subprocess.run([*command, *sources], check=True)


@functools.cache
def kernels_built(*more: str) -> ctypes.CDLL:
    """The kernels, compiled with the flags of setup.py and more when first needed, and kept in build/."""
    statements = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body
    named = {ast.unparse(each.targets[0]): each.value for each in statements if isinstance(each, ast.Assign)}
    flags = ast.literal_eval(named["COMPILE"]) + shlex.split(os.environ.get("NARTK_ENGINE_FLAGS", ""))
    flags += more
    files = [ROOT / "tests" / "support" / "kernels.cpp", *sorted(CSRC.glob("kernels_*.cpp"))]
    files += [CSRC / f"{name}.cpp" for name in ("isa", "weights", "cells", "threads")]
    digest = hashlib.sha256(repr(flags).encode())
    for file in (*files, *sorted(CSRC.glob("*.h")), *sorted(CSRC.glob("*.inc"))):
        digest.update(file.read_bytes())
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    library = folder / f"kernels-{digest.hexdigest()[:16]}.so"
    with open(folder / "kernels.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest -n has several processes
        if not library.exists():
            compile_library(folder / "kernels.part", files, flags)
            (folder / "kernels.part").rename(library)
    return ctypes.CDLL(str(library))


def _call(
    name: str,
    isa: str,
    *arguments: np.ndarray | float | None,
    returns: type | None = None,
    library: ctypes.CDLL | None = None,
) -> Any:
    """Calls a kernel of an instruction set that runs here, or in that library, with arrays as pointers."""
    kinds = {bool: ctypes.c_bool, int: ctypes.c_int, float: ctypes.c_float, type(None): ctypes.c_void_p}
    if library is None:
        assert _native.isa(isa) == isa
        library = kernels_built()
    function = library[name]
    function.restype = returns
    arrays = [np.ascontiguousarray(each) if isinstance(each, np.ndarray) else each for each in arguments]
    assert not any(isinstance(each, np.ndarray) and each.dtype == np.float64 for each in arrays)
    pointers = [
        each.ctypes.data_as(ctypes.c_void_p) if isinstance(each, np.ndarray) else kinds[type(each)](each)
        for each in arrays
    ]
    return function(isa.encode(), *pointers)


def multiplies_bf16(isa: str) -> bool:
    """Tells whether the processor multiplies bf16 itself."""
    return bool(_call("multiplies_bf16", isa, returns=ctypes.c_bool))


@dataclass
class Layer:
    """A linear layer as the engine packs it, and what it does not tell of itself."""

    packed: _native.Linear
    type: str
    bias: Array | None

    @classmethod
    def of(cls, weights: Array, type: str = "fp32", bias: Array | None = None) -> Layer:
        return cls(_native.Linear.pack(weights, bias, type), type, bias)


def apply(
    layer: Layer,
    x: Array,
    *,
    isa: str,
    activation: str | None = None,
    residual: Array | None = None,
    library: ctypes.CDLL | None = None,
) -> Array:
    """A linear layer over x [n,k] -> [n,m]; residual [n,m] is added."""
    packed, bias = layer.packed, layer.bias
    halves = (
        layer.type == "fp32" and packed.weights.nbytes == 2 * packed.inputs * -(-packed.outputs // 32) * 32
    )
    assert x.shape[1] == packed.inputs
    assert bias is None or len(bias) == packed.outputs
    y = np.empty((len(x), packed.outputs), np.float32) if residual is None else residual.copy()
    assert y.shape == (len(x), packed.outputs)
    layout = (TYPES.index(layer.type), halves, packed.weights, bias, packed.scales)
    sizes = (packed.outputs, packed.inputs)
    epilogue = ACTIVATIONS.index(activation), residual is not None
    _call("apply", isa, *layout, *sizes, x, len(x), *epilogue, y, library=library)
    return y


def apply_int16(weights: Array, x: Array, *, isa: str) -> Array:
    """Products of x [n,k] and weights [m,k] in int16 -> [n,m]."""
    assert x.shape[1] == weights.shape[1] <= 512
    y = np.empty((len(x), len(weights)), np.float32)
    _call("apply_int16", isa, weights, *weights.shape, x, len(x), y)
    return y


def int16_exponentials(scores: Array, *, isa: str) -> tuple[npt.NDArray[np.int16], float]:
    """2047 times exp(scores [T] less the largest) as integers, zeros behind, and their sum."""
    made = np.full(-(-len(scores) // 16) * 16, -1, np.int16)
    total = _call("int16_exponentials", isa, scores, len(scores), made, returns=ctypes.c_float)
    return made, total


def attend(q: Array, keys: Array, values: Array, scale: float, *, isa: str, halves: bool = False) -> Array:
    """One head of one query [f] over keys and values [T,f] -> [f]; halves: these lie as fp16."""
    assert keys.shape == values.shape == (len(keys), len(q))
    assert len(q) % 16 == 0
    y = np.empty(len(q), np.float32)
    _call("attend", isa, q, keys, values, *keys.shape, float(scale), halves, y)
    return y


def norm(x: Array, gain: Array, bias: Array | None, eps: float, *, isa: str) -> Array:
    """LayerNorm of x [k], without bias RMSNorm."""
    assert len(x) == len(gain)
    y = np.empty(len(x), np.float32)
    _call("norm", isa, x, len(x), gain, bias, eps, y)
    return y
