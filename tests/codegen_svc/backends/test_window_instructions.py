"""Convolutions by windows on Hopper: instructions for matrices, and boxes that hardware copies."""

from __future__ import annotations

import pytest

from codegen_svc.backends.contract import built_variants
from codegen_svc.backends.registry import find_backend
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

# 64 images of 64 channels and 16 x 16 pixels by 3 x 3 pixels with a stride of 2 and padding.
STRIDED = """\
kernel convolution
param in in0: bf16[1048576]
param in in1: bf16[73728]
param in in2: bf16[128]
param out out0: bf16[524288]
for d0 in 64
for d1 in 8
for d2 in 8
for d3 in 128
reduce r0 in 3
reduce r1 in 3
reduce r2 in 64
  %0: bf16 = 0.0
  %1: i64 = index 2*d1 + r0
  %2: i64 = 1
  %3: bool = ge %1, %2
  %4: i64 = index 2*d2 + r1
  %5: bool = ge %4, %2
  %6: bool = logical_and %3, %5
  %7: bf16 = load in0[16384*d0 + 2048*d1 + 128*d2 + 1024*r0 + 64*r1 + r2 - 1088] if %6 else %0
  %8: f32 = convert %7
  %9: bf16 = load in1[576*d3 + 192*r0 + 64*r1 + r2]
  %10: f32 = convert %9
  %11: f32 = mul %8, %10
  %12: f32 = sum %11
  %13: bf16 = load in2[d3]
  %14: f32 = convert %13
  %15: f32 = add %12, %14
  %16: f32 = 0.0
  %17: f32 = maximum %15, %16
  %18: bf16 = convert %17
  store out0[8192*d0 + 1024*d1 + 128*d2 + d3] = %18
"""

# The same image by 3 x 3 pixels that are 2 rows and 3 columns apart, with padding.
DILATED = """\
kernel convolution
param in in0: bf16[1048576]
param in in1: bf16[73728]
param out out0: bf16[2097152]
for d0 in 64
for d1 in 16
for d2 in 16
for d3 in 128
reduce r0 in 3
reduce r1 in 3
reduce r2 in 64
  %0: bf16 = 0.0
  %1: i64 = index d1 + 2*r0 - 2
  %2: i64 = index d2 + 3*r1 - 3
  %3: i64 = 0
  %4: i64 = 16
  %5: bool = ge %1, %3
  %6: bool = lt %1, %4
  %7: bool = ge %2, %3
  %8: bool = lt %2, %4
  %9: bool = logical_and %5, %6
  %10: bool = logical_and %7, %8
  %11: bool = logical_and %9, %10
  %12: bf16 = load in0[16384*d0 + 1024*d1 + 64*d2 + 2048*r0 + 192*r1 + r2 - 2240] if %11 else %0
  %13: f32 = convert %12
  %14: bf16 = load in1[576*d3 + 192*r0 + 64*r1 + r2]
  %15: f32 = convert %14
  %16: f32 = mul %13, %15
  %17: f32 = sum %16
  %18: bf16 = convert %17
  store out0[32768*d0 + 2048*d1 + 128*d2 + d3] = %18
"""

# 64 images of 16 x 16 pixels by 3 x 3 pixels with padding; channels and results have groups.
GROUPED = """\
kernel convolution
param in in0: bf16[{image}]
param in in1: bf16[{weight}]
param out out0: bf16[{image}]
for d0 in 64
for d1 in 16
for d2 in 16
for d3 in {groups}
for d4 in {members}
reduce r0 in 3
reduce r1 in 3
reduce r2 in {members}
  %0: bf16 = 0.0
  %1: i64 = index d1 + r0
  %2: i64 = 1
  %3: bool = ge %1, %2
  %4: i64 = 17
  %5: bool = lt %1, %4
  %6: bool = logical_and %3, %5
  %7: i64 = index d2 + r1
  %8: bool = ge %7, %2
  %9: bool = logical_and %6, %8
  %10: bool = lt %7, %4
  %11: bool = logical_and %9, %10
  %12: bf16 = load in0[{pixel} + {row}*r0 + {channels}*r1 + r2 - {margin}] if %11 else %0
  %13: f32 = convert %12
  %14: bf16 = load in1[{per_group}*d3 + {terms}*d4 + {taps}*r0 + {members}*r1 + r2]
  %15: f32 = convert %14
  %16: f32 = mul %13, %15
  %17: f32 = sum %16
  %18: bf16 = convert %17
  store out0[{pixel} + d4] = %18
"""


