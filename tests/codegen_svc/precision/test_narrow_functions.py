"""Which calls take the precision of f16 and bf16 results, and which keep that of f32."""

from __future__ import annotations

import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling, gpu_tiling
from codegen_svc.precision.narrow_functions import narrow_functions, with_narrow_functions
from kernelfarm.ir.loop_ir import Compute, Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

SM_90 = target_facts("cuda:sm_90a")

GELU = """
  %2: f32 = 0.7071067811865476
  %3: f32 = mul %1, %2
  %4: f32 = erf %3
  %5: f32 = 1.0
  %6: f32 = add %4, %5
  %7: f32 = 0.5
  %8: f32 = mul %1, %7
  %9: f32 = mul %8, %6
"""
STORED = """
  %10: bf16 = convert %9
  store out0[8*d0 + r0] = %10
"""


def kernel_of(lines: str, *, out: str = "bf16") -> Kernel:
    """A kernel over rows of 8 that starts with %1, an f32 made of bf16."""
    body = "\n".join(line for line in lines.splitlines() if line.strip())
    return parse_kernel(
        "kernel k\n"
        "param in in0: bf16[64]\n"
        f"param out out0: {out}[64]\n"
        "for d0 in 8\nreduce r0 in 8\n"
        "  %0: bf16 = load in0[8*d0 + r0]\n"
        f"  %1: f32 = convert %0\n{body}\n"
    )


def functions(lines: str, *, out: str = "bf16") -> tuple[str, ...]:
    return narrow_functions(with_narrow_functions(kernel_of(lines, out=out)))


def test_the_sum_of_one_and_erf_becomes_one_function_of_a_narrow_store() -> None:
    assert functions(GELU + STORED) == ("1 + erf",)
    assert functions(GELU + STORED.replace("bf16", "f16"), out="f16") == ("1 + erf",)


SILU = """\
  %2: f32 = neg %1
  %3: f32 = exp %2
  %4: f32 = 1.0
  %5: f32 = add %3, %4
  %6: f32 = div %1, %5
"""
SOFTMAX = """\
  %2: f32 = amax %1
  %3: f32 = sub %1, %2
  %4: f32 = exp %3
  %5: f32 = sum %4
  %6: f32 = div %4, %5
"""
ROUNDED = "  %7: bf16 = convert %6\n  store out0[8*d0 + r0] = %7"


def flushing_forms(lines: str, *, out: str = "bf16") -> list[str]:
    """The operations of a kernel's statements that its last one needs, with a flushing exp."""
    kernel = with_narrow_functions(kernel_of(lines, out=out), has_flushing_exp=True)
    return [s.op for s in kernel.body if isinstance(s, Compute) and s.op.startswith("narrow")]


def test_a_quotient_by_one_and_an_exponential_becomes_one_form_of_a_narrow_store() -> None:
    assert "narrow_over_one_plus_exp" in flushing_forms(SILU + ROUNDED)
    assert flushing_forms(SILU + "  store out0[8*d0 + r0] = %6", out="f32") == []


def test_a_softmax_takes_the_chip_s_exponential_and_one_reciprocal_of_a_row() -> None:
    two_passes = SOFTMAX.partition("  %5")[0] + (
        "  %5: f32 = exp %3\n  %6: f32 = sum %5\n  %7: f32 = div %4, %6\n"
    )
    rounded = "  %8: bf16 = convert %7\n  store out0[8*d0 + r0] = %8"
    assert flushing_forms(two_passes + rounded) == ["narrow_exp", "narrow_exp_share"]
    stored = two_passes + "  store out0[8*d0 + r0] = %7"
    assert flushing_forms(stored, out="f32") == ["narrow_exp"]


def test_an_exponential_that_is_stored_keeps_subnormal_results() -> None:
    assert flushing_forms(SOFTMAX + ROUNDED) == ["narrow_exp_share"]


def test_a_sum_of_exponentials_without_their_largest_keeps_subnormal_ones() -> None:
    lines = SOFTMAX.replace("%2: f32 = amax %1", "%2: f32 = amin %1") + ROUNDED
    assert flushing_forms(lines) == []


