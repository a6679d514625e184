"""Products of matrices are recognized by the axes of the factors, and nothing else is."""

from __future__ import annotations

import pytest

from kernelfarm.ir.contractions import find_contraction, statement_axes
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from tests.support.loop_kernels import emitter_shapes
from tests.support.product_kernels import batched, gated, linear, scaled, sliced, vector


def changed(kernel: Kernel, *replacements: tuple[str, str]) -> Kernel:
    """The kernel with changes of its text, each of which is in it."""
    text = print_kernel(kernel)
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return parse_kernel(text)


def test_rows_are_axes_of_one_factor_and_columns_those_of_the_other() -> None:
    found = find_contraction(scaled(32))
    assert found is not None
    assert [axis.name for axis in found.rows] == ["d0"]
    assert [axis.name for axis in found.columns] == ["d1", "d2"]
    (only,) = found.sums
    # The left factor is the rows' one, although the multiplication names it second.
    assert (only.number, only.left, only.right) == (13, 4, 10)


def test_products_of_one_kernel_share_a_factor() -> None:
    found = find_contraction(gated(8, 16, 32))
    assert found is not None
    assert [(s.left, s.right) for s in found.sums] == [(0, 2), (0, 6)]


def test_a_vector_by_a_matrix_of_contiguous_columns_has_no_rows() -> None:
    kernel = vector(16, 32)
    found = find_contraction(kernel)
    assert found is not None
    assert (found.rows, found.has_columns) == ((), True)
    turned = changed(kernel, ("load in1[d0 + 16*r0]", "load in1[32*d0 + r0]"))
    assert find_contraction(turned) is None


def test_scales_of_columns_do_not_make_a_matrix_of_contiguous_columns() -> None:
    quantized = parse_kernel("""\
kernel quantized
param in in0: bf16[32]
param in in1: i8[512]
param in in2: f32[16]
param out out0: f32[16]
for d0 in 16
reduce r0 in 32
  %0: bf16 = load in0[r0]
  %1: f32 = convert %0
  %2: i8 = load in1[32*d0 + r0]
  %3: f32 = convert %2
  %4: f32 = load in2[d0]
  %5: f32 = mul %3, %4
  %6: bf16 = convert %5
  %7: f32 = convert %6
  %8: f32 = mul %1, %7
  %9: f32 = sum %8
  store out0[d0] = %9
""")
    assert find_contraction(quantized) is None
    columns = changed(quantized, ("load in1[32*d0 + r0]", "load in1[d0 + 16*r0]"))
    assert find_contraction(columns) is not None


def test_axes_of_both_factors_are_batches() -> None:
    found = find_contraction(batched(2, 3, 8, 16, 32))
    assert found is not None
    assert [axis.name for axis in found.batches] == ["d0", "d1"]
    assert [axis.name for axis in (*found.rows, *found.columns)] == ["d2", "d3"]


def test_the_columns_are_those_of_the_last_axis_that_is_no_batch_s() -> None:
    order = ("for d0 in 3\nfor d1 in 8\nfor d2 in 16", "for d1 in 8\nfor d2 in 16\nfor d0 in 3")
    found = find_contraction(changed(sliced(3, 8, 16, 32), order))
    assert found is not None
    assert [axis.name for axis in found.columns] == ["d2"]
    assert (found.sums[0].left, found.sums[0].right) == (0, 2)


def test_an_axis_of_no_factor_is_none_of_a_product() -> None:
    """The sum would be repeated over it."""
    repeated = changed(
        sliced(3, 8, 16, 32), ("load in0[32*d0", "load in0[32"), ("load in1[512*d0", "load in1[512")
    )
    assert find_contraction(repeated) is None


def test_the_last_axis_of_the_kernel_is_a_column() -> None:
    swapped = changed(linear(8, 16, 32), ("for d0 in 8\nfor d1 in 16", "for d1 in 16\nfor d0 in 8"))
    found = find_contraction(swapped)
    assert found is not None
    assert [axis.name for axis in found.columns] == ["d0"]
    assert (found.sums[0].left, found.sums[0].right) == (2, 0)


def test_a_statement_varies_over_the_axes_of_what_it_uses() -> None:
    axes = statement_axes(linear(8, 16, 32))
    assert axes[4] == {"d0", "d1", "r0"}
    assert axes[5] == axes[6] == {"d0", "d1"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum %4", "amax %4"),
        ("mul %1, %3", "add %1, %3"),
        ("mul %1, %3", "mul %1, %1"),
        ("load in1[32*d1 + r0]", "load in1[31*d0 + 2*d1 + r0]"),
        ("load in0[32*d0 + r0]", "load in0[32*d0]"),
        ("bf16", "f32"),
    ],
    ids=["no sum", "no product", "a square", "a factor of both", "one term", "wide factors"],
)
def test_what_is_no_product_of_rows_and_columns_is_not_taken_for_one(old: str, new: str) -> None:
    assert find_contraction(changed(linear(8, 16, 32), (old, new))) is None


@pytest.mark.parametrize("name", list(emitter_shapes.ALL))
def test_kernels_of_other_kinds_are_no_products(name: str) -> None:
    assert find_contraction(emitter_shapes.ALL[name]) is None
