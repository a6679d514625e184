"""Lanes past the end of a row hold what their reductions ignore, so that nothing selects."""

from __future__ import annotations

import math

import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.past_rows import past_values, row_fill
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

TARGET = target_facts("cuda:sm_90a")
SHARES = (
    "%1: f32 = amax %0",
    "%2: f32 = sub %0, %1",
    "%3: f32 = exp %2",
    "%4: f32 = sum %3",
)
VARIANCE = (
    "%1: f32 = sum %0",
    "%2: f32 = sub %0, %1",
    "%3: f32 = mul %2, %2",
    "%4: f32 = sum %3",
)


def kernel_of(*lines: str, width: int = 20) -> Kernel:
    """A kernel over rows that starts with %0, an element, and stores the last value for each."""
    last = lines[-1].partition(":")[0]
    body = "".join(f"  {line}\n" for line in (*lines, f"store out0[d0] = {last}"))
    return parse_kernel(
        "kernel k\n"
        f"param in in0: f32[{4 * max(width, 1)}]\n"
        "param out out0: f32[4]\n"
        f"for d0 in 4\nreduce r0 in {width}\n"
        f"  %0: f32 = load in0[{max(width, 1)}*d0 + r0]\n{body}"
    )


def text_of(kernel: Kernel, rblock: int = 32) -> str:
    tiling = Tiling(1, 1, rblock, rblock == 32, 32)
    return emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text


@pytest.mark.parametrize("rblock", [8, 32])
def test_a_softmax_selects_nothing(rblock: int) -> None:
    text = text_of(kernel_of(*SHARES), rblock)
    assert 'other=float("-inf")' in text
    assert "tl.where(rmask" not in text


@pytest.mark.parametrize("rblock", [8, 32])
def test_a_sum_of_squares_selects_what_is_squared(rblock: int) -> None:
    text = text_of(kernel_of(*VARIANCE), rblock)
    assert "other=0.0" in text
    assert text.count("tl.where(rmask") == 1
    assert "kf_square(tl.where(rmask, sub_2, 0.0))" in text


@pytest.mark.parametrize(
    "lines",
    [
        ("%1: f32 = abs %0", "%2: f32 = amax %1"),
        ("%1: f32 = 1.0", "%2: f32 = add %0, %1", "%3: f32 = sum %2"),
        ("%1: f32 = exp %0", "%2: f32 = amax %1"),
    ],
)
def test_a_value_that_is_not_known_is_selected(lines: tuple[str, ...]) -> None:
    assert "tl.where(rmask" in text_of(kernel_of(*lines))


def test_numbers_follow_the_arithmetic_of_infinity_and_zero() -> None:
    kernel = kernel_of(
        "%1: f32 = exp %0", "%2: f32 = mul %1, %0", "%3: f32 = neg %0", "%4: f32 = sum %1"
    )
    assert past_values(kernel, -math.inf)[:4] == (-math.inf, 0.0, None, math.inf)
    assert past_values(kernel, 0.0)[:4] == (0.0, None, None, 0.0)
    assert row_fill(kernel) == -math.inf


def test_an_empty_row_is_filled_with_zeros() -> None:
    assert row_fill(kernel_of(*SHARES, width=0)) == 0.0


@pytest.mark.parametrize(("other", "selects"), [("%5", False), ("%6", True)])
def test_a_masked_load_has_its_other_value_past_the_end(other: str, selects: bool) -> None:
    kernel = parse_kernel(
        "kernel k\nparam in in0: f32[80]\nparam out out0: f32[4]\n"
        "for d0 in 4\nreduce r0 in 20\n"
        "  %0: i64 = index r0\n  %1: i64 = 7\n  %2: bool = lt %0, %1\n"
        "  %3: f32 = 0.0\n  %4: f32 = 1.0\n  %5: f32 = 0.0\n  %6: f32 = 2.0\n"
        f"  %7: f32 = load in0[20*d0 + r0] if %2 else {other}\n"
        "  %8: f32 = where %2, %7, %3\n  %9: f32 = sum %8\n  store out0[d0] = %9\n"
    )
    assert ("tl.where(rmask" in text_of(kernel)) == selects


def test_positions_that_are_only_compared_have_the_bits_of_indices() -> None:
    def text(index_bits: int, value: str) -> str:
        kernel = parse_kernel(
            "kernel k\nparam in in0: f32[80]\nparam out out0: f32[80]\nfor d0 in 80\n"
            "  %0: i64 = index 3*d0\n  %1: i64 = 7\n  %2: bool = lt %0, %1\n"
            f"  %3: f32 = load in0[d0]\n  %4: f32 = convert {value}\n"
            "  %5: f32 = where %2, %3, %4\n  store out0[d0] = %5\n"
        )
        tiling = Tiling(128, 128, 0, False, index_bits)
        return emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text

    assert ".to(tl.int64)" not in text(32, "%3").partition("xindex")[2]
    assert ".to(tl.int64)" in text(32, "%0").partition("xindex")[2]  # read as a value, too
    assert "tl.int64" in text(64, "%3")
