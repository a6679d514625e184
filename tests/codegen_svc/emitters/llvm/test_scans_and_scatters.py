"""Compiled scans and scatters: against the interpreter, in order, with bad indices."""

from __future__ import annotations

import numpy as np
import pytest

from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.prims import SCAN_OPS
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel
from tests.support.compiled_kernels import NUMPY, both, built, run, stage_text
from tests.support.ir_strategies import GOLDEN
from tests.support.loop_kernels.scatters import SCATTER

pytestmark = pytest.mark.usefixtures("each_cpu_target")

FLOATS = (DType.F32, DType.F64)
INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)


def scan_kernel(op: str, dtype: DType, *, is_column: bool) -> Kernel:
    """A scan along the last axis of [rows, 300], or along the first of [300, rows]."""
    at = "rows*r0 + d0" if is_column else "300*d0 + r0"
    result = "i64" if op.endswith("_index") else dtype.value
    kernel = parse_kernel(
        f"kernel {op}_{dtype.value}\nsize rows from 1\nparam in in0: {dtype.value}[300*rows]\n"
        f"param out out0: {result}[300*rows]\nfor d0 in rows\nreduce r0 in 300\n"
        f"  %0: {dtype.value} = load in0[{at}]\n  %1: {result} = scan {op} %0\n"
        f"  store out0[{at}] = %1\n"
    )
    verify_kernel(kernel)
    return kernel


@pytest.mark.sweep
@pytest.mark.parametrize("is_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("op", SCAN_OPS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=lambda dtype: dtype.value)
def test_a_compiled_scan_equals_the_interpreter(op: str, dtype: DType, is_column: bool) -> None:
    if op == "logcumsumexp" and not dtype.is_float:
        pytest.skip("integers have no logcumsumexp")
    rows = 37
    random = np.random.default_rng(0)
    x = random.integers(-1 if dtype is not DType.U8 else 0, 4, rows * 300).astype(NUMPY[dtype])
    if dtype.is_float:
        x *= random.normal(size=x.size).astype(x.dtype)
        x[random.integers(0, x.size, 9)] = np.nan
        x[random.integers(0, x.size, 9)] = -np.inf
        x[random.integers(0, x.size, 3)] = np.inf
    kernel = scan_kernel(op, dtype, is_column=is_column)
    out = np.zeros(rows * 300, NUMPY[DType.I64] if op.endswith("_index") else x.dtype)
    both(kernel, {"in0": x, "out0": out}, {"rows": rows})


def test_a_long_running_sum_keeps_its_digits() -> None:
    # One rounding of f32 at each of 300,000 points would be off by about 1e-4.
    kernel = parse_kernel(
        "kernel long\nparam in in0: f32[300000]\nparam out out0: f32[300000]\nreduce r0 in 300000\n"
        "  %0: f32 = load in0[r0]\n  %1: f32 = scan cumsum %0\n  store out0[r0] = %1\n"
    )
    x = np.random.default_rng(1).random(300000).astype(np.float32)
    out = np.zeros_like(x)
    assert run(kernel, {"in0": x, "out0": out}) == 0
    np.testing.assert_allclose(out, np.cumsum(x.astype(np.float64)), rtol=2e-7)


def test_scans_between_reductions_run_in_the_phase_that_needs_them() -> None:
    kernel = parse_kernel((GOLDEN / "running.kernel").read_text())
    x = np.random.default_rng(0).normal(size=60).astype(np.float32)
    buffers = {
        "in0": x,
        "out0": np.zeros(60, np.float32),
        "out1": np.zeros(60, np.int64),
        "out2": np.zeros(5, np.float32),
    }
    both(kernel, buffers, {"s0": 5})


@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=lambda dtype: dtype.value)
def test_a_compiled_scatter_updates_in_order(mode: str, dtype: DType) -> None:
    kernel = parse_kernel(SCATTER.format(mode=mode, dtype=dtype.value))
    verify_kernel(kernel)
    random = np.random.default_rng(2)
    values = random.integers(1, 9, 4000).astype(NUMPY[dtype])
    if dtype.is_float:
        values[7] = np.nan
    buffers = {
        "at": random.integers(-100, 100, 1000),
        "by": values,
        "inout0": random.integers(1, 9, 400).astype(NUMPY[dtype]),
    }
    both(kernel, buffers, {"n": 1000})


def test_the_last_of_many_updates_of_one_element_wins() -> None:
    count = 200_000
    kernel = parse_kernel(
        f"kernel last\nparam in at: i64[{count}]\nparam inout inout0: i64[3]\nfor d0 in {count}\n"
        "  %0: i64 = load at[d0]\n  %1 = indirect %0 in 3\n  %2: i64 = index d0\n"
        "  store inout0[%1] = %2\n"
    )
    at = np.random.default_rng(3).integers(0, 3, count)
    out = np.full(3, -1)
    assert run(kernel, {"at": at, "inout0": out}, threads=4) == 0
    assert out.tolist() == [int(np.flatnonzero(at == k)[-1]) for k in range(3)]


@pytest.mark.parametrize("bad", [100, -101, 2**62])
def test_an_update_outside_its_extent_is_reported_and_changes_nothing(bad: int) -> None:
    kernel = parse_kernel(SCATTER.format(mode="add", dtype="f32"))
    buffers = {
        "at": np.array([bad]),
        "by": np.ones(4, np.float32),
        "inout0": np.zeros(400, np.float32),
    }
    assert run(kernel, buffers, {"n": 1}) == 1
    assert not buffers["inout0"].any()


def test_a_scattering_kernel_forks_no_threads() -> None:
    text = stage_text(built(parse_kernel(SCATTER.format(mode="add", dtype="f32"))), "llir")
    assert "GOMP_parallel" not in text
