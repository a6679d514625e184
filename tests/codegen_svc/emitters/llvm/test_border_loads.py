"""Rows at the border of an image are computed in vectors, and read nothing outside of it."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.llvm.border_loads import is_same_for_all, offset_in_row
from codegen_svc.emitters.llvm.text import I1, integer
from kernelfarm.ir.loop_ir import Kernel, Load
from kernelfarm.ir.text import parse_kernel, print_kernel
from tests.support.compiled_kernels import both, built, stage_text

pytestmark = pytest.mark.usefixtures("each_cpu_target")


def largest(rows: int, channels: int, dtype: str = "f32") -> Kernel:
    """The largest of an element and those of the rows before and behind it, where there are any."""
    elems = rows * channels
    return parse_kernel(f"""\
kernel largest
param in in0: {dtype}[{elems}]
param out out0: {dtype}[{elems}]
for d0 in {rows}
for d1 in {channels}
  %0: {dtype} = -inf
  %1: i64 = index d0
  %2: i64 = 1
  %3: bool = ge %1, %2
  %4: {dtype} = load in0[{channels}*d0 + d1 - {channels}] if %3 else %0
  %5: i64 = index d0 + 1
  %6: i64 = {rows}
  %7: bool = lt %5, %6
  %8: {dtype} = load in0[{channels}*d0 + d1 + {channels}] if %7 else %0
  %9: {dtype} = load in0[{channels}*d0 + d1]
  %10: {dtype} = maximum %4, %8
  %11: {dtype} = maximum %9, %10
  store out0[{channels}*d0 + d1] = %11
""")


def changed(old: str, new: str) -> Kernel:
    text = print_kernel(largest(6, 64))
    assert old in text
    return parse_kernel(text.replace(old, new))


def first_offset(kernel: Kernel) -> str:
    load = kernel.body[4]
    assert isinstance(load, Load)
    return str(offset_in_row(kernel, load, kernel.outer[-1], {}))


def test_a_row_of_lanes_may_begin_at_the_start_of_the_buffer() -> None:
    assert first_offset(largest(6, 64)) == "d1"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%1: i64 = index d0\n", "%1: i64 = index d0 + d1\n"),  # masks differ between lanes
        ("in0: f32[384]", "in0: f32[63]"),  # the buffer is shorter than a row
        ("64*d0 + d1 - 64]", "64*d0 - d1]"),  # a row would begin before the buffer
    ],
)
def test_other_loads_keep_their_branch(old: str, new: str) -> None:
    assert first_offset(changed(old, new)) == "None"


def test_a_buffer_that_is_written_keeps_its_branch() -> None:
    text = print_kernel(largest(6, 64)).replace("param out out0: f32[384]\n", "")
    kernel = parse_kernel(
        text.replace("param in in0", "param inout inout0")
        .replace("in0[", "inout0[")
        .replace("out0[64*d0 + d1] =", "inout0[64*d0 + d1] =")
    )
    assert first_offset(kernel) == "None"


def test_a_comparison_of_lanes_that_is_known_is_the_same_for_all() -> None:
    kernel = changed("%1: i64 = index d0\n", "%1: i64 = index d0 + d1\n")
    lane = kernel.outer[-1]
    assert not is_same_for_all(kernel, 3, lane, {})
    assert is_same_for_all(kernel, 3, lane, {3: integer(1, I1)})
    assert is_same_for_all(kernel, 7, lane, {})


@pytest.mark.parametrize(("rows", "channels"), [(6, 64), (2, 21), (3, 4097), (5, 1)])
def test_rows_at_the_border_are_computed_as_interpreted(rows: int, channels: int) -> None:
    kernel = largest(rows, channels)
    draw = np.random.default_rng(0).standard_normal
    both(
        kernel, {p.name: draw(p.size_elems.constant).astype(np.float32) for p in kernel.params}, {}
    )


def test_a_masked_element_is_not_used_even_if_it_is_nan() -> None:
    """What masked lanes read instead is the first row."""
    kernel = largest(6, 64)
    given = np.random.default_rng(0).standard_normal(384).astype(np.float32)
    given[:64] = np.nan
    both(kernel, {"in0": given, "out0": np.zeros(384, np.float32)}, {})


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_code_has_no_branches_for_the_border(dtype: str) -> None:
    kernel = largest(6, 64, dtype)
    llir = stage_text(built(kernel, "cpu:x86-64-v4"), "llir")
    inner, border = llir.split("rows.other:")
    assert "masked:" in inner
    assert "masked" not in border
