"""Reductions of hand-written loop kernels, compiled, against the interpreter and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.loop_ir import Kernel, Load, Reduce, Store
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import NUMPY, assert_as_interpreted, kernel, param, run
from tests.support.loop_kernels.optimizer_shapes import (
    D0,
    R0,
    F,
    reduce_first,
    reduce_last,
    reduce_outer_and_last,
)

pytestmark = pytest.mark.usefixtures("each_cpu_target")
S0, S1 = symbol("s0"), symbol("s1")


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)


REDUCTIONS = [
    ("sum", DType.F32, DType.F32),
    ("sum", DType.F64, DType.F64),
    ("sum", DType.I64, DType.I64),
    ("sum", DType.I32, DType.I32),
    ("prod", DType.F32, DType.F32),
    ("amax", DType.F32, DType.F32),
    ("amin", DType.F32, DType.F32),
    ("amax", DType.F64, DType.F64),
    ("amin", DType.I8, DType.I8),
    ("amax", DType.U8, DType.U8),
    ("any", DType.BOOL, DType.BOOL),
    ("all", DType.BOOL, DType.BOOL),
    ("argmax", DType.F32, DType.I64),
    ("argmin", DType.F32, DType.I64),
    ("argmax", DType.I32, DType.I64),
    ("argmin", DType.U8, DType.I64),
]


def _reduction_input(dtype: DType, shape: tuple[int, int]) -> np.ndarray:
    generator = np.random.default_rng(5)
    if dtype is DType.BOOL:
        return generator.integers(0, 100, shape) == 0
    if dtype.is_integer:
        info = np.iinfo(NUMPY[dtype])
        return generator.integers(info.min, info.max, shape, dtype=NUMPY[dtype])
    return (1 + generator.standard_normal(shape) / 20).astype(NUMPY[dtype])


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [1, 33, 200])
@pytest.mark.parametrize(("op", "dtype", "result"), REDUCTIONS, ids=str)
def test_row_reduction_agrees_with_the_interpreter(
    op: str, dtype: DType, result: DType, columns: int
) -> None:
    x = _reduction_input(dtype, (4, columns))
    buffers = {"in0": _flat(x), "out0": np.zeros(4, NUMPY[result])}
    rtol = {DType.F32: 3e-6, DType.F64: 1e-13}.get(result, 0.0)
    assert_as_interpreted(reduce_last(op, dtype, result, 4, S1), buffers, {"s1": columns}, rtol)


@pytest.mark.sweep
@pytest.mark.parametrize(("op", "dtype", "result"), REDUCTIONS, ids=str)
def test_column_reduction_agrees_with_the_interpreter(op: str, dtype: DType, result: DType) -> None:
    rows, columns = 37, 600
    x = _reduction_input(dtype, (rows, columns))
    buffers = {"in0": _flat(x), "out0": np.zeros(columns, NUMPY[result])}
    rtol = {DType.F32: 3e-6, DType.F64: 1e-13}.get(result, 0.0)
    assert_as_interpreted(reduce_first(op, dtype, result, rows, columns), buffers, {}, rtol)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_arg_reduction_gives_the_first_of_ties_and_the_first_nan(op: str) -> None:
    nan = np.nan
    rows = [[3, 7, 7, 1, 1], [nan, 9, nan, 1, 0], [0, 1, nan, 9, nan], [-np.inf] * 5, [np.inf] * 5]
    x = np.array(rows, np.float32).repeat(9, axis=1)
    out = np.zeros(len(rows), np.int64)
    run(reduce_last(op, F, DType.I64, len(rows), x.shape[1]), {"in0": _flat(x), "out0": out})
    assert out.tolist() == getattr(torch, op)(torch.from_numpy(x), dim=1).tolist()
    columns = np.zeros(len(rows), np.int64)
    transposed = np.tile(np.ascontiguousarray(x.T), (1, 4))
    columns = np.zeros(transposed.shape[1], np.int64)
    run(
        reduce_first(op, F, DType.I64, *transposed.shape),
        {"in0": _flat(transposed), "out0": columns},
    )
    assert columns.tolist() == getattr(torch, op)(torch.from_numpy(transposed), dim=0).tolist()


def test_extremum_of_a_row_with_nan_is_nan() -> None:
    x = _normal(3, 100)
    x[0, 0], x[1, 57], x[2, 99] = np.nan, np.nan, np.nan
    for op in ("amax", "amin"):
        out = np.zeros(3, np.float32)
        run(reduce_last(op, F, F, 3, 100), {"in0": _flat(x), "out0": out})
        assert np.isnan(out).all(), op


def test_empty_reduction_gives_the_identity() -> None:
    out = np.full(3, 7, np.float32)
    run(reduce_last("sum", F, F, 3, S1), {"in0": np.zeros(0, np.float32), "out0": out}, {"s1": 0})
    assert out.tolist() == [0, 0, 0]
    assert not np.signbit(out).any()
    run(reduce_last("prod", F, F, 3, S1), {"in0": np.zeros(0, np.float32), "out0": out}, {"s1": 0})
    assert out.tolist() == [1, 1, 1]


def test_zero_outer_points_write_nothing() -> None:
    out = np.full(1, 7, np.float32)
    x = np.zeros(0, np.float32)
    run(reduce_last("sum", F, F, S0, 5), {"in0": x, "out0": out}, {"s0": 0})
    assert out.tolist() == [7]


@pytest.mark.parametrize("column_wise", [False, True])
def test_a_million_floats_sum_within_float32_rounding(column_wise: bool) -> None:
    count = 1 << 20
    lanes = 32 if column_wise else 1
    x = np.random.default_rng(3).uniform(0, 1, (lanes, count)).astype(np.float32)
    out = np.zeros(lanes, np.float32)
    if column_wise:
        run(reduce_first("sum", F, F, count, lanes), {"in0": _flat(x.T), "out0": out})
    else:
        run(reduce_last("sum", F, F, 1, S1), {"in0": _flat(x), "out0": out}, {"s1": count})
    exact = x.astype(np.float64).sum(axis=1)
    assert np.max(np.abs(out - exact) / exact) < 3e-7


def test_sum_over_an_outer_and_an_inner_axis() -> None:
    x = _normal(6, 20, 33)
    out = np.zeros(20, np.float32)
    run(reduce_outer_and_last(6, 20, 33), {"in0": _flat(x), "out0": out})
    np.testing.assert_allclose(out, x.astype(np.float64).sum(axis=(0, 2)), rtol=1e-4, atol=1e-5)


def test_argmax_over_two_axes_counts_in_the_order_of_the_axes() -> None:
    r1 = symbol("r1")
    x = _normal(5, 4, 6).round(0)
    body = (
        Load("in0", D0 * 24 + R0 + r1 * 4),
        Reduce("argmax", 0, DType.I64),
        Store("out0", D0, 1),
    )
    # Axis r0 (4) steps by 1, axis r1 (6) by 4: the vectorized axis is not the last one.
    built = kernel(
        "argmax2",
        (param("in0", F, x.size), param("out0", DType.I64, 5)),
        body,
        {"d0": 5},
        {"r0": 4, "r1": 6},
    )
    out = np.zeros(5, np.int64)
    run(built, {"in0": _flat(x), "out0": out})
    order = x.reshape(5, 6, 4).transpose(0, 2, 1).reshape(5, 24)
    assert out.tolist() == order.argmax(axis=1).tolist()


def test_full_reduction_without_outer_axes() -> None:
    body = (Load("in0", R0), Reduce("sum", 0, F), Store("out0", R0 * 0, 1))
    out = np.zeros(1, np.float32)
    x = _normal(10_001)
    run(
        kernel("total", (param("in0", F, 10_001), param("out0", F, 1)), body, None, {"r0": 10_001}),
        {"in0": x, "out0": out},
    )
    np.testing.assert_allclose(out[0], x.astype(np.float64).sum(), rtol=1e-5)


def _column_statistics(rows: int | str) -> Kernel:
    """Sum, product, largest and number of the largest element of each of 48 columns."""
    size = f"size {rows} from 0\n" if isinstance(rows, str) else ""
    points = f"48*{rows}" if isinstance(rows, str) else f"{48 * rows}"
    return parse_kernel(
        f"kernel columns\n{size}param in in0: f32[{points}]\nparam out out0: f32[48]\n"
        "param out out1: f32[48]\nparam out out2: f32[48]\nparam out out3: i64[48]\n"
        f"for d0 in 48\nreduce r0 in {rows}\n  %0: f32 = load in0[d0 + 48*r0]\n"
        "  %1: f32 = sum %0\n  %2: f32 = prod %0\n  %3: f32 = amax %0\n"
        "  %4: i64 = argmax %0\n  store out0[d0] = %1\n  store out1[d0] = %2\n"
        "  store out2[d0] = %3\n  store out3[d0] = %4\n"
    )


@pytest.mark.parametrize("rows", [1024, 1025, 1152, 2000, "s0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_columns_are_summed_in_blocks(rows: int | str, threads: int) -> None:
    for count in (1, 127, 128, 129, 3000) if isinstance(rows, str) else (rows,):
        x = np.random.default_rng(count).uniform(0.9, 1.1, (count, 48)).astype(np.float32)
        out = {f"out{n}": np.zeros(48, np.float32) for n in range(3)}
        buffers = {"in0": _flat(x), **out, "out3": np.zeros(48, np.int64)}
        sizes = {"s0": count} if isinstance(rows, str) else {}
        assert run(_column_statistics(rows), buffers, sizes, threads=threads) == 0
        wide = x.astype(np.float64)
        # A block of 128 terms errs by at most 127 roundings of its sum, in the mean by far fewer.
        np.testing.assert_allclose(buffers["out0"], wide.sum(0), rtol=2e-6)
        np.testing.assert_allclose(buffers["out1"], wide.prod(0), rtol=2e-5)
        np.testing.assert_array_equal(buffers["out2"], x.max(0))
        np.testing.assert_array_equal(buffers["out3"], x.argmax(0))
