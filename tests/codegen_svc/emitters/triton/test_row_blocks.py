"""Programs within a row for pointwise kernels whose points share work."""

from __future__ import annotations

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.emitters.triton.row_blocks import block_over_rows, block_within_rows
from codegen_svc.emitters.triton.tiling import Tiling, gpu_tiling, program_count
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.triton_cases import assert_same, expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")


def loss_gradient(rows: int, classes: int, *, pitch: int = 0, dtype: str = "bf16") -> Kernel:
    """The gradient of a class loss: (class == label) * scale - exp(x - top) * share."""
    pitch = pitch or classes
    return parse_kernel(f"""\
kernel loss_gradient
param in in0: i64[{rows}]
param in in1: {dtype}[{rows * pitch}]
param in in2: f32[{rows}]
param in in3: f32[{rows}]
param out out0: {dtype}[{rows * classes}]
for d0 in {rows}
for d1 in {classes}
  %0: i64 = load in0[d0]
  %1: i64 = 0
  %2: bool = lt %0, %1
  %3: i64 = {classes}
  %4: i64 = add %0, %3
  %5: i64 = where %2, %4, %0
  %6: i64 = index d1
  %7: bool = eq %5, %6
  %8: f32 = load in3[d0]
  %9: f32 = neg %8
  %10: f32 = 0.0
  %11: f32 = where %7, %9, %10
  %12: {dtype} = load in1[{pitch}*d0 + d1]
  %13: f32 = convert %12
  %14: f32 = load in2[d0]
  %15: f32 = sub %13, %14
  %16: f32 = exp %15
  %17: f32 = mul %16, %8
  %18: f32 = sub %11, %17
  %19: {dtype} = convert %18
  store out0[{classes}*d0 + d1] = %19
""")


@pytest.mark.parametrize(
    ("rows", "classes", "block"),
    [
        (64, 50304, (1, 2048)),
        (64, 128256, (1, 2048)),
        (64, 12544, (1, 2048)),
        (64, 3072, (1, 1024)),
        (1024, 3072, (2, 1024)),
        (1024, 1024, (2, 1024)),
        (1024, 1536, (4, 512)),
        (64, 1536, (2, 512)),
    ],
)
def test_a_block_leaves_few_lanes_behind_the_end_of_a_row_idle(
    rows: int, classes: int, block: tuple[int, int]
) -> None:
    kernel = loss_gradient(rows, classes)
    tiling = gpu_tiling(kernel, TARGET, 32)
    assert tiling is not None
    assert (tiling.is_tile, tiling.xblock, tiling.rblock) == (True, *block)
    assert program_count(kernel, tiling).as_int() == rows // block[0] * -(-classes // block[1])


def test_rows_that_are_short_or_not_aligned_or_leave_lanes_idle_are_crossed() -> None:
    assert block_within_rows(loss_gradient(64, 3136)) is None
    assert block_within_rows(loss_gradient(64, 1000)) is None
    assert block_within_rows(loss_gradient(64, 50257)) is None
    assert block_within_rows(loss_gradient(64, 2048, pitch=2052)) is None
    assert block_within_rows(loss_gradient(64, 2048, pitch=2052, dtype="f32")) == 2048


SCALED = """\
kernel scaled
param in in0: f32[4096]
param in in1: f32[2048]
param in in2: f32[64]
param out out0: f32[131072]
for d0 in 64
for d1 in 2048
  %0: f32 = load in2[d0]
  %1: f32 = load in1[d1]
  %2: f32 = mul %1, %0
  store out0[2048*d0 + d1] = %2
"""


def test_points_that_share_little_may_be_of_several_rows() -> None:
    assert block_within_rows(parse_kernel(SCALED)) is None


def test_a_program_loads_what_belongs_to_its_row_once() -> None:
    built = CUDA.build(loss_gradient(64, 50304), TARGET)[0]
    ptx = next(s.content for s in built.stages if s.name == "ptx").decode()
    assert dict(built.launch.extras)["form"] == "tile"
    loads = [line for line in ptx.splitlines() if "ld.global" in line]
    assert sum(".v4" in line for line in loads) == 1
    assert len(loads) == 4
    assert "div" not in ptx


