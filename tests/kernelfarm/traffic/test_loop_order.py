"""The order of axes and the form of blocks, by the bytes that they move."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import all_targets, target_facts
from kernelfarm.traffic import BlockForm, choose_block, order_axes
from tests.support.traffic_kernels import (
    CHANNELS_LAST,
    CONTIGUOUS,
    batch_norm_relu,
    matrix_sum,
    transposing_add,
)

CHIPS = sorted(all_targets())
TILED = [chip for chip in CHIPS if target_facts(chip).memory.tile_side_bytes]


def ordered(kernel: Kernel, chip: str) -> tuple[list[str], BlockForm]:
    memory = target_facts(chip).memory
    found = order_axes(kernel, memory)
    return [axis.name for axis in found.outer], choose_block(found, memory).form


@pytest.mark.parametrize("chip", CHIPS)
def test_four_vectors_do_not_outvote_two_tensors(chip: str) -> None:
    """In a contiguous batch norm the pixel is contiguous; along the channel only vectors are."""
    order, form = ordered(batch_norm_relu(), chip)
    assert order == ["d0", "d1", "d2"]
    assert form is BlockForm.FLAT


@pytest.mark.parametrize("chip", CHIPS)
def test_the_channel_is_innermost_if_channels_come_last(chip: str) -> None:
    kernel = batch_norm_relu(CHANNELS_LAST, CHANNELS_LAST)
    assert ordered(kernel, chip) == (["d0", "d2", "d1"], BlockForm.FLAT)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_first_order_does_not_matter(chip: str) -> None:
    kernel = batch_norm_relu()
    orders = {
        tuple(ordered(replace(kernel, outer=axes), chip)[0]) for axes in permutations(kernel.outer)
    }
    assert orders == {("d0", "d1", "d2")}


@pytest.mark.parametrize("chip", TILED)
@pytest.mark.parametrize(
    ("read", "written", "sides"),
    [(CHANNELS_LAST, CONTIGUOUS, ["d1", "d2"]), (CONTIGUOUS, CHANNELS_LAST, ["d2", "d1"])],
)
def test_a_change_of_layout_is_tiled_and_stores_follow_the_last_axis(
    chip: str, read: str, written: str, sides: list[str]
) -> None:
    assert ordered(batch_norm_relu(read, written), chip) == (["d0", *sides], BlockForm.TILE)


@pytest.mark.parametrize("chip", TILED)
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_a_sum_with_a_transposed_operand_is_tiled(chip: str, dtype: str) -> None:
    kernel = transposing_add(2048, 4096, dtype)
    assert ordered(kernel, chip) == (["d0", "d1"], BlockForm.TILE)


def test_a_small_sum_with_a_transposed_operand_is_tiled_on_a_processor() -> None:
    """Its data stay in a cache, but their lines would evict each other."""
    assert ordered(transposing_add(384, 196), "cpu:x86-64-v4")[1] is BlockForm.TILE


@pytest.mark.parametrize("chip", CHIPS)
def test_a_broadcast_row_needs_no_tiles(chip: str) -> None:
    kernel = parse_kernel("""\
kernel add_bias
param in in0: f32[1572864]
param in in1: f32[3072]
param out out0: f32[1572864]
for d0 in 512
for d1 in 3072
  %0: f32 = load in0[3072*d0 + d1]
  %1: f32 = load in1[d1]
  %2: f32 = add %0, %1
  store out0[3072*d0 + d1] = %2
""")
    assert ordered(kernel, chip) == (["d0", "d1"], BlockForm.FLAT)


def test_three_interleaved_arrays_need_no_tiles_on_a_processor() -> None:
    kernel = parse_kernel("""\
kernel interleave
param in in0: f32[1000000]
param out out0: f32[3000000]
for d0 in 3
for d1 in 1000000
  %0: f32 = load in0[d1]
  store out0[d0 + 3*d1] = %0
""")
    assert ordered(kernel, "cpu:x86-64-v4") == (["d1", "d0"], BlockForm.FLAT)


def test_a_chip_without_tiles_keeps_most_accesses_contiguous() -> None:
    assert ordered(transposing_add(8192, 8192), "ascend:910b") == (["d0", "d1"], BlockForm.FLAT)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_transposed_operand_of_a_few_sectors_needs_no_tile(chip: str) -> None:
    kernel = parse_kernel("""\
