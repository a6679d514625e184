"""Compiled sorts: against the interpreter, of short and long rows, among reductions and scans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel
from tests.support.compiled_kernels import NUMPY, both, built, run, stage_text
from tests.support.examples import examples
from tests.support.loop_kernels.sorts import AMONG_OTHERS, row_elements

pytestmark = pytest.mark.usefixtures("each_cpu_target")

INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL)
TYPES = (DType.F32, DType.F64, *INTEGERS)


def sort_kernel(dtype: DType, order: str, *, is_column: bool = False) -> Kernel:
    """Sorts the rows of [rows, width], or the columns of [width, rows]."""
    at = "rows*r0 + d0" if is_column else "width*d0 + r0"
    kernel = parse_kernel(
        f"kernel sort_{dtype.value}\nsize rows from 1\nsize width from 0 to 100000\n"
        f"param in in0: {dtype.value}[width*rows]\nparam out out0: i64[width*rows]\n"
        "for d0 in rows\nreduce r0 in width\n"
        f"  %0: {dtype.value} = load in0[{at}]\n  %1: i64 = sort {order} %0\n"
        f"  store out0[{at}] = %1\n"
    )
    verify_kernel(kernel)
    return kernel


@pytest.mark.sweep
@pytest.mark.parametrize("is_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.value)
def test_a_compiled_sort_equals_the_interpreter(dtype: DType, order: str, is_column: bool) -> None:
    kernel = sort_kernel(dtype, order, is_column=is_column)
    for width in (0, 1, 2, 15, 16, 17, 33, 100, 1500):
        x = row_elements(dtype, 7 * width, seed=width)
        out = np.full(7 * width, -1)
        both(kernel, {"in0": x, "out0": out}, {"rows": 7, "width": width})


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=80))
def test_whole_integers_of_64_bits_are_compared(row: list[int]) -> None:
    x, out = np.array(row, np.int64), np.zeros(len(row), np.int64)
    kernel = sort_kernel(DType.I64, "descending")
    assert run(kernel, {"in0": x, "out0": out}, {"rows": 1, "width": len(row)}) == 0
    assert x[out].tolist() == sorted(row, reverse=True)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda dtype: dtype.value)
def test_a_long_row_is_sorted_in_memory_of_its_own(dtype: DType) -> None:
    kernel = sort_kernel(dtype, "ascending")
    x = np.random.default_rng(4).normal(size=200_000).astype(NUMPY[dtype])
    out = np.zeros(x.size, np.int64)
    assert run(kernel, {"in0": x, "out0": out}, {"rows": 2, "width": 100_000}, threads=2) == 0
    reference = np.argsort(x.reshape(2, -1), axis=1, kind="stable")
    np.testing.assert_array_equal(out.reshape(2, -1), reference)
    assert "@malloc" in stage_text(built(kernel), "llir")


def test_short_rows_lie_on_the_stack() -> None:
    kernel = parse_kernel(
        "kernel short\nparam in in0: f32[640]\nparam out out0: i64[640]\nfor d0 in 10\n"
        "reduce r0 in 64\n  %0: f32 = load in0[64*d0 + r0]\n  %1: i64 = sort ascending %0\n"
        "  store out0[64*d0 + r0] = %1\n"
    )
    assert "malloc" not in stage_text(built(kernel), "llir")
    x, out = row_elements(DType.F32, 640), np.zeros(640, np.int64)
    both(kernel, {"in0": x, "out0": out}, {})


def test_sorts_among_reductions_and_scans_run_in_the_phase_that_can() -> None:
    kernel = parse_kernel(AMONG_OTHERS)
    verify_kernel(kernel)
    buffers = {
        "in0": np.random.default_rng(0).random(210).astype(np.float32),
        "out0": np.zeros(210, np.float32),
        "out1": np.zeros(7, np.float32),
        "out2": np.zeros(210, np.int64),
        "out3": np.zeros(210, np.float32),
    }
    reference = {name: array.copy() for name, array in buffers.items()}
    run_kernel(kernel, reference, {})
    assert np.unique(reference["out3"]).size > 200
    both(kernel, buffers, {})