def test_no_form_needs_assembly_where_a_target_lacks_it() -> None:
    assert with_narrow_functions(kernel_of(SILU + ROUNDED)).body == kernel_of(SILU + ROUNDED).body


def test_a_store_of_f32_keeps_full_precision() -> None:
    assert functions(GELU + "  store out0[8*d0 + r0] = %9", out="f32") == ()


def test_a_second_use_that_needs_precision_keeps_it() -> None:
    reduced = GELU + "  %10: f32 = sum %9\n  %11: f32 = mul %9, %10\n  %12: bf16 = convert %11\n"
    assert functions(reduced + "  store out0[8*d0 + r0] = %12") == ()


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("compared", "%3: bool = gt %2, %1\n  %4: f32 = where %3, %1, %2"),
        ("floored", "%3: f32 = floor %2\n  %4: f32 = mul %3, %1"),
        ("added to a value of any sign", "%3: f32 = neg %1\n  %4: f32 = add %3, %2"),
        ("in an exponent", "%3: f32 = neg %2\n  %4: f32 = exp %3"),
        ("subtracted from one", "%3: f32 = 1.0\n  %4: f32 = sub %3, %2"),
    ],
)
def test_tanh_keeps_full_precision_where_it_is(name: str, rest: str) -> None:
    lines = f"  %2: f32 = tanh %1\n  {rest}\n  %5: bf16 = convert %4\n  store out0[8*d0 + r0] = %5"
    assert functions(lines) == (), name


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("multiplied", "%3: f32 = neg %2\n  %4: f32 = mul %3, %1"),
        ("added to a value of its sign", "%3: f32 = abs %2\n  %4: f32 = add %3, %3"),
        (
            "rounded before a sum",
            "%3: bf16 = convert %2\n  %6: f32 = convert %3\n  %4: f32 = add %6, %1",
        ),
    ],
)
def test_tanh_is_narrow_where_it_is(name: str, rest: str) -> None:
    rest = rest.replace("%4", "%5").replace("%6", "%4") if "%6" in rest else rest
    value = 5 if "%5" in rest else 4
    lines = f"  %2: f32 = tanh %1\n  {rest}\n  %{value + 1}: bf16 = convert %{value}"
    assert functions(f"{lines}\n  store out0[8*d0 + r0] = %{value + 1}") == ("tanh",), name


def test_rounded_values_that_are_compared_need_precision() -> None:
    lines = "  %2: f32 = tanh %1\n  %3: bf16 = convert %2\n  %4: f32 = convert %3\n"
    lines += "  %5: bool = gt %4, %1\n  %6: f32 = where %5, %4, %1\n  %7: bf16 = convert %6\n"
    assert functions(lines + "  store out0[8*d0 + r0] = %7") == ()


def test_many_errors_in_one_value_are_refused() -> None:
    def power(squarings: int) -> str:
        lines = ["  %2: f32 = tanh %1"]
        lines += [f"  %{n + 3}: f32 = mul %{n + 2}, %{n + 2}" for n in range(squarings)]
        last = squarings + 3
        lines += [f"  %{last}: bf16 = convert %{last - 1}", f"  store out0[8*d0 + r0] = %{last}"]
        return "\n".join(lines)

    assert functions(power(3)) == ("tanh",)
    assert functions(power(4)) == ()


def test_text_and_notes_name_the_functions_and_drop_what_a_form_replaces() -> None:
    kernel = kernel_of(GELU + STORED)
    for tiling in (gpu_tiling(kernel, SM_90, 32), Tiling(1, 1, 4, False, 32)):
        assert tiling is not None
        source = emit_triton(kernel, tiling, scalar_rules(SM_90, kernel))
        assert "# at the precision of f16 and bf16 results: 1 + erf\n" in source.text
        assert source.notes == ("at the precision of f16 and bf16 results: 1 + erf",)
        assert "tl.erf" not in source.text
        assert "kf_narrow_erf" not in source.text


def test_vector_cores_keep_full_precision() -> None:
    ascend = target_facts("ascend:910b")
    kernel = kernel_of(GELU + STORED)
    source = emit_triton(kernel, Tiling(1, 1, 8, True, 32), scalar_rules(ascend, kernel))
    assert "tl.erf" in source.text and not source.notes
