"""Users' kernels compute on this processor what NumPy computes in float64."""

# Triton's kernels have many parameters, constants in capitals, and no types.
# ruff: noqa: N803, PLR0917
# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from kernelfarm.client.tilelang.launch_grid import grid_of
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.user_kernel import tile_kernel
from kernelfarm.client.triton.kernel_source import kernel_source
from kernelfarm.client.triton.signatures import user_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from tests.support.processor_kernels import Array, run_on_processor
from tests.support.tile_programs import CASES, program_text
from tests.support.tutorial_kernels import TUTORIALS


@pytest.fixture(autouse=True)
def _fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns unless it is set


def _normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(values.astype(dtype))


def _f64(array: Array) -> Array:
    return array.astype(np.float64)


def _kernel(function: Any, types: Mapping[str, str], **constants: Any) -> UserKernel:
    return user_kernel(kernel_source(function), types, constants, {})


def _check(found: Array, expected: Array, tolerance: float) -> None:
    np.testing.assert_allclose(_f64(found), expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.sweep
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_tile_program_computes_what_float64_gives(name: str, threads: int) -> None:
    case, program = CASES[name], read_program(program_text(name))
    sizes = case.sizes or {}
    buffers = [np.array(buffer) for buffer in case.buffers()]

    grid = grid_of(program, sizes)
    run_on_processor(tile_kernel(program, 1), buffers, list(sizes.values()), grid, threads)

    for position, expected in case.expected(case.buffers()).items():
        _check(buffers[position], expected, case.tolerance)


def _run(name: str, buffers: Sequence[Array], numbers: Sequence[Any], *grid: int) -> None:
    run_on_processor(TUTORIALS[name].kernel(), buffers, numbers, grid)


def test_vectors_of_any_length_are_added_and_nothing_beyond_is_written() -> None:
    x, y, out = _normal(3000), _normal(3000, seed=1), np.full(4096, 7.0, np.float32)
    _run("add", [x, y, out], [3000], 3)
    assert np.array_equal(out[:3000], x + y)
    assert np.all(out[3000:] == 7.0)


def test_rows_that_a_loop_visits_give_their_softmax() -> None:
    x, out = _normal(37, 700), np.zeros((37, 700), np.float32)
    _run("softmax", [out, x], [700, 700, 37, 700], 5)
    powers = np.exp(_f64(x))
    _check(out, powers / powers.sum(axis=1, keepdims=True), 1e-6)


@pytest.mark.parametrize("name", ["matmul", "persistent matmul"])
def test_a_product_with_sides_that_fill_no_tile_is_right(name: str) -> None:
    m, n, k = 130, 90, 70
    a, b = _normal(m, k, dtype=np.float16), _normal(k, n, dtype=np.float16)
    c, exact = np.zeros((m, n), np.float16), _f64(a) @ _f64(b)
    if name == "matmul":
        exact = np.where(exact >= 0, exact, 0.01 * exact)
    _run(name, [a, b, c], [m, n, k, *((k, n, n) if name == "matmul" else ())], 132)
    _check(c, exact, 1e-3)


def test_products_whose_addresses_are_loaded_are_right() -> None:
    sizes = [(64, 64, 32), (128, 64, 96)]
    a = [_normal(m, k, dtype=np.float16) for m, _, k in sizes]
    b = [_normal(k, n, dtype=np.float16, seed=1) for _, n, k in sizes]
    c = [np.zeros((m, n), np.float16) for m, n, _ in sizes]
    tables = [np.array([t.ctypes.data for t in group], np.int64) for group in (a, b, c)]
    numbers = [np.array(sizes, np.int32), np.array([(k, n, n) for _, n, k in sizes], np.int32)]
    _run("grouped matmul", [*tables, *numbers], [2], 84)
    for left, right, product in zip(a, b, c, strict=True):
        _check(product, _f64(left) @ _f64(right), 1e-3)


def test_a_layer_norm_with_sums_in_loops_is_right() -> None:
    x, out = _normal(11, 1500), np.zeros((11, 1500), np.float32)
    w, b = _normal(1500, seed=1), _normal(1500, seed=2)
    mean, rstd = np.zeros(11, np.float32), np.zeros(11, np.float32)
    _run("layer norm", [x, out, w, b, mean, rstd], [1500, 1500, 1e-5], 11)
    exact = _f64(x)
    centred = exact - exact.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
    _check(out, centred * scale * _f64(w) + _f64(b), 1e-5)
    _check(rstd, scale[:, 0], 1e-6)


def test_attention_with_a_helper_is_right() -> None:
    heads, n, depth = 2, 128, 64
    q, k, v = (_normal(heads, n, depth, dtype=np.float16, seed=seed) for seed in range(3))
    out, lse = np.zeros_like(q), np.zeros((heads, n), np.float32)
    _run("attention", [q, k, v, out, lse], [n * depth, depth, n, depth**-0.5], n // 64, heads)
    scores = _f64(q) @ _f64(k).swapaxes(1, 2) * depth**-0.5
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    _check(out, weights / weights.sum(axis=-1, keepdims=True) @ _f64(v), 2e-3)


def test_random_numbers_and_library_functions_are_those_of_triton() -> None:
    x, out = _normal(5000), np.zeros(5000, np.float32)
    _run("dropout", [x, out], [5000, 0.25, 123], 5)
    is_kept = out != 0
    assert abs(is_kept.mean() - 0.75) < 0.02
    _check(out[is_kept], _f64(x[is_kept]) / 0.75, 1e-6)

    y, arcs = np.tanh(_normal(600)), np.zeros(600, np.float32)
    _run("library functions", [y, arcs], [600], 3)
    _check(arcs, np.arcsin(_f64(y)), 1e-6)


@triton.jit
def best_of_rows(x_ptr, value_ptr, at_ptr, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * COLUMNS + tl.arange(0, COLUMNS))
    value, at = tl.max(x, axis=0, return_indices=True)
    tl.store(value_ptr + row, value)
    tl.store(at_ptr + row, at)


@pytest.mark.parametrize("columns", [8, 256])
def test_a_reduction_of_two_values_keeps_the_first_of_equal_ones(columns: int) -> None:
    x = np.random.default_rng(0).integers(0, 5, (6, columns)).astype(np.float32)
    value, at = np.zeros(6, np.float32), np.zeros(6, np.int32)
    types = {"x_ptr": "*fp32", "value_ptr": "*fp32", "at_ptr": "*i32"}
    run_on_processor(_kernel(best_of_rows, types, COLUMNS=columns), [x, value, at], (), (6,))
    assert np.array_equal(value, x.max(axis=1))
    assert np.array_equal(at, x.argmax(axis=1))


@triton.jit
def divide(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=-(2**31))
    y = tl.load(y_ptr + at, mask=at < n, other=0)
    tl.store(out_ptr + at, x // y + x % y, mask=at < n)


def test_masked_lanes_may_divide_by_zero() -> None:
    x, y = np.array([7, -7, 9, -9, 100], np.int32), np.array([2, 2, -4, 3, 7], np.int32)
    out = np.zeros(5, np.int32)
    types = {"x_ptr": "*i32", "y_ptr": "*i32", "out_ptr": "*i32", "n": "i32"}
    run_on_processor(_kernel(divide, types, BLOCK=64), [x, y, out], [5])
    quotient = np.trunc(x / y).astype(np.int32)
    assert np.array_equal(out, quotient + x - quotient * y)


@triton.jit
def count(x_ptr, counts_ptr, before_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    before = tl.atomic_add(counts_ptr + x, 1)
    tl.store(before_ptr + at, before)


def test_an_atomic_addition_gives_the_value_before() -> None:
    x = np.random.default_rng(0).integers(0, 4, 4096).astype(np.int32)
    counts, before = np.zeros(4, np.int32), np.full(4096, -1, np.int32)
    types = dict.fromkeys(("x_ptr", "counts_ptr", "before_ptr"), "*i32")
    run_on_processor(_kernel(count, types, BLOCK=256), [x, counts, before], (), (16,))
    assert np.array_equal(counts, np.bincount(x))
    for number in range(4):
        assert sorted(before[x == number]) == list(range(counts[number]))


@triton.jit
def branches(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    if pid % 2 == 0:
        total += tl.load(x_ptr + at)
    else:
        step = 0
        while step * step < n:
            total = total * 0.5 + tl.load(x_ptr + at) * step
            step += 1
    first, second = total, total + 1.0
    for _number in range(n):
        first, second = second, first  # both are read before one is overwritten
    tl.store(out_ptr + pid * BLOCK + at, first - second)
    tl.store(out_ptr + (2 + pid) * BLOCK + at, tl.flip(total))


@pytest.mark.parametrize("n", [0, 5])
def test_branches_and_loops_carry_blocks(n: int) -> None:
    x, out = _normal(64), np.zeros((4, 64), np.float32)
    types = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    kernel = _kernel(branches, types, BLOCK=64)
    run_on_processor(kernel, [x, out], [n], (2,))
    odd, step = np.zeros(64), 0
    while step * step < n:
        odd, step = odd * 0.5 + _f64(x) * step, step + 1
    assert np.allclose(out[:2], 1.0 if n % 2 else -1.0, atol=1e-6)
    _check(out[2], _f64(x)[::-1], 1e-6)
    np.testing.assert_allclose(out[3], odd[::-1], atol=1e-5)


@triton.jit
def types_of_numbers(a_ptr, b_ptr, c_ptr, out_ptr, ints_ptr, scale, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    c = tl.load(c_ptr + at)
    mixed = (a.to(tl.float32) + b.to(tl.float32)) * scale
    tl.store(out_ptr + at, mixed.to(tl.bfloat16))
    ints = tl.where((c > 0) & (a > 0), c * 3, c >> 1).to(tl.int64) + mixed.to(tl.int32)
    tl.store(ints_ptr + at, ints)


def test_narrow_floats_and_integers_are_converted() -> None:
    n = 128
    a, b = _normal(n, dtype=np.float16), _normal(n, dtype=ml_dtypes.bfloat16, seed=1)
    c = np.random.default_rng(0).integers(-100, 100, n).astype(np.int8)
    out, ints = np.zeros(n, ml_dtypes.bfloat16), np.zeros(n, np.int64)
    types = {"a_ptr": "*fp16", "b_ptr": "*bf16", "c_ptr": "*i8", "out_ptr": "*bf16"}
    kernel = _kernel(types_of_numbers, {**types, "ints_ptr": "*i64", "scale": "fp32"}, N=n)
    run_on_processor(kernel, [a, b, c, out, ints], [10.0])
    mixed = (a.astype(np.float32) + b.astype(np.float32)) * np.float32(10)
    assert np.array_equal(out, mixed.astype(ml_dtypes.bfloat16))
    product = (c * np.int8(3)).astype(np.int8)
    chosen = np.where((c > 0) & (a > 0), product, c >> 1).astype(np.int64)
    assert np.array_equal(ints, chosen + mixed.astype(np.int32))


@triton.jit
def shapes(x_ptr, out_ptr, sums_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    turned = tl.reshape(tl.trans(x * 2.0), [M * N])
    tl.store(out_ptr + tl.arange(0, M * N), turned)
    tl.store(sums_ptr + columns, tl.sum(x, axis=0))
    tl.store(sums_ptr + N + columns, tl.cumsum(tl.sum(x, axis=0), 0, reverse=True))


def test_blocks_are_turned_reshaped_summed_and_scanned() -> None:
    x = _normal(16, 64)
    out, sums = np.zeros(1024, np.float32), np.zeros((2, 64), np.float32)
    types = dict.fromkeys(("x_ptr", "out_ptr", "sums_ptr"), "*fp32")
    run_on_processor(_kernel(shapes, types, M=16, N=64), [x, out, sums])
    assert np.array_equal(out.reshape(64, 16), x.T * 2)
    exact = _f64(x).sum(axis=0)
    _check(sums[0], exact, 1e-6)
    _check(sums[1], np.cumsum(exact[::-1])[::-1], 1e-6)


@triton.jit
def small_product(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
    b = tl.load(b_ptr + inner[:, None] * N + columns[None, :])
    c = tl.load(c_ptr + rows[:, None] * N + columns[None, :])
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], tl.dot(a, b, c))


def test_products_of_integers_and_of_f64_are_exact_where_they_can_be() -> None:
    a, b = (np.random.default_rng(s).integers(-9, 9, (32, 32)).astype(np.int8) for s in range(2))
    c = np.ones((32, 32), np.int32)
    types = {"a_ptr": "*i8", "b_ptr": "*i8", "c_ptr": "*i32"}
    run_on_processor(_kernel(small_product, types, M=32, N=32, K=32), [a, b, c])
    assert np.array_equal(c, a.astype(np.int32) @ b.astype(np.int32) + 1)

    x, y, z = (
        _normal(16, 16, dtype=np.float64),
        _normal(16, 16, dtype=np.float64),
        np.ones((16, 16)),
    )
    wide = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp64")
    run_on_processor(_kernel(small_product, wide, M=16, N=16, K=16), [x, y, z])
    np.testing.assert_allclose(z, x @ y + 1, atol=1e-13)
