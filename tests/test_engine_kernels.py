"""The engine's kernels on every instruction set that runs here, against fp64 and against NumPy twins.

Symbols: n tokens, k inputs, m outputs.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.engine import ISAS, ROOT, build_engine, run_tests, same_bits, wide_linear
from support.kernels import (
    CSRC,
    Layer,
    apply,
    apply_int16,
    attend,
    compile_library,
    int16_exponentials,
    kernels_built,
    multiplies_bf16,
    needs_compiler,
    norm,
)

from nartk.engine import TYPES, _native

Array = npt.NDArray[np.float32]
SIZES = [(1, 1), (3, 5), (16, 33), (17, 31), (63, 64), (101, 130), (256, 97)]  # k, m
pytestmark = needs_compiler
EPS = 2.0**-24  # half the distance of fp32 numbers around 1


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def halves(seed: int, *shape: int) -> Array:
    """Finite fp16 numbers of all sizes, denormal ones among them."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 0x7C00, shape) | rng.integers(0, 2, shape) << 15
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def bound(x: npt.ArrayLike, weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """How far a sum of products in fp32, in any order, may lie from the true one (Higham 2002, 3.5)."""
    x, weights = np.abs(np.asarray(x, np.float64)), np.abs(np.asarray(weights, np.float64))
    steps = 2 * x.shape[1] + 2
    return steps * EPS / (1 - steps * EPS) * (x @ weights.T) + 1e-37


# --- Linear layers


def test_the_best_instruction_set_is_the_first_that_runs() -> None:
    assert _native.isa("") == ISAS[0]
    assert ISAS[-1] == "plain"
    with pytest.raises(ValueError, match="this build and processor have no instruction set sse9"):
        _native.isa("sse9")


@pytest.mark.parametrize(("k", "m"), SIZES)
def test_fp32_sums_lie_near_the_true_ones(isa: str, k: int, m: int) -> None:
    weights, bias = normal(1, m, k), normal(2, m)
    for n in (1, 2, 3, 7, 13, 40):
        x = normal(n, n, k)
        found = apply(Layer.of(weights, bias=bias), x, isa=isa)
        wide = x.astype(np.float64) @ weights.T.astype(np.float64)
        assert (np.abs(found - (wide + bias)) <= bound(x, weights) + 2 * EPS * np.abs(wide + bias)).all()


@pytest.mark.parametrize("low", range(0, 1 << 16, 1 << 12))
def test_every_fp16_number_is_widened_exactly(isa: str, low: int) -> None:
    values = np.arange(low, low + (1 << 12), dtype=np.uint16).view(np.float16)
    weights = values[np.isfinite(values)].astype(np.float32)[:, None]
    if len(weights) == 0:
        return
    layer = Layer.of(weights)
    assert layer.packed.weights.nbytes == 2 * -(-len(weights) // 32) * 32
    found = apply(layer, np.array([[1], [-2]], np.float32), isa=isa)
    np.testing.assert_array_equal(found, np.array([[1], [-2]]) * weights.T)


@pytest.mark.parametrize(("k", "m"), [*SIZES, (1024, 40)])
def test_fp16_numbers_have_the_sums_of_fp32(isa: str, k: int, m: int) -> None:
    bias = normal(2, m)
    for weights in (halves(1, m, k), normal(1, m, k).astype(np.float16).astype(np.float32)):
        weights.flat[: m * k : 2] *= -1  # -0.0 too
        weights.flat[-1] = -65504
        layer = Layer.of(weights, bias=bias)
        wide = Layer(wide_linear(weights, bias), "fp32", bias)
        assert 2 * layer.packed.weights.nbytes == wide.packed.weights.nbytes
        for n in (1, 2, 3, 7, 12, 13, 40):
            x = normal(n, n, k)
            for activation in (None, "gelu"):
                found, wanted = (apply(each, x, isa=isa, activation=activation) for each in (layer, wide))
                same_bits(found, wanted)


@pytest.mark.parametrize(
    "value", [0.1, 2049, 1 + 2**-11, 65505, 65536, 1e9, 2**-25, -(2**-14) - 2**-25, 1e-40, np.inf, np.nan]
)
def test_a_number_that_fp16_cannot_hold_keeps_fp32(isa: str, value: float) -> None:
    weights, x = halves(1, 37, 19), normal(3, 5, 19)
    weights[36, 18] = value
    layer, wide = Layer.of(weights), Layer(wide_linear(weights, None), "fp32", None)
    same_bits(layer.packed.weights.view(np.float32), wide.packed.weights.view(np.float32))
    same_bits(apply(layer, x, isa=isa), apply(wide, x, isa=isa))


def quantised(rows: Array, largest: int = 127) -> tuple[npt.NDArray[np.int64], Array]:
    """Rows as whole numbers of at most `largest`, of halves the even one, and a scale each."""
    most = np.abs(rows).max(1, initial=0)
    with np.errstate(divide="ignore"):
        by = np.where(most > 0, np.float32(largest) / most, np.float32(0)).astype(np.float32)
    return np.rint(rows * by[:, None]).astype(np.int64), most / np.float32(largest)


def on_grid(rows: Array) -> tuple[npt.NDArray[np.int64], Array]:
    """Rows as whole numbers of steps, of halves the even one: 254 from the least to the largest, or to 0.

    In fp32, as the kernels compute; `whole_steps` is the same in rational numbers.
    """
    most, least = rows.max(1, initial=0, keepdims=True), rows.min(1, initial=0, keepdims=True)
    step = most / np.float32(254) - least / np.float32(254)
    by = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    return np.rint(rows * by).astype(np.int64), step


def int8_twin(x: Array, weights: Array, bias: Array) -> Array:
    whole_x, steps = on_grid(x)
    whole_weights, scales = quantised(weights)
    return (whole_x @ whole_weights.T).astype(np.float32) * steps * scales + bias


@pytest.mark.parametrize(("k", "m"), [*SIZES, (4096, 3), (4095, 33)])
def test_int8_equals_its_twin_bit_for_bit(isa: str, k: int, m: int) -> None:
    weights, bias = normal(1, m, k), normal(2, m)
    for n in (1, 2, 3, 7, 13):
        for x in (normal(n, n, k), np.maximum(normal(n, n, k), -0.1), 3 + normal(n, n, k)):
            for each in (weights, weights.astype(np.float16).astype(np.float32)):
                same_bits(apply(Layer.of(each, "int8", bias), x, isa=isa), int8_twin(x, each, bias))


def check_any_number_of_tokens(k: int, m: int, isa: str, library: ctypes.CDLL | None = None) -> None:
    """int8 layers of 1 to 70 and of 129 tokens have the twin's bits, with what is added to them too."""
    weights, bias, x, residual = normal(1, m, k), normal(2, m), normal(3, 129, k), normal(4, 129, m)
    layer, wanted = Layer.of(weights, "int8", bias), int8_twin(x, weights, bias)
    for n in (*range(1, 71), 129):
        same_bits(apply(layer, x[:n], isa=isa, library=library), wanted[:n])
        found = apply(layer, x[:n], isa=isa, activation="relu", residual=residual[:n], library=library)
        same_bits(found, np.maximum(wanted[:n], 0) + residual[:n])


WIDTHS = [(5, 7), (64, 32), (63, 33), (130, 65), (384, 160)]  # k, m


@pytest.mark.parametrize(("k", "m"), WIDTHS)
def test_int8_equals_its_twin_for_any_number_of_tokens(isa: str, k: int, m: int) -> None:
    check_any_number_of_tokens(k, m, isa)


def test_int8_rounds_halves_to_even(isa: str) -> None:
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127]], np.float32)
    found = apply(Layer.of(np.eye(8, dtype=np.float32) * 127, "int8"), x, isa=isa)
    same_bits(found, np.array([[127, 0, 2, 2, 0, -2, -2, -127]], np.float32) * np.float32(127))


