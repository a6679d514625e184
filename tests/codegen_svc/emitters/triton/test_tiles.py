"""Kernels in tiles of two axes: their text, and their numbers in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling, gpu_tiling, program_count
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.goldens import assert_golden_file
from tests.support.traffic_kernels import (
    CHANNELS_LAST,
    batch_norm_relu,
    transposing_add,
)
from tests.support.triton_cases import assert_same, expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")

LAYOUTS = parse_kernel("""\
kernel layouts
size s0 from 1 to 4096
size s1 from 1 to 4096
param in in0: f16[12*s0*s1]
param in in1: f32[12]
param in in2: bool[s1]
param out out0: f16[12*s0*s1]
param out out1: f32[12*s0*s1]
for d0 in s0
for d1 in 12
for d2 in s1
  %0: f16 = load in0[12*s1*d0 + d1 + 12*d2]
  %1: f32 = convert %0
  %2: f32 = load in1[d1]
  %3: f32 = mul %1, %2
  %4: bool = load in2[d2]
  %5: f32 = 7.0
  %6: f32 = load in1[d1] if %4 else %5
  %7: f32 = add %3, %6
  %8: f16 = convert %7
  store out0[12*s1*d0 + s1*d1 + d2] = %8
  %10: i64 = index d2
  %11: f32 = convert %10
  %12: f32 = add %11, %7
  store out1[12*s1*d0 + d1 + 12*d2] = %12
""")


CASES: list[tuple[Kernel, dict[str, int], Tiling]] = [
    (transposing_add(70, 45), {}, Tiling(16, 16, 16, False, 32, is_tile=True)),
    (transposing_add(64, 32), {}, Tiling(32, 32, 32, False, 64, is_tile=True)),
    (transposing_add(5, 200), {}, Tiling(8, 8, 64, False, 32, is_tile=True)),
    (LAYOUTS, {"s0": 3, "s1": 37}, Tiling(16, 16, 16, False, 32, is_tile=True)),
    (LAYOUTS, {"s0": 1, "s1": 1}, Tiling(32, 32, 8, False, 64, is_tile=True)),
    (LAYOUTS, {"s0": 2, "s1": 130}, Tiling(4, 4, 64, False, 32, is_tile=True)),
    (LAYOUTS, {"s0": 3, "s1": 300}, Tiling(1, 1, 128, False, 32, is_tile=True)),
]


def test_tiles_equal_the_loop_interpreter() -> None:
    buffers = [random_buffers(kernel, sizes) for kernel, sizes, _ in CASES]
    launches = [
        interpreter_case(kernel, given, sizes, tiling)
        for (kernel, sizes, tiling), given in zip(CASES, buffers, strict=True)
    ]
    results = run_interpreted(launches)
    for (kernel, sizes, _), given, result in zip(CASES, buffers, results, strict=True):
        assert not isinstance(result, str), result
        reference = expected(kernel, given, sizes)
        for param, got in zip(kernel.params, result, strict=True):
            if param.access is Access.WRITE:
                assert_same(param.dtype, got, reference[param.name])


def test_a_tile_is_a_square_of_lines() -> None:
    found = {}
    for dtype in ("f16", "f32", "f64"):
        tiling = gpu_tiling(transposing_add(2048, 4096, dtype), TARGET, 32)
        assert tiling is not None
        assert tiling.is_tile
        found[dtype] = (tiling.xblock, tiling.rblock, tiling.num_warps)
    assert found == {"f16": (64, 64, 8), "f32": (32, 32, 2), "f64": (16, 16, 1)}


def test_a_tile_is_no_longer_than_its_axis() -> None:
    kernel = transposing_add(5, 100000)
    tiling = gpu_tiling(kernel, TARGET, 32)
    assert tiling is not None
    assert (tiling.is_tile, tiling.xblock, tiling.rblock) == (True, 8, 32)
    assert program_count(kernel, tiling).as_int() == 3125


def test_a_tile_shrinks_on_both_sides() -> None:
    sides = []
    level = 0
    while tiling := gpu_tiling(transposing_add(2048, 4096, "f16"), TARGET, 32, level):
        sides.append((tiling.xblock, tiling.rblock))
        level += 1
    assert list(dict.fromkeys(sides))[:5] == [(64, 64), (32, 64), (32, 32), (16, 32), (16, 16)]
    assert sides[-1] == (1, 1)


@pytest.mark.golden
def test_source_of_a_tile_equals_its_golden() -> None:
    kernel = batch_norm_relu(CHANNELS_LAST)
    tiling = gpu_tiling(kernel, TARGET, 32)
    assert tiling is not None
    text = emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text
    assert_golden_file(text, Path(__file__).parent / "goldens" / "change_of_layout.py.txt")


def test_loads_and_stores_of_tiles_are_vectors() -> None:
    """The load is contiguous along one side, the store along the other: 16 bytes each."""
    built = CUDA.build(batch_norm_relu(CHANNELS_LAST), TARGET)[0]
    ptx = next(s.content for s in built.stages if s.name == "ptx").decode()
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert dict(built.launch.extras)["form"] == "tile"
    assert not built.launch.spills