def norm_of_channels(images: int, channels: int, pixels: int, *, pitch: int = 0) -> Kernel:
    """A batch norm and ReLU: max((x - mean) * rstd * scale + shift, 0), channels first."""
    pitch = pitch or channels * pixels
    return parse_kernel(f"""\
kernel norm_of_channels
param in in0: bf16[{images * pitch}]
param in in1: f32[{channels}]
param in in2: f32[{channels}]
param in in3: bf16[{channels}]
param in in4: bf16[{channels}]
param out out0: bf16[{images * channels * pixels}]
for d0 in {images}
for d1 in {channels}
for d2 in {pixels}
  %0: bf16 = load in0[{pitch}*d0 + {pixels}*d1 + d2]
  %1: f32 = convert %0
  %2: f32 = load in1[d1]
  %3: f32 = sub %1, %2
  %4: f32 = load in2[d1]
  %5: f32 = mul %3, %4
  %6: bf16 = load in3[d1]
  %7: f32 = convert %6
  %8: f32 = mul %5, %7
  %9: bf16 = load in4[d1]
  %10: f32 = convert %9
  %11: f32 = add %8, %10
  %12: f32 = 0.0
  %13: f32 = maximum %11, %12
  %14: bf16 = convert %13
  store out0[{channels * pixels}*d0 + {pixels}*d1 + d2] = %14
""")


@pytest.mark.parametrize(
    ("images", "channels", "pixels", "block"),
    [
        (32, 2048, 49, (8, 256)),
        (8, 2048, 49, (8, 256)),
        (33, 2048, 49, (8, 256)),
        (6, 4096, 49, (4, 512)),
        (3, 8192, 49, None),  # few images share a channel
        (0, 2048, 49, None),
        (32, 0, 49, None),
        (32, 2048, 0, None),
        (32, 1024, 196, None),  # four neighbours share a channel
        (32, 1001, 49, None),  # images are not aligned
        (32, 64, 49, None),  # few programs
    ],
)
def test_short_channels_are_computed_for_several_images(
    images: int, channels: int, pixels: int, block: tuple[int, int] | None
) -> None:
    kernel = norm_of_channels(images, channels, pixels)
    tiling = gpu_tiling(kernel, TARGET, 32)
    assert tiling is not None
    assert tiling.is_tile == (block is not None)
    if block is not None:
        assert (tiling.xblock, tiling.rblock, tiling.tile_axes) == (*block, 2)
        blocks = -(-images // block[0]) * -(-channels * pixels // block[1])
        assert program_count(kernel, tiling).as_int() == blocks


def test_images_of_another_stride_are_read_by_the_same_columns() -> None:
    assert block_over_rows(norm_of_channels(32, 2048, 49, pitch=2048 * 56)) is not None
    assert block_over_rows(norm_of_channels(32, 2048, 49, pitch=2048 * 49 + 4)) is None


@pytest.mark.parametrize("images", [8, 11])
def test_several_images_give_the_same_numbers(images: int) -> None:
    kernel = norm_of_channels(images, 40, 9)
    tiling = Tiling(4, 4, 64, False, 32, is_tile=True, tile_axes=2)
    buffers = random_buffers(kernel, {})
    (result,) = run_interpreted([interpreter_case(kernel, buffers, {}, tiling)])
    assert not isinstance(result, str), result
    assert_same(kernel.params[-1].dtype, result[-1], expected(kernel, buffers, {})["out0"])


def test_several_images_load_the_numbers_of_a_channel_once() -> None:
    built = CUDA.build(norm_of_channels(32, 2048, 49), TARGET)[0]
    assert dict(built.launch.extras)["form"] == "tile"
    assert not built.launch.spills
    ptx = next(s.content for s in built.stages if s.name == "ptx").decode()
    loads = [line for line in ptx.splitlines() if "ld.global" in line]
    assert sum(".v4" in line for line in loads) == 2, "16 points of the image"
    assert len(loads) == 2 + 4 * 2, "two points of a thread have a channel's four numbers"