def rows_of_all_kinds(k: int) -> dict[str, Array]:
    """Rows [k] of finite numbers, by what is special about them."""
    rows = {
        "of both signs": normal(1, k),
        "behind an activation": np.maximum(normal(2, k), -0.17),
        "all above 0": 3 + np.abs(normal(3, k)),
        "all below 0": -40 - np.abs(normal(4, k)),
        "one number": np.where(np.arange(k) == k - 1, -5, 0),
        "one that is larger by far": np.where(np.arange(k) == k // 2, 1000, normal(5, k)),
        "constant": np.full(k, 0.3),
        "constant below 0": np.full(k, -7.7),
        "0": np.zeros(k),
        "-0": -np.zeros(k),
        "tiny": normal(6, k) * 2.0**-88,
        "too small": normal(7, k) * 2.0**-110,
        "denormal": normal(8, k) * 2.0**-135,
        "huge": normal(9, k) * 2.0**108,
    }
    return {name: row.astype(np.float32) for name, row in rows.items()}


def whole_steps(row: Array) -> tuple[list[Fraction], Fraction]:
    """Numbers [k] in steps, and a step: a 254th of what lies between the least and the largest, or 0.

    In rational numbers, nothing rounded. A row whose steps are below 2^-100 is 0.
    """
    exact = [Fraction(float(each)) for each in row]
    step = (max(0, *exact) - min(0, *exact)) / 254
    if step < Fraction(1, 2**100):
        return [Fraction(0)] * len(row), Fraction(0)
    return [each / step for each in exact], step


@pytest.mark.parametrize("k", [2, 17, 40])
def test_int8_is_what_rational_numbers_say(isa: str, k: int) -> None:
    """Inputs are the nearest whole steps, 0 one of them, and sums those of whole numbers, in any batch."""
    weights = np.random.default_rng(k).integers(-127, 128, (k + 5, k))
    weights[:k], weights[k:, 0] = 127 * np.eye(k), 127  # the largest of each is 127: their scales are 1
    layer, kinds = Layer.of(weights.astype(np.float32), "int8"), rows_of_all_kinds(k)
    batch = np.stack([*kinds.values(), np.full(k, np.nan, np.float32), np.full(k, -np.inf, np.float32)])
    together = apply(layer, batch, isa=isa)
    assert not np.isfinite(together[len(kinds) :]).any()
    told = 0
    for row, found in zip(kinds.values(), together, strict=False):
        same_bits(apply(layer, row[None], isa=isa)[0], found)
        steps, step = whole_steps(row)
        if step == 0:
            assert not found.any()
            continue
        near = [Fraction(float(each)) / (127 * step) for each in found[:k]]
        whole = [round(each) for each in near]
        assert max(abs(a - b) for a, b in zip(near, whole, strict=True)) < Fraction(1, 1000)
        for number, exact in zip(whole, steps, strict=True):
            if abs(abs(exact - math.floor(exact)) - Fraction(1, 2)) > Fraction(1, 1000):
                assert number == round(exact)
                told += 1
        assert not any(number for number, x in zip(whole, row, strict=True) if x == 0)
        for product, of in zip(found[k:], weights[k:], strict=True):
            true = sum(int(w) * n for w, n in zip(of, whole, strict=True)) * step
            assert abs(Fraction(float(product)) - true) <= abs(true) * Fraction(4 * EPS)
    assert told > 10 * k * 0.9


@pytest.mark.parametrize(("low", "high"), [(0, 254), (-254, 0), (-127, 127), (-1, 253)])
def test_the_most_int8_inputs_are_summed_in_32_bits(isa: str, low: int, high: int) -> None:
    """Of steps of 1; Python's own whole numbers have no end."""
    x = np.full((2, 65536), high, np.float32)
    x[1] = low
    x[:, :2] = low, high
    for sign in (1, -1):
        layer = Layer.of(np.full((3, 65536), 127 * sign, np.float32), "int8")
        true = [127 * sign * (65534 * edge + low + high) for edge in (high, low)]
        same_bits(apply(layer, x, isa=isa), np.array(true, np.float32)[:, None].repeat(3, 1))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 63, 64, 65, 1023, 4096])
