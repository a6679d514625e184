"""Kernels whose last axis alternates: a period becomes one point, and their numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.llvm.interleaved import with_interleaved_points
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Compute, Kernel, Load, Store
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel
from tests.support.compiled_kernels import run, run_targets

PAIRS = """\
kernel pairs
param in in0: u8[768]
param out out0: f32[1536]
for d0 in 12
for d1 in 128
  %0: i64 = index (d1%2)
  %1: i64 = 1
  %2: bool = ge %0, %1
  %3: u8 = 7
  %4: u8 = load in0[64*d0 + (d1//2)] if %2 else %3
  %5: u8 = 4
  %6: u8 = shr_arith %4, %5
  %7: bool = lt %0, %1
  %8: u8 = load in0[64*d0 + (d1//2)] if %7 else %3
  %9: u8 = 15
  %10: u8 = bit_and %8, %9
  %11: u8 = where %7, %10, %6
  %12: f32 = convert %11
  store out0[128*d0 + d1] = %12
"""

PIXELS = """\
kernel pixels
param in in0: f32[2048]
param out out0: f32[2048]
for d0 in 32
for d1 in 64
  %0: f32 = load in0[32*d0 + 1024*(d1%2) + (d1//2)]
  %1: i64 = index (d1%4)
  %2: f32 = convert %1
  %3: f32 = -0.0
  %4: f32 = 0.0
  %5: i64 = 2
  %6: bool = eq %1, %5
  %7: f32 = where %6, %3, %4
  %8: f32 = copysign %0, %7
  %9: f32 = add %8, %2
  store out0[64*d0 + d1] = %9
"""


def interpreted(kernel: Kernel, given: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, np.float32)
    run_kernel(kernel, {"in0": given, "out0": out}, {})
    return out


def input_of(kernel: Kernel) -> np.ndarray:
    param, draw = kernel.param("in0"), np.random.default_rng(0)
    size = param.size_elems.as_int()
    if param.dtype.is_float:
        return draw.standard_normal(size).astype(np.float32)
    return draw.integers(0, 256, size).astype(np.uint8)


@pytest.mark.parametrize(("text", "period"), [(PAIRS, 2), (PIXELS, 4)])
def test_a_period_is_one_point(text: str, period: int) -> None:
    kernel = parse_kernel(text)
    made = with_interleaved_points(kernel)
    verify_kernel(made)
    assert made.outer[-1].extent.as_int() == kernel.outer[-1].extent.as_int() // period
    assert sum(isinstance(s, Store) for s in made.body) == period
    given = input_of(kernel)
    size = kernel.param("out0").size_elems.as_int()
    expected, found = (interpreted(k, given, size) for k in (kernel, made))
    assert expected.tobytes() == found.tobytes()


def test_what_points_share_is_loaded_once_and_nothing_is_decided() -> None:
    made = with_interleaved_points(parse_kernel(PAIRS))
    (load,) = [s for s in made.body if isinstance(s, Load)]
    assert load.mask is None
    assert not [s for s in made.body if isinstance(s, Compute) and s.op in ("lt", "ge", "where")]


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("text", [PAIRS, PIXELS])
def test_compiled_kernels_give_the_numbers_of_the_interpreter(text: str, target: str) -> None:
    kernel = parse_kernel(text)
    given, size = input_of(kernel), kernel.param("out0").size_elems.as_int()
    for threads in (1, 3):
        out = np.full(size, np.nan, np.float32)
        assert run(kernel, {"in0": given, "out0": out}, threads=threads, target=target) == 0
        assert out.tobytes() == interpreted(kernel, given, size).tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("d1%2", "d1%3"),  # no small power of two
        ("d1 in 128", "d1 in 127"),  # no whole number of periods
        ("(d1%2)", "(d0%2)"),  # another axis
    ],
)
def test_other_kernels_stay_as_they_are(old: str, new: str) -> None:
    kernel = parse_kernel(PAIRS.replace(old, new))
    assert with_interleaved_points(kernel) is kernel


def test_a_buffer_that_is_read_and_written_keeps_its_order() -> None:
    text = PAIRS.replace("param out out0: f32[1536]", "param inout inout0: f32[1536]")
    kernel = parse_kernel(text.replace("store out0", "store inout0"))
    assert with_interleaved_points(kernel) is kernel


def test_long_kernels_stay_as_they_are() -> None:
    more = "\n".join(f"  %{n}: f32 = sqrt %{n - 1}" for n in range(13, 70))
    text = PAIRS.replace(
        "  store out0[128*d0 + d1] = %12", more + "\n  store out0[128*d0 + d1] = %69"
    )
    kernel = parse_kernel(text)
    assert with_interleaved_points(kernel) is kernel