kernel add_turned
param in in0: f32[1048576]
param in in1: f32[64]
param out out0: f32[1048576]
for d0 in 16384
for d1 in 8
for d2 in 8
  %0: f32 = load in0[64*d0 + 8*d1 + d2]
  %1: f32 = load in1[d1 + 8*d2]
  %2: f32 = add %0, %1
  store out0[64*d0 + 8*d1 + d2] = %2
""")
    assert ordered(kernel, chip)[1] is BlockForm.FLAT


@pytest.mark.parametrize("chip", CHIPS)
def test_sums_of_columns_hold_many_columns_and_sums_of_rows_few_rows(chip: str) -> None:
    memory = target_facts(chip).memory
    columns = matrix_sum(4096, 8192, "d0 + 4096*r0")
    rows = matrix_sum(8192, 4096, "4096*d0 + r0")
    assert choose_block(columns, memory).form is BlockForm.COLUMNS
    assert choose_block(rows, memory).form is BlockForm.ROWS


@pytest.mark.parametrize("chip", CHIPS)
def test_a_vector_along_the_reduction_does_not_turn_columns_into_rows(chip: str) -> None:
    """Two vectors of 8,192 elements are contiguous along the reduction, the matrix is not."""
    kernel = parse_kernel("""\
kernel weighted_sum
param in in0: f32[33554432]
param in in1: f32[8192]
param in in2: f32[8192]
param out out0: f32[4096]
for d0 in 4096
reduce r0 in 8192
  %0: f32 = load in0[d0 + 4096*r0]
  %1: f32 = load in1[r0]
  %2: f32 = load in2[r0]
  %3: f32 = mul %0, %1
  %4: f32 = mul %3, %2
  %5: f32 = sum %4
  store out0[d0] = %5
""")
    assert choose_block(kernel, target_facts(chip).memory).form is BlockForm.COLUMNS


def test_axes_of_a_scan_keep_their_order() -> None:
    kernel = parse_kernel("""\
kernel running_sum
param in in0: f32[8192]
param out out0: f32[8192]
for d0 in 2
reduce r0 in 64
reduce r1 in 64
  %0: f32 = load in0[4096*d0 + r0 + 64*r1]
  %1: f32 = scan cumsum %0
  store out0[4096*d0 + r0 + 64*r1] = %1
""")
    assert order_axes(kernel, target_facts("cuda:sm_90a").memory) is kernel


def test_axes_of_a_sum_are_in_the_order_of_its_operand() -> None:
    kernel = parse_kernel("""\
kernel plane_sum
param in in0: f32[1048576]
param out out0: f32[4]
for d0 in 4
reduce r0 in 512
reduce r1 in 512
  %0: f32 = load in0[262144*d0 + r0 + 512*r1]
  %1: f32 = sum %0
  store out0[d0] = %1
""")
    found = order_axes(kernel, target_facts("cuda:sm_90a").memory)
    assert [axis.name for axis in found.reduction] == ["r1", "r0"]


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip.startswith("cpu:")])
@pytest.mark.parametrize("channels", [64, 512, 2048])
def test_vectors_that_stay_in_the_nearest_cache_are_no_reason_for_tiles(
    chip: str, channels: int
) -> None:
    """Tiles read them less often, but walk over rows that are far apart."""
    kernel = parse_kernel(
        f"kernel scale\nparam in in0: bf16[{25088 * channels}]\nparam in in1: bf16[{channels}]\n"
        f"param in in2: bf16[{channels}]\nparam out out0: bf16[{25088 * channels}]\n"
        f"for d0 in 25088\nfor d1 in {channels}\n"
        f"  %0: bf16 = load in0[{channels}*d0 + d1]\n  %1: bf16 = load in1[d1]\n"
        "  %2: bf16 = mul %0, %1\n  %3: bf16 = load in2[d1]\n  %4: bf16 = add %2, %3\n"
        f"  store out0[{channels}*d0 + d1] = %4\n"
    )
    assert ordered(kernel, chip) == (["d0", "d1"], BlockForm.FLAT)
