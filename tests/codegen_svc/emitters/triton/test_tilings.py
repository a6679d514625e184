"""Blocks of rows, of columns and of points: large enough for a chip that starts few of them."""

from __future__ import annotations

import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling, gpu_tiling, program_count
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts

TARGET = target_facts("cuda:sm_90a")


def tiling_of(kernel: Kernel) -> Tiling:
    found = gpu_tiling(kernel, TARGET, 32)
    assert found is not None
    return found


def relu(points: int) -> Kernel:
    return parse_kernel(f"""\
kernel relu
param in in0: bf16[{points}]
param out out0: bf16[{points}]
for d0 in {points}
  %0: bf16 = load in0[d0]
  %1: bf16 = 0.0
  %2: bf16 = maximum %0, %1
  store out0[d0] = %2
""")


def row_sums(rows: int, width: int) -> Kernel:
    return parse_kernel(f"""\
kernel row_sums
param in in0: f32[{rows * width}]
param out out0: f32[{rows}]
for d0 in {rows}
reduce r0 in {width}
  %0: f32 = load in0[{width}*d0 + r0]
  %1: f32 = sum %0
  store out0[d0] = %1
""")


def column_sums(rows: int, columns: int, operands: int = 1) -> Kernel:
    """The sums of the columns of each operand."""
    size = rows * columns
    params = [f"param in in{n}: bf16[{size}]" for n in range(operands)]
    outs = [f"param out out{n}: f32[{columns}]" for n in range(operands)]
    body = [f"  %{n}: bf16 = load in{n}[{columns}*r0 + d0]" for n in range(operands)]
    for n in range(operands):
        at = operands + 2 * n
        body += [f"  %{at}: f32 = convert %{n}", f"  %{at + 1}: f32 = sum %{at}"]
    body += [f"  store out{n}[d0] = %{operands + 2 * n + 1}" for n in range(operands)]
    loops = [f"for d0 in {columns}", f"reduce r0 in {rows}"]
    return parse_kernel("\n".join(["kernel sums", *params, *outs, *loops, *body, ""]))


@pytest.mark.parametrize(
    ("points", "block", "warps"),
    [(1 << 24, 2048, 8), (1 << 20, 2048, 8), ((1 << 20) - 1, 1024, 4), (300, 512, 2), (8, 32, 1)],
)
def test_few_points_are_divided_among_more_programs(points: int, block: int, warps: int) -> None:
    tiling = tiling_of(relu(points))
    assert (tiling.xblock, tiling.rblock, tiling.num_warps) == (block, 0, warps)


@pytest.mark.parametrize(
    ("rows", "width", "block"),
    [
        (1 << 16, 256, (8, 256)),
        (1 << 16, 768, (2, 1024)),
        (1 << 16, 1024, (2, 1024)),
        (1 << 16, 4096, (1, 4096)),
        (128, 256, (1, 256)),  # as many programs as a chip has multiprocessors
        (512, 256, (4, 256)),
    ],
)
def test_short_rows_share_a_block(rows: int, width: int, block: tuple[int, int]) -> None:
    tiling = tiling_of(row_sums(rows, width))
    assert tiling.is_persistent
    assert (tiling.xblock, tiling.rblock) == block


@pytest.mark.parametrize(
    ("operands", "block"), [(1, (128, 64)), (2, (64, 64)), (3, (64, 32)), (9, (64, 32))]
)
def test_columns_of_many_operands_have_smaller_blocks(
    operands: int, block: tuple[int, int]
) -> None:
    tiling = tiling_of(column_sums(8192, 16384, operands))
    assert not tiling.is_persistent
    assert (tiling.xblock, tiling.rblock, tiling.num_warps) == (*block, 8)