@pytest.mark.parametrize("m", [1, 31, 33])
def test_int8_sums_are_whole_numbers_at_the_extremes(isa: str, k: int, m: int) -> None:
    """Inputs of which least and largest lie 254 apart have steps of 1: the result is the sum itself."""
    rng = np.random.default_rng(k)
    weights = rng.choice([-127, 127], (m, k)), np.full((m, k), 127), rng.integers(-127, 128, (m, k))
    weights[2][:, 0] = 127
    for low, high in ((-127, 127), (0, 254), (-254, 0), (-3, 251))[: 3 if k == 1 else 4]:
        rows = [rng.choice([low, high], (3, k)), rng.integers(low, high + 1, (3, k))]
        rows += [np.full((3, k), edge) for edge in (low, high)]
        for each in rows:
            each[:, :1], each[:, 1:2] = low, high
        for x, by in itertools.product(rows, (*weights, -weights[1])):
            found = apply(Layer.of(by.astype(np.float32), "int8"), x.astype(np.float32), isa=isa)
            same_bits(found, (x @ by.T).astype(np.float32))


def test_an_int8_row_of_nothing_is_zero(isa: str) -> None:
    """Also one whose numbers are so small that 1 divided by a step, or 127 by a weight, is none."""
    bias, x = normal(2, 5), np.zeros((3, 7), np.float32)
    x[1:] = [[1e-40], [1e-38]]
    same_bits(apply(Layer.of(normal(1, 5, 7), "int8", bias), x, isa=isa), np.tile(bias, (3, 1)))
    same_bits(apply(Layer.of(x, "int8", bias[:3]), normal(1, 2, 7), isa=isa), np.tile(bias[:3], (2, 1)))