def grouped(groups: int, members: int) -> str:
    """The text of a convolution with `groups` of so many channels each."""
    channels, terms = groups * members, 9 * members
    row = 16 * channels
    return GROUPED.format(
        groups=groups,
        members=members,
        channels=channels,
        row=row,
        pixel=f"{16 * row}*d0 + {row}*d1 + {channels}*d2 + {members}*d3",
        image=64 * 16 * row,
        margin=row + channels,
        taps=3 * members,
        terms=terms,
        per_group=members * terms,
        weight=channels * terms,
    )


def built(target: str, text: str = STRIDED) -> tuple[BuiltKernel, ...]:
    vendor = target.partition(":")[0]
    return built_variants(find_backend(vendor), parse_kernel(text), target_facts(target))


def test_hopper_multiplies_boxes_of_pixels_from_shared_memory() -> None:
    aligned, general = built("cuda:sm_90a")
    (weight, image) = aligned.launch.tensor_maps
    assert (weight.extents, weight.steps) == ((128, 576), ())
    # The last row and column of the image are read, and no more: padding on one side is enough.
    assert image.extents == (64, 16, 16, 64)
    assert image.steps == (1, 2, 2, 1)
    texts = {stage.name: stage.content for stage in aligned.stages}
    ptx = texts["ptx"].decode()
    assert "cp.async.bulk.tensor.4d" in ptx
    assert "wgmma.mma_async" in ptx
    # Neither factor goes through registers on its way to the instruction.
    assert "ldmatrix" not in ptx
    assert not aligned.launch.spills
    assert not general.launch.tensor_maps


def test_dilation_moves_the_boxes_alone() -> None:
    aligned, general = built("cuda:sm_90a", DILATED)
    (_, image) = aligned.launch.tensor_maps
    assert (image.extents, image.steps) == ((64, 16, 16, 64), ())
    ptx = {stage.name: stage.content for stage in aligned.stages}["ptx"].decode()
    assert "cp.async.bulk.tensor.4d" in ptx
    assert "wgmma.mma_async" in ptx
    assert "ldmatrix" not in ptx
    assert not aligned.launch.spills
    assert not general.launch.tensor_maps


@pytest.mark.parametrize(("groups", "members"), [(2, 64), (4, 112), (3, 48)])
def test_a_tile_has_results_of_one_group(groups: int, members: int) -> None:
    """Maps have all groups; where a group begins is added to where a tile or a step does."""
    aligned, general = built("cuda:sm_90a", grouped(groups, members))
    weight, image = aligned.launch.tensor_maps
    assert weight.extents == (groups * members, 9 * members)
    assert image.extents == (64, 16, 16, groups * members)
    texts = {stage.name: stage.content.decode() for stage in aligned.stages if stage.name == "ptx"}
    assert "cp.async.bulk.tensor.4d" in texts["ptx"]
    assert "wgmma.mma_async" in texts["ptx"]
    assert not aligned.launch.spills
    assert not general.launch.tensor_maps


@pytest.mark.parametrize("target", ["cuda:sm_80", "rocm:gfx942"])
def test_other_chips_read_pixels_by_pointers(target: str) -> None:
    for variant in built(target):
        assert not variant.launch.tensor_maps
        assert dict(variant.launch.extras)["form"] == "product"