@pytest.mark.parametrize(
    ("rows", "operands", "stages"),
    [
        (1 << 17, 1, 4),
        (512, 1, 4),
        (256, 1, 0),
        (1 << 17, 2, 4),
        (1 << 17, 3, 0),
    ],
)
def test_long_columns_are_copied_ahead(rows: int, operands: int, stages: int) -> None:
    kernel = column_sums(rows, 16384, operands)
    tiling = gpu_tiling(kernel, TARGET, 32, even_sizes=frozenset())
    assert tiling is not None
    assert tiling.loop_stages == stages
    assert tiling.num_warps == (4 if stages else 8)
    text = emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text
    assert (f"num_stages={stages})" in text) == bool(stages)
    assert tiling_of(kernel).loop_stages == 0  # unaligned rows cannot be copied 16 bytes at once
    older = gpu_tiling(kernel, target_facts("cuda:sm_80"), 32, even_sizes=frozenset())
    assert older is not None
    assert older.loop_stages == 0


@pytest.mark.parametrize(("columns", "stages"), [(16384, 4), (16392, 4), (16386, 0), (50257, 0)])
def test_rows_are_copied_ahead_if_each_begins_at_16_bytes(columns: int, stages: int) -> None:
    tiling = gpu_tiling(column_sums(8192, columns), TARGET, 32, even_sizes=frozenset())
    assert tiling is not None
    assert (tiling.loop_stages, tiling.num_warps) == (stages, 4 if stages else 8)


@pytest.mark.parametrize(("even", "stages"), [({"s1"}, 4), ({"s0"}, 0), (set(), 0), (None, 0)])
def test_columns_of_varying_number_are_copied_ahead_if_it_is_even(
    even: set[str] | None, stages: int
) -> None:
    kernel = parse_kernel("""\
kernel sums
size s0 from 0
size s1 from 0
param in in0: bf16[s0*s1]
param out out0: f32[4*s1]
for d0 in 4
for d1 in s1
reduce r0 in s0//4
  %0: bf16 = load in0[d1 + r0*s1 + d0*s1*(s0//4)]
  %1: f32 = convert %0
  %2: f32 = sum %1
  store out0[d1 + d0*s1] = %2
""")
    known = None if even is None else frozenset(even)
    tiling = gpu_tiling(kernel, TARGET, 32, even_sizes=known)
    assert tiling is not None
    assert tiling.loop_stages == stages


@pytest.mark.parametrize(
    ("extent", "block"), [("max(1, min(264, s0//16))", (16, 64)), ("s0", (128, 64))]
)
def test_partial_sums_of_a_varying_number_of_slices_have_narrow_blocks(
    extent: str, block: tuple[int, int]
) -> None:
    """Not so sums of a varying number of rows that is known to be small."""
    kernel = parse_kernel(f"""\
kernel merge
size s0 from 0{" to 264" if extent == "s0" else ""}
size s1 from 0
param in in0: f32[({extent})*s1]
param out out0: f32[s1]
for d0 in s1
reduce r0 in {extent}
  %0: f32 = load in0[s1*r0 + d0]
  %1: f32 = sum %0
  store out0[d0] = %1
""")
    tiling = tiling_of(kernel)
    assert (tiling.xblock, tiling.rblock, tiling.is_persistent) == (*block, False)


def test_a_few_partial_sums_are_added_by_many_threads() -> None:
    kernel = column_sums(16, 3072)
    tiling = tiling_of(kernel)
    assert tiling.is_persistent
    threads = program_count(kernel, tiling).as_int() * tiling.num_warps * 32
    assert threads == 3072 * 16 // 2
    assert tiling_of(column_sums(8, 1 << 19)).num_warps == 128 * 8 // 8 // 32


@pytest.mark.parametrize(("points", "is_streamed"), [(1 << 26, True), (1 << 25, False)])
def test_the_cache_keeps_what_is_read_if_a_kernel_moves_several_times_what_it_holds(
    points: int, is_streamed: bool
) -> None:
    kernel = relu(points)
    text = emit_triton(kernel, tiling_of(kernel), scalar_rules(TARGET, kernel)).text
    assert ('eviction_policy="evict_last")' in text) == is_streamed
    assert ('eviction_policy="evict_first")' in text) == is_streamed
    older = target_facts("cuda:sm_80")
    assert (
        "eviction_policy"
        not in emit_triton(kernel, tiling_of(kernel), scalar_rules(older, kernel)).text
    )