def test_more_inputs_than_32_bits_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="too many inputs for int8"):
        Layer.of(np.ones((1, 65537), np.float32), "int8")


def int16_twin(x: Array, weights: Array) -> Array:
    whole_x, x_scales = quantised(x, 2047)
    whole_weights, scales = quantised(weights, 2047)
    return (whole_x @ whole_weights.T).astype(np.float32) * x_scales[:, None] * scales


@pytest.mark.parametrize(("k", "m"), [*SIZES, (512, 3), (511, 33)])
def test_int16_equals_its_twin_bit_for_bit(isa: str, k: int, m: int) -> None:
    weights = normal(1, m, k)
    for n in (1, 2, 3, 7, 13, 40):
        x = normal(n, n, k)
        same_bits(apply_int16(weights, x, isa=isa), int16_twin(x, weights))


def test_int16_sums_are_whole_numbers_at_the_extremes(isa: str) -> None:
    """Of as many inputs as a layer may have, all as large as they may be, of both signs."""
    ones = np.full((3, 512), 2047, np.float32)
    for x, weights in ((ones, ones), (-ones, ones), (-ones, -ones)):
        same_bits(apply_int16(weights, x, isa=isa), (x[:, :1] * weights[:, 0] * np.float32(512)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_never_hidden_in_int16(isa: str, bad: float) -> None:
    x, weights = normal(1, 3, 21), normal(2, 35, 21)
    clean = apply_int16(weights, x, isa=isa)
    x[1, 19] = bad
    found = apply_int16(weights, x, isa=isa)
    assert not np.isfinite(found[1]).any()
    same_bits(found[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100, 1500])
def test_exponentials_in_int16(isa: str, count: int) -> None:
    scores = 3 * normal(1, count)
    scores[::7] = -np.inf
    scores[0] = 0.5
    found, total = int16_exponentials(scores, isa=isa)
    wanted = 2047 * np.exp(scores.astype(np.float64) - scores.max())
    assert (np.abs(found[:count] - wanted) <= 0.5 + 1e-3).all()
    assert (found[:count] >= 0).all()
    assert found.max() == 2047
    assert not found[count:].any()
    assert total == found.sum()
    scores[count // 2] = np.nan
    assert np.isnan(int16_exponentials(scores, isa=isa)[1])


def to_bf16(x: Array) -> Array:
    """To the nearest number of 8 bits, of two the even one."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def tiles_twin(x: Array, weights: Array) -> Array:
    """Sums of bf16 numbers [n,k] and [m,k], k a multiple of 32, in the order of AMX -> [n,m].

    Of each 32 inputs those at even and at odd positions are summed apart, in order; then both are added.
    A product of two bf16 numbers is an fp32 number. (Intel, Software Developer's Manual, volume 2: TDPBF16PS)
    """
    total = np.zeros((len(x), len(weights)), np.float32)
    for first in range(0, x.shape[1], 32):
        sums = np.zeros((2, *total.shape), np.float32)
        for i in range(first, first + 32):
            sums[i % 2] += x[:, i, None] * weights[:, i]
        total += sums[0] + sums[1]
    return total


def check_tiles_of_bf16(k: int, m: int, library: ctypes.CDLL | None = None) -> None:
    weights, bias, x, residual = normal(1, m, k), normal(2, m), normal(3, 129, k), normal(4, 129, m)
    layer, wanted = Layer.of(weights, "bf16", bias), tiles_twin(to_bf16(x), to_bf16(weights)) + bias
    for n in (*range(1, 71), 129):
        found = apply(layer, x[:n], isa="avx512_amx", residual=residual[:n], library=library)
        same_bits(found, wanted[:n] + residual[:n])


@pytest.mark.skipif("avx512_amx" not in ISAS, reason="needs AMX")
@pytest.mark.parametrize(("k", "m"), [(32, 16), (96, 65), (256, 160)])
def test_bf16_in_tiles_is_summed_as_the_manual_says(k: int, m: int) -> None:
    check_tiles_of_bf16(k, m)


@pytest.mark.skipif("avx512_bf16" not in ISAS, reason="needs AVX-512 with bf16")
@pytest.mark.parametrize(("k", "m"), WIDTHS)
def test_tiles_written_in_plain_code_have_the_same_bits(k: int, m: int) -> None:
    """On processors without AMX, too: Intel's pseudocode in place of its instructions."""
    library = kernels_built(f'-DNARTK_TILES="{ROOT}/tests/support/tiles.inc"')
    check_any_number_of_tokens(k, m, "avx512_amx", library)
    check_tiles_of_bf16(k // 32 * 32 or 32, m, library)


@pytest.mark.parametrize(("k", "m"), SIZES)
def test_bf16_rounds_to_even_and_sums_in_fp32(isa: str, k: int, m: int) -> None:
    """A product of two bf16 numbers is an fp32 number, so that one after the other has one result.

    Processors that multiply bf16 themselves add two products at a time, in an order of their own.
    """
    weights, bias = normal(1, m, k), normal(2, m)
    for n in (1, 2, 3, 7, 13):
        x = normal(n, n, k)
        narrow_x, narrow_weights = to_bf16(x), to_bf16(weights)
        sums = np.zeros((n, m), np.float32)
        for i in range(k):
            sums += narrow_x[:, i, None] * narrow_weights[:, i]
        found = apply(Layer.of(weights, "bf16", bias), x, isa=isa)
        if multiplies_bf16(isa):
            limit = 2 * bound(narrow_x, narrow_weights) + 2 * EPS * np.abs(bias)
            assert (np.abs(found - (sums + bias)) <= limit).all()
        else:
            same_bits(found, sums + bias)


def test_bf16_ties_go_to_even(isa: str) -> None:
    x = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 1 + 2.0**-8 + 2.0**-20]], np.float32)
    found = apply(Layer.of(np.eye(4, dtype=np.float32), "bf16"), x, isa=isa)
    same_bits(found, np.array([[1, 1 + 2.0**-6, -1, 1 + 2.0**-7]], np.float32))


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, np.uint32(0x7FFFFFFF).view(np.float32)])
def test_what_is_no_number_is_never_hidden(isa: str, type: str, bad: float) -> None:
    x, weights = normal(1, 3, 21), normal(2, 35, 21)
    clean = apply(Layer.of(weights, type), x, isa=isa)
    x[1, 19] = bad
    found = apply(Layer.of(weights, type), x, isa=isa)
    assert not np.isfinite(found[1]).any()
    same_bits(found[[0, 2]], clean[[0, 2]])
    x[1, 19], weights[33, 4] = 1, bad
    found = apply(Layer.of(weights, type), x, isa=isa)
    assert not np.isfinite(found[:, 33]).any()
    assert np.isfinite(np.delete(found, 33, 1)).all()


