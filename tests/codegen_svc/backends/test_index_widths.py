"""Which kernels of varying sizes have variants with positions of 32 bits, and their conditions."""

from __future__ import annotations

import pytest

from codegen_svc.backends.triton_assumptions import plan_variants
from kernelfarm.ir.artifact import GuardOp, GuardSubject
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

LIMIT = (1 << 31) - (1 << 20)

SUM = """\
kernel sums
size s0 from 2
size s1 from 2
size s2 from 2
param in in0: f32[{elems}]
param out out0: f32[s0]
for d0 in s0
reduce r0 in {width}
  %0: f32 = load in0[{index}]
  %1: f32 = sum %0
  store out0[d0] = %1
"""


def widths_and_limits(elems: str, width: str, index: str) -> tuple[list[int], dict[str, int]]:
    """The bits of each variant's positions, and the sizes that the first one limits."""
    kernel = parse_kernel(SUM.format(elems=elems, width=width, index=index))
    planned = plan_variants(kernel, target_facts("cuda:sm_90a").memory, uses_pointer_range=False)
    limits = {
        str(atom.name): atom.operand
        for atom in planned[0].guard
        if (atom.subject, atom.op) == (GuardSubject.SYMBOL, GuardOp.LT)
    }
    return [variant.index_bits for variant in planned], limits


@pytest.mark.parametrize(
    ("elems", "width", "index"),
    [
        ("s0*s1*s2", "s1*s2", "s1*s2*d0 + r0"),  # all pixels of a channel
        ("s0*s1", "s1", "s1*d0 + r0"),
        ("s0*s1*s2", "s1", "s2*r0 + d0"),  # the other elements of the buffer are more
    ],
)
def test_a_reduction_within_a_buffer_needs_no_condition_of_its_own(elems, width, index) -> None:
    bits, limits = widths_and_limits(elems, width, index)
    assert set(bits[:-1]) == {32}
    assert bits[-1] == 64
    assert limits == {}


def test_a_slice_is_no_longer_than_the_size_that_is_divided() -> None:
    slices = "max(1, min(512, (s1//16)))"
    length = f"((s1 - 1)//{slices}) + 1"
    bits, limits = widths_and_limits("s0*s1*s2", length, "s0*r0 + d0")
    assert bits[0] == 32
    assert bits[-1] == 64
    assert limits == {"s1": LIMIT}


def test_a_reduction_over_more_points_than_any_buffer_has_keeps_64_bits() -> None:
    bits, _ = widths_and_limits("s0*s1", "s1*s2", "s1*d0 + (r0 % s1)")
    assert set(bits) == {64}
