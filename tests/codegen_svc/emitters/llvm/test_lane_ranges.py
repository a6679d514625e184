"""Comparisons of the axes with constants divide the loops, with the same results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from codegen_svc.emitters.llvm.lane_ranges import (
    MAX_RANGES,
    lane_ranges,
    row_ranges,
    usual_conditions,
)
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from tests.support.compiled_kernels import both, built, stage_text

pytestmark = pytest.mark.usefixtures("each_cpu_target")


def window(rows: int = 6, columns: int = 21) -> Kernel:
    """The sum of an element, the next row's and the previous column's; those outside are 7."""
    elems = rows * columns
    return parse_kernel(f"""\
kernel window
param in in0: f32[{elems}]
param out out0: f32[{elems}]
for d0 in {rows}
for d1 in {columns}
  %0: f32 = 7.0
  %1: i64 = index d0 + 1
  %2: i64 = {rows}
  %3: bool = lt %1, %2
  %4: f32 = load in0[{columns}*d0 + d1 + {columns}] if %3 else %0
  %5: i64 = index d1
  %6: i64 = 1
  %7: bool = ge %5, %6
  %8: f32 = load in0[{columns}*d0 + d1 - 1] if %7 else %0
  %9: i64 = index d0
  %10: bool = ge %9, %6
  %11: f32 = load in0[{columns}*d0 + d1 - {columns}] if %10 else %0
  %12: f32 = load in0[{columns}*d0 + d1]
  %13: f32 = add %4, %8
  %14: f32 = add %12, %13
  %15: f32 = add %11, %14
  store out0[{columns}*d0 + d1] = %15
""")


def concatenation(first: int, second: int, rows: int = 3) -> Kernel:
    """Rows of one buffer beside those of another."""
    width = first + second
    return parse_kernel(f"""\
kernel concatenation
param in in0: f32[{rows * first}]
param in in1: f32[{rows * second}]
param out out0: f32[{rows * width}]
for d0 in {rows}
for d1 in {width}
  %0: i64 = index d1
  %1: i64 = {first}
  %2: bool = lt %0, %1
  %3: bool = gt %1, %0
  %4: f32 = 0.0
  %5: f32 = load in0[{first}*d0 + d1] if %2 else %4
  %6: bool = ge %0, %1
  %7: f32 = load in1[{second}*d0 + d1 - {first}] if %6 else %4
  %8: f32 = where %2, %5, %7
  store out0[{width}*d0 + d1] = %8
""")


def random_buffers(kernel: Kernel) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        p.name: generator.standard_normal(p.size_elems.constant).astype(np.float32)
        for p in kernel.params
    }


def borders(kernel: Kernel) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in lane_ranges(kernel, kernel.outer[-1])]


def test_a_comparison_is_known_in_each_range() -> None:
    ranges = lane_ranges(window(), window().outer[-1])
    assert [(r.first, r.last, r.known) for r in ranges] == [
        (0, 1, ((7, False),)),
        (1, 21, ((7, True),)),
    ]


def test_the_conditions_of_inner_rows_select_a_version() -> None:
    assert usual_conditions(window(), window().outer[-1], 2) == (3, 10)


def test_one_condition_on_rows_is_not_worth_a_version() -> None:
    assert usual_conditions(concatenation(5, 4), concatenation(5, 4).outer[-1], 2) == ()


def stacked(first: int, second: int, columns: int = 21, dtype: str = "bf16") -> Kernel:
    """Rows of one buffer, and behind them the roots of those of another."""
    rows = first + second
    return parse_kernel(f"""\
