"""The blocks of reductions whose neighbouring outer points are adjacent in memory: column sums.

A block spans many columns, so that each row of it is read in whole sectors. Percentages are speeds
on an H200 as parts of a copy's.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.index import kernel_bounds, numel
from codegen_svc.emitters.triton.row_blocks import is_multiple
from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.loop_ir import Axis, Kernel, Load, Reduce, Store, varying_values
from kernelfarm.targets import GpuFacts

# Column sums of 8,192 x 3,072 and 8,192 x 1,024 bf16 elements reach 98 and 86% by blocks of 128
# columns and 64 rows, 92 and 82 by 64 and 32: more loads are under way.
_COLUMNS = 128
_WARPS = 8
_MOST_ELEMS = 32
"""Elements of a block for each thread."""
_FEWEST_ELEMS = 8
# Few elements are divided among as many threads as there are, at least two for each.
_THREADS = 1 << 17
# 32 bytes of f16: one sector of memory.
_FEWEST_COLUMNS = 16
# About the number of multiprocessors of a large chip; fewer programs leave some of them idle.
_FILL_PROGRAMS = 128
# With copies under way, fewer threads keep memory busy: 131,072 x 4,096 bf16 elements of varying
# sizes reach 104% by 4 warps and 32 rows four copies ahead, 82 without copies.
_COPYING_WARPS = 4
_LEAST_COPIES = 16
"""Blocks of a column, with fewer of which the first copies are waited for too long: sums of 8,192 x
768 elements, of 8 blocks, reach 81% with copies and 85 without; 8,192 x 3,072, of 16, 94 and 93."""
# Where a loop loads more or stores, copies gained nothing: training steps of BERT-large and GPT-2
# took 1.01 and 1.00 of the time with them.
_MOST_COPIED = 2
# Partial sums of slices: few rows, whose number varies, in many columns or few.
_MERGED_ROWS = 512
_MERGED_BLOCK = 64
_MAX_WARPS = 16


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A block of `columns` outer points and `points` of the reduction for so many warps.

    If `is_whole`, it has all points of a column. If `stages` is not 0, the loop copies its loads to
    shared memory so many blocks ahead.
    """

    columns: int
    points: int
    warps: int
    is_whole: bool
    stages: int = 0


def column_shape(kernel: Kernel, gpu: GpuFacts, even_sizes: frozenset[str] | None) -> ColumnShape:
    """The block of a reduction over columns.

    `even_sizes` are multiples of 16; None if buffers may begin anywhere.
    """
    columns, points = _known(kernel.outer), _known(kernel.reduction)
    per_thread = _elems_per_thread(kernel)
    stages = 0
    if even_sizes is not None and _is_copied(kernel, even_sizes):
        stages = _stages(gpu, per_thread, points)
    warps = _COPYING_WARPS if stages else _WARPS
    widest = _COLUMNS if per_thread == _MOST_ELEMS else _COLUMNS // 2
    if points is None and _is_merge(kernel):
        return ColumnShape(_FEWEST_COLUMNS, _MERGED_BLOCK, _COPYING_WARPS, False, stages)
    block = per_thread * warps * gpu.warp_size
    width = widest if columns is None else min(widest, next_power_of_2(columns))
    while columns is not None and width > _FEWEST_COLUMNS and columns // width < _FILL_PROGRAMS:
        width //= 2
    height = max(1, block // width)
    if points is not None:
        height = min(height, next_power_of_2(points))
    is_whole = points is not None and 0 < points <= height
    if is_whole and columns is not None:
        per_thread = max(2, min(_FEWEST_ELEMS, columns * height // _THREADS))
    warps = next_power_of_2(width * height // (gpu.warp_size * per_thread))
    most = min(_MAX_WARPS, gpu.max_threads_per_block // gpu.warp_size)
    return ColumnShape(width, height, max(1, min(most, warps)), is_whole, stages)


def _known(axes: tuple[Axis, ...]) -> int | None:
    points = numel(axes)
    return points.as_int() if points.is_constant else None


def _elems_per_thread(kernel: Kernel) -> int:
    """As many as registers hold of what the loop loads and of the running sums."""
    held = sum(isinstance(s, Load | Reduce) for s in kernel.body)
    return max(_FEWEST_ELEMS, _MOST_ELEMS // next_power_of_2((held + 1) // 2))


def _stages(gpu: GpuFacts, per_thread: int, points: int | None) -> int:
    """How many blocks ahead loads are copied; 0 if the loop is short."""
    elems = per_thread * _COPYING_WARPS * gpu.warp_size
    is_short = points is not None and points * _COLUMNS < _LEAST_COPIES * elems
    return 0 if is_short else gpu.column_stages


def _is_copied(kernel: Kernel, even_sizes: frozenset[str]) -> bool:
    """True if a loop only loads one or two tensors, whose rows can be copied by 16 bytes."""
    varying = varying_values(kernel)
    accesses = [
        s for n, s in enumerate(kernel.body) if n in varying and isinstance(s, Load | Store)
    ]
    return len(accesses) <= _MOST_COPIED and all(
        isinstance(s, Load) and _begins_aligned(kernel, s.index, even_sizes) for s in accesses
    )


def _begins_aligned(kernel: Kernel, index: Expr, even_sizes: frozenset[str]) -> bool:
    """True if an index counts columns from a multiple of 8 elements: 16 bytes of f16."""
    parts = (index.linear_in(axis.name) for axis in kernel.outer)
    return any(p is not None and p[0] is ONE and is_multiple(p[1], 8, even_sizes) for p in parts)


def _is_merge(kernel: Kernel) -> bool:
    """True if the reduction is over partial results of slices, whose number varies.

    It is never large, whatever the sizes are, so it is not linear in them.
    """
    points = numel(kernel.reduction)
    _, most = kernel_bounds(kernel).interval(points)
    is_linear = any(points.linear_in(name) is not None for name in points.symbols)
    return most is not None and most <= _MERGED_ROWS and not is_linear