def check_batch_invariance(isa: str, type: str) -> None:
    """Every row is bit for bit what it is alone, in each number of rows from 1 to 40."""
    for (k, m), make in itertools.product(((1, 1), (37, 35), (64, 65), (131, 290)), (normal, halves)):
        layer, x = Layer.of(make(1, m, k), type, normal(2, m)), normal(3, 40, k)
        alone = np.concatenate([apply(layer, row[None], isa=isa, activation="gelu") for row in x])
        for n in range(1, 41):
            same_bits(apply(layer, x[40 - n :], isa=isa, activation="gelu"), alone[40 - n :])


@pytest.mark.parametrize("type", TYPES)
def test_a_row_is_what_it_is_alone(isa: str, type: str) -> None:
    check_batch_invariance(isa, type)


@pytest.mark.parametrize("type", TYPES)
def test_packed_weights_are_read_where_they_lie(isa: str, type: str) -> None:
    weights, bias, x = normal(1, 45, 19), normal(2, 45), normal(3, 4, 19)
    layer = Layer.of(weights, type, bias)
    store = np.array(layer.packed.weights)
    again = Layer(_native.Linear.packed(store, bias, layer.packed.scales, 45, 19, type), type, bias)
    wanted = apply(layer, x, isa=isa)
    del store, layer
    gc.collect()
    same_bits(apply(again, x, isa=isa), wanted)


