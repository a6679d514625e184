"""Scales of groups of terms in products: loaded once for each column of a step."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.product_tiling import product_tiling
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.triton_cases import expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")


def scaled(rows: int, columns: int, terms: int, group: int, *, has_weight: bool = True) -> Kernel:
    """Sums of x times integers times scales of groups, or times scales alone."""
    groups = -(-terms // group)
    product = "mul %3, %4" if has_weight else "add %4, %4"
    return parse_kernel(f"""\
kernel scaled
param in in0: f16[{rows * terms}]
param in in1: i8[{columns * terms}]
param in in2: f32[{columns * groups}]
param out out0: f32[{rows * columns}]
for d0 in {rows}
for d1 in {columns}
reduce r0 in {terms}
  %0: f16 = load in0[{terms}*d0 + r0]
  %1: f32 = convert %0
  %2: i8 = load in1[{terms}*d1 + r0]
  %3: f32 = convert %2
  %4: f32 = load in2[{groups}*d1 + (r0//{group})]
  %5: f32 = {product}
  %6: f16 = convert %5
  %7: f32 = convert %6
  %8: f32 = mul %1, %7
  %9: f32 = sum %8
  store out0[{columns}*d0 + d1] = %9
""")


def tiling_of(kernel: Kernel) -> Tiling:
    found = find_contraction(kernel)
    assert found is not None
    tiling = product_tiling(kernel, found, TARGET, 32)
    assert tiling is not None
    return tiling


def scale_line(kernel: Kernel) -> str:
    text = emit_triton(kernel, tiling_of(kernel), scalar_rules(TARGET, kernel)).text
    (line,) = [line.strip() for line in text.splitlines() if "tl.load(in2_ptr" in line]
    return line


def test_a_step_within_a_group_loads_one_scale_for_each_column() -> None:
    kernel = scaled(3, 4096, 4096, 128)
    assert "in2_ptr + ((koffset // 128) + 32 * rindex)" in scale_line(kernel)


def test_steps_are_no_longer_than_groups_and_have_as_many_bytes_on_their_way() -> None:
    short, long = (tiling_of(scaled(3, 4096, 4096, group)) for group in (128, 512))
    assert (short.kblock, short.num_stages) == (128, 7)
    assert (long.kblock, long.num_stages) == (256, 4)


@pytest.mark.parametrize(
    "kernel",
    [
        scaled(3, 4096, 4096, 32),
        scaled(3, 4096, 4096, 100),
        scaled(3, 4096, 4064, 128),  # the last step is not whole
        scaled(3, 4096, 4096, 128, has_weight=False),  # the factor would have no points
    ],
    ids=["short groups", "other groups", "a rest", "no weight"],
)
def test_other_scales_are_loaded_for_each_point(kernel: Kernel) -> None:
    assert "kcolumn // " in scale_line(kernel)
    assert tiling_of(kernel).kblock == 256


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "group"), [(3, 40, 256, 128), (17, 33, 384, 64), (5, 20, 192, 64)]
)
def test_products_by_groups_equal_the_loop_interpreter(
    rows: int, columns: int, terms: int, group: int
) -> None:
    kernel = scaled(rows, columns, terms, group)
    given = random_buffers(kernel, {})
    assert "koffset // " in scale_line(kernel)
    (result,) = run_interpreted([interpreter_case(kernel, given, {}, tiling_of(kernel))])
    assert not isinstance(result, str), result
    reference = expected(kernel, given, {})["out0"]
    np.testing.assert_allclose(result[-1], reference, rtol=1e-4, atol=1e-3)
