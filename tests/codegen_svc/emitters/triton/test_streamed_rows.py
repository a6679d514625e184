"""Rows whose sums of exponentials one loop makes, and which therefore nothing holds."""

from __future__ import annotations

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.emitters.triton.streamed_rows import streams_rows
from codegen_svc.emitters.triton.tiling import gpu_tiling
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

TARGET = target_facts("cuda:sm_90a")
READS_AGAIN = """\
  %4: f32 = sub %1, %2
  %5: f32 = div %4, %3
  %6: bf16 = convert %5
  store out1[width*d0 + r0] = %6
"""


def sums_of_exponentials(end: str = "") -> Kernel:
    more = "param out out1: bf16[rows*width]\n" if end else ""
    return parse_kernel(f"""\
kernel sums
size rows from 0
size width from 0
param in in0: bf16[rows*width]
param out out0: f32[rows]
{more}for d0 in rows
reduce r0 in width
  %0: bf16 = load in0[width*d0 + r0]
  %1: f32 = convert %0
  %2: f32 = amax %1
  %3: f32 = softmax_sum %1
{end}  store out0[d0] = %3
""")


def test_rows_that_are_read_again_are_not_streamed() -> None:
    assert streams_rows(sums_of_exponentials())
    assert not streams_rows(sums_of_exponentials(READS_AGAIN))


def test_longer_rows_have_one_variant_for_all_lengths() -> None:
    """Shorter ones are held whole; none in pieces, whose number limits the length."""
    variants = CUDA.build(sums_of_exponentials(), TARGET)
    forms = [dict(variant.launch.extras)["form"] for variant in variants]
    assert forms.count("persistent") == 3
    assert set(forms) == {"persistent", "looped"}


@pytest.mark.parametrize("level", [0, 1, 2])
def test_more_threads_share_fewer_groups(level: int) -> None:
    tiling = gpu_tiling(sums_of_exponentials(), TARGET, 32, level)
    assert tiling is not None
    assert (tiling.num_warps, tiling.lane_groups) == (4 << level, 4 >> level)