def test_packed_weights_of_another_shape_are_refused() -> None:
    layer = Layer.of(normal(1, 5, 3))
    store = np.array(layer.packed.weights)
    for bad, outputs in (
        (store[:-1], 5),
        (store[::2], 5),
        (store, 37),
        (store, 0),
        (store, -5),
        (store, 2**31 - 1),
    ):
        with pytest.raises((ValueError, TypeError)):
            _native.Linear.packed(bad, None, None, outputs, 3, "fp32")
    spread = np.zeros(2 * len(store), np.uint8)[::2]
    with pytest.raises(ValueError, match="packed weights that do not lie in one piece"):
        _native.Linear.packed(spread, None, None, 5, 3, "fp32")


# --- Activations

SAMPLES = np.concatenate(
    [
        np.linspace(-12, 12, 4001),
        *([s, -s] for s in (0.0, 1e-40, 1e-20, 20.0, 87.0, 88.5, 89.0, 100.0, 300.0, 1e4, 1e15)),
    ]
).astype(np.float32)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(isa: str, name: str) -> None:
    found = apply(Layer.of(np.ones((1, 1), np.float32)), SAMPLES[:, None], isa=isa, activation=name)[:, 0]
    wanted = np.array([ACTIVATIONS[name](float(x)) for x in SAMPLES])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_the_smallest_sigmoids_are_exact_to_fp32(isa: str) -> None:
    x = np.array([[0.0, 1, -1, 5, -5, 20, -20, 80, -80, 1000, -1000, 1e-6]], np.float32)
    found = apply(Layer.of(np.eye(x.size, dtype=np.float32)), x, isa=isa, activation="sigmoid")
    np.testing.assert_allclose(found[0], [sigmoid(float(each)) for each in x[0]], rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_nan(isa: str, name: str) -> None:
    x = np.array([[np.nan], [1.0]], np.float32)
    found = apply(Layer.of(np.ones((1, 1), np.float32)), x, isa=isa, activation=name)
    assert np.isnan(found[:, 0]).tolist() == [True, False]


# --- Norms


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 48, 100, 129, 1000])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_norms(isa: str, size: int, shift: float) -> None:
    x, gain, bias = normal(1, size) * 3 + np.float32(shift), normal(2, size), normal(3, size)
    wide = x.astype(np.float64)
    layer = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5) * gain + bias
    rms = wide / np.sqrt((wide**2).mean() + 1e-6) * gain
    limit = 1e-6 * (4 + shift)  # the mean is an fp32 number of the size of `shift`
    np.testing.assert_allclose(norm(x, gain, bias, 1e-5, isa=isa), layer, rtol=2e-6, atol=limit)
    np.testing.assert_allclose(norm(x, gain, None, 1e-6, isa=isa), rms, rtol=2e-6, atol=limit)


