"""In which loop over a row its results are written."""

from __future__ import annotations

import pytest

from codegen_svc.emitters.triton.phases import plan_phases
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.loop_ir import Access, Kernel, Store
from kernelfarm.ir.text import parse_kernel
from tests.support.triton_cases import assert_same, expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import run_interpreted


def gradients(access: str, *, read: str = "300*d0 + r0", divisor: str = "%3") -> Kernel:
    """A gradient that replaces one of its operands, and its sum; `divisor` divides the results."""
    name = "inout0" if access == "inout" else "in0"
    written = "inout0" if access == "inout" else "out1"
    more = "" if access == "inout" else "param out out1: f32[3900]\n"
    return parse_kernel(f"""\
kernel gradients
param {access} {name}: f32[3900]
param in in1: f32[3900]
{more}param out out0: f32[13]
for d0 in 13
reduce r0 in 300
  %0: f32 = load {name}[{read}]
  %1: f32 = load in1[300*d0 + r0]
  %2: f32 = mul %0, %1
  %3: f32 = exp %1
  %4: f32 = sum %2
  %5: f32 = div %2, {divisor}
  store {written}[300*d0 + r0] = %5
  store out0[d0] = %4
""")


def loops_of(kernel: Kernel) -> list[bool]:
    """For each loop whether it writes what varies along a row."""
    return [
        any(isinstance(kernel.body[n], Store) for n in phase.within)
        for phase in plan_phases(kernel)
        if phase.within
    ]


@pytest.mark.parametrize("access", ["in", "inout"])
def test_what_needs_no_sum_is_written_by_the_loop_that_sums(access: str) -> None:
    assert loops_of(gradients(access)) == [True]


def test_what_needs_the_sum_is_written_by_a_later_loop() -> None:
    assert loops_of(gradients("inout", divisor="%4")) == [False, True]


def test_a_buffer_that_a_later_loop_reads_is_written_there() -> None:
    kernel = parse_kernel("""\
kernel two_results
param inout inout0: f32[3900]
param out out0: f32[3900]
for d0 in 13
reduce r0 in 300
  %0: f32 = load inout0[300*d0 + r0]
  %1: f32 = sum %0
  %2: f32 = exp %0
  store inout0[300*d0 + r0] = %2
  %4: f32 = sub %0, %1
  store out0[300*d0 + r0] = %4
""")
    assert loops_of(kernel) == [False, True]


def test_a_buffer_that_is_read_elsewhere_is_written_by_the_last_loop() -> None:
    kernel = gradients("inout", read="3899 - 300*d0 - r0")
    assert loops_of(kernel) == [False, True]


@pytest.mark.parametrize("rblock", [64, 512])
def test_results_in_place_equal_the_loop_interpreter(rblock: int) -> None:
    kernels = [gradients("inout"), gradients("inout", divisor="%4")]
    buffers = [random_buffers(kernel, {}) for kernel in kernels]
    tiling = Tiling(4, 4, rblock, False, 32)
    launches = [
        interpreter_case(kernel, given, {}, tiling)
        for kernel, given in zip(kernels, buffers, strict=True)
    ]
    for kernel, given, result in zip(kernels, buffers, run_interpreted(launches), strict=True):
        assert not isinstance(result, str), result
        reference = expected(kernel, given, {})
        for param, got in zip(kernel.params, result, strict=True):
            if param.access is not Access.READ:
                assert_same(param.dtype, got, reference[param.name])