kernel stacked
param in in0: {dtype}[{first * columns}]
param in in1: {dtype}[{second * columns}]
param out out0: {dtype}[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
  %0: i64 = index d0
  %1: i64 = {first}
  %2: bool = lt %0, %1
  %3: {dtype} = 0.0
  %4: {dtype} = load in0[{columns}*d0 + d1] if %2 else %3
  %5: f32 = convert %4
  %6: bool = ge %0, %1
  %7: {dtype} = load in1[{columns}*d0 + d1 - {columns * first}] if %6 else %3
  %8: f32 = convert %7
  %9: f32 = sqrt %8
  %10: f32 = where %2, %5, %9
  %11: {dtype} = convert %10
  store out0[{columns}*d0 + d1] = %11
""")


def test_each_operand_of_stacked_rows_has_a_version() -> None:
    kernel = stacked(5, 4)
    found = row_ranges(kernel, kernel.outer[-1], 1)
    assert found is not None
    axis, ranges = found
    assert axis is kernel.outer[0]
    assert [(r.first, r.last, r.known) for r in ranges] == [
        (0, 5, ((2, True), (6, False))),
        (5, 9, ((2, False), (6, True))),
    ]


def test_few_rows_are_not_worth_a_version() -> None:
    for kernel in (stacked(5, 3), stacked(9, 0), concatenation(5, 4)):
        assert row_ranges(kernel, kernel.outer[-1], 1) is None


@pytest.mark.parametrize(("first", "second", "columns"), [(5, 4, 21), (4, 70, 9000), (16, 16, 640)])
def test_stacked_rows_are_computed_as_interpreted(first: int, second: int, columns: int) -> None:
    kernel = stacked(first, second, columns)
    draw = np.random.default_rng(0).random
    buffers = {
        p.name: draw(p.size_elems.constant).astype(ml_dtypes.bfloat16) for p in kernel.params
    }
    both(kernel, buffers, {})


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_loops_of_stacked_rows_have_vectors(dtype: str) -> None:
    """LLVM leaves a loop with several masked loads of 16 bits scalar."""
    asm = stage_text(built(stacked(16, 16, 640, dtype), "cpu:x86-64-v4"), "asm")
    assert "vsqrtps\t%zmm" in asm


def test_a_concatenation_has_a_range_for_each_operand() -> None:
    assert borders(concatenation(5, 4)) == [(0, 5), (5, 9)]


def test_many_ranges_stay_one_loop_with_masks() -> None:
    count = MAX_RANGES + 1
    lines = [
        f"  %{2 * n + 1}: i64 = {n + 1}\n  %{2 * n + 2}: bool = lt %0, %{2 * n + 1}"
        for n in range(count)
    ]
    last = 2 * count + 1
    kernel = parse_kernel(
        "kernel steps\nparam out out0: f32[64]\nfor d0 in 64\n  %0: i64 = index d0\n"
        + "\n".join(lines)
        + f"\n  %{last}: f32 = convert %{last - 1}\n  store out0[d0] = %{last}\n"
    )
    assert borders(kernel) == []


@pytest.mark.parametrize(("rows", "columns"), [(6, 21), (1, 1), (2, 2), (3, 70), (2, 9001)])
def test_a_window_with_padding_is_computed_as_interpreted(rows: int, columns: int) -> None:
    kernel = window(rows, columns)
    both(kernel, random_buffers(kernel), {})


@pytest.mark.parametrize(
    ("first", "second"), [(5, 4), (1, 64), (4096, 4097), (9000, 1), (100, 9000)]
)
def test_a_concatenation_is_computed_as_interpreted(first: int, second: int) -> None:
    kernel = concatenation(first, second)
    both(kernel, random_buffers(kernel), {})


def halves(columns: int) -> Kernel:
    """Rows that are read from two halves, by the position in 8 rows of some columns."""
    return parse_kernel(f"""\
kernel halves
param in in0: u8[{4 * columns}]
param out out0: f32[{8 * columns}]
for d0 in 8
for d1 in {columns}
  %0: i64 = index {columns}*d0 + d1
  %1: i64 = {4 * columns}
  %2: bool = ge %0, %1
  %3: u8 = 0
  %4: u8 = load in0[{columns}*d0 + d1 - {4 * columns}] if %2 else %3
  %5: bool = lt %0, %1
  %6: u8 = load in0[{columns}*d0 + d1] if %5 else %3
  %7: u8 = where %5, %6, %4
  %8: f32 = convert %7
  store out0[{columns}*d0 + d1] = %8
""")


def test_a_multiple_of_an_axis_decides_what_is_added_to_it() -> None:
    kernel = halves(40)
    found = row_ranges(kernel, kernel.outer[-1], 1)
    assert found is not None
    axis, ranges = found
    assert (axis.name, [(each.first, each.last) for each in ranges]) == ("d0", [(0, 4), (4, 8)])
    assert [dict(each.known) for each in ranges] == [{2: False, 5: True}, {2: True, 5: False}]


def test_what_is_added_to_a_multiple_decides_beside_its_limit() -> None:
    """Of 40 * d0 + d1 < 150, row 3 has both."""
    text = print_kernel(halves(40)).replace("%1: i64 = 160", "%1: i64 = 150")
    kernel = parse_kernel(text)
    assert row_ranges(kernel, kernel.outer[-1], 1) is None


@pytest.mark.parametrize("columns", [40, 37])
def test_numbers_of_halves_are_right(columns: int) -> None:
    given = np.random.default_rng(0).integers(0, 256, 4 * columns).astype(np.uint8)
    both(halves(columns), {"in0": given, "out0": np.zeros(8 * columns, np.float32)}, {})