def test_norms_keep_nan(isa: str) -> None:
    x, gain = normal(1, 21), normal(2, 21)
    x[18] = np.nan
    assert np.isnan(norm(x, gain, gain, 1e-5, isa=isa)).all()
    assert np.isnan(norm(x, gain, None, 1e-5, isa=isa)).all()


# --- Attention


def attention(q: Array, keys: Array, values: Array, scale: float) -> npt.NDArray[np.float64]:
    scores = keys.astype(np.float64) @ q.astype(np.float64) * np.float32(scale)
    weights = np.exp(scores - scores.max())
    return weights @ values.astype(np.float64) / weights.sum()


@pytest.mark.parametrize("features", [16, 32, 48, 64, 80, 96, 112, 128, 208])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40, 203])
def test_attention(isa: str, features: int, count: int) -> None:
    q, keys, values = normal(1, features), normal(2, count, features), normal(3, count, features)
    for scale in (features**-0.5, 0.0, 5.0):  # the last sharpens it: most weights are 0 in fp32
        found = attend(q, keys, values, scale, isa=isa)
        error = 2e-7 * (8 + scale * np.abs(keys * q).sum(1).max())  # of a score, and so of its weight
        np.testing.assert_allclose(found, attention(q, keys, values, scale), rtol=0, atol=4 * error)


def test_a_score_of_minus_infinity_weighs_nothing(isa: str) -> None:
    q, keys, values = np.abs(normal(1, 48)), normal(2, 20, 48), normal(3, 20, 48)
    keys[19, 5] = -np.inf
    same_bits(attend(q, keys, values, 0.1, isa=isa), attend(q, keys[:19], values[:19], 0.1, isa=isa))


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_attention_keeps_nan(isa: str, where: str, halves: bool) -> None:
    q, keys, values = normal(1, 32), normal(2, 20, 32), normal(3, 20, 32)
    {"query": q, "key": keys[18], "value": values[18]}[where][7] = np.nan
    found = np.isnan(attend(q, keys, values, 0.1, isa=isa, halves=halves))
    assert found.sum() == (1 if where == "value" else 32)


@pytest.mark.parametrize("features", [16, 32, 48, 64, 80, 128])
def test_attention_over_fp16_is_that_over_rounded_numbers(isa: str, features: int) -> None:
    """Halves go to the even number, and what fp16 has no number for to its largest."""
    q, keys, values = normal(1, features), normal(2, 40, features), normal(3, 40, features)
    keys[0, :4] = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-24, -(2.0**-14) + 2.0**-24]
    values[:, :3] = [65519.0, 65536.0, -1e30]
    near = (np.clip(each, -65504, 65504).astype(np.float16).astype(np.float32) for each in (keys, values))
    wanted = attend(q, *near, 0.1, isa=isa)
    same_bits(attend(q, keys, values, 0.1, isa=isa, halves=True), wanted)


def test_attention_to_a_prefix_is_the_same_in_any_memory(isa: str) -> None:
    """Greedy search and a verified draft see the same keys at other addresses."""
    q, keys, values = normal(1, 64), normal(2, 37, 64), normal(3, 37, 64)
    wanted = attend(q, keys, values, 0.1, isa=isa)
    for _ in range(20):
        same_bits(attend(q.copy(), keys.copy(), values.copy(), 0.1, isa=isa), wanted)


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64 (Debian: qemu-user)")
@pytest.mark.skipif("avx2" not in ISAS, reason="of x86-64")
def test_a_processor_without_avx512_decodes() -> None:
    """What is compiled for newer processors is not executed on an older one: Intel's of 2013, emulated."""
    code = (
        "import nartk, nartk.engine as engine\n"
        "print(engine.instruction_sets(), nartk.load('gec-en', threads=1).decode('She go home.', 'iad').text)"
    )
    command = ["qemu-x86_64", "-cpu", "Haswell", os.path.realpath(sys.executable), "-c", code]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['avx2', 'plain'] She went home.\n"


# --- Known-bad kernels: what the tests of batch invariance are worth

BAD = {1: "split-k", 2: "M-dependent"}


def bad_flags(kind: int) -> list[str]:
    """Flags of a compiler by which the engine's fp32 layers have one of the bad kernels."""
    return [f'-DNARTK_BAD_KERNEL="{ROOT}/tests/support/bad_kernel.inc"', f"-DNARTK_BAD_KIND={kind}"]


def depends_on_rows(library: Path) -> bool:
    """Whether a row of fp32 sums, by plain kernels that were built alone, depends on how many there are."""
    k, m, most = 131, 33, 12
    x = normal(2, most, k)
    run = ctypes.CDLL(str(library)).plain_linear
    pointer = np.ctypeslib.ndpointer(np.float32, flags="C")
    run.argtypes = [pointer, ctypes.c_int, ctypes.c_int, pointer, ctypes.c_int, pointer]

    def apply(weights: Array, rows: Array) -> Array:
        y = np.zeros((len(rows), 64), np.float32)
        run(weights, m, k, np.ascontiguousarray(rows), len(rows), y)
        return y[:, :m]

    def depends(weights: Array) -> bool:
        alone = np.concatenate([apply(weights, row[None]) for row in x])
        np.testing.assert_allclose(alone, x @ weights.T, atol=1e-3)
        return any((apply(weights, x[:n]) != alone[:n]).any() for n in range(1, most + 1))

    wide = normal(1, m, k)
    found = {depends(weights) for weights in (wide, wide.astype(np.float16).astype(np.float32))}
    assert len(found) == 1  # as fp32 and as fp16
    return found.pop()


@pytest.mark.parametrize("bad", [0, *BAD])
def test_bad_plain_kernels_are_found(tmp_path: Path, bad: int) -> None:
    library = tmp_path / "kernels.so"
    sources = [ROOT / "tests/support/plain_kernels.cpp"]
    sources += [CSRC / f"{name}.cpp" for name in ("kernels_plain", "weights", "cells")]
    compile_library(library, sources, ["-O1", "-ffp-contract=off", *(bad_flags(bad) if bad else [])])
    assert depends_on_rows(library) == (bad != 0)


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
def test_bad_kernels_fail_the_tests_of_the_engine(
    tmp_path: Path, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of them fails the test of the kernels, that of whole passes, and P2 and P3 of strategies."""
    flags = shlex.join(["-O1", *bad_flags(bad)])
    native = build_engine(tmp_path, flags)
    monkeypatch.setenv("NARTK_ENGINE_FLAGS", flags)  # of single kernels
    tests = {"test_engine_kernels.py": "what_it_is_alone", "test_engine_passes.py": "equal_greedy_search"}
    for file, name in tests.items():
        done = run_tests(
            native, f"tests/{file}", "-k", f"{name} and fp32", "--tb=no", NARTK_ENGINE_FLAGS=flags
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert " failed" in done.stdout
    for name in ("p2_no_bit_changes and iad", "p3_ties and twins"):
        done = run_tests(native, "tests/test_promises_drafters.py", "-k", f"{name} and fp32", "--tb=no")
        assert " failed" in done.stdout, done.stdout + done.stderr
        assert " passed" not in done.stdout
    done = run_tests(
        native, "tests/test_engine_kernels.py", "-k", "what_it_is_alone and int8", NARTK_ENGINE_FLAGS=flags
    )
    assert done.returncode == 0, done.stdout + done.stderr  # bad in fp32 alone
