"""Tiles of products of matrices: sizes by rule, within the chip's shared memory and registers.

With few rows, memory's bandwidth decides: tiles are narrow enough that every multiprocessor has
one, and long along the sums, so that many bytes are on their way. With many rows, the instructions
for matrices decide (`product_search.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from codegen_svc.emitters.triton.accumulators import accumulators
from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.grouped_loads import points_of_groups
from codegen_svc.emitters.triton.pixel_windows import PixelWindows, pixel_windows
from codegen_svc.emitters.triton.product_search import (
    FACTOR_BYTES,
    fits_chip,
    fits_registers,
    has_functions_behind,
    many_row_tilings,
)
from codegen_svc.emitters.triton.tensor_maps import tensor_maps
from codegen_svc.emitters.triton.tiling import (
    Tiling,
    program_count,
    static_numel,
)
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.contractions import Contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts, TargetFacts

_FEW_ROWS = 64
_MOST_OF_FOUR_WARPS = 8192
# On an H100, of 9 tiles for each of 7 weights from 768 x 768 to 14,336 x 4,096: up to 16 rows are
# computed fastest in tiles of 16 columns by two warps, two sums in tiles of 32 by four.
# Of 9 to 11 tiles for each of 12 weights: more rows, and weights whose columns are contiguous, in
# tiles of 32 columns and 128 points; more rows by many columns in tiles of 64 columns.
_FEW_ROW_COLUMNS = 64
_NARROW_TILE_COLUMNS = 32
_NARROW_TILE_POINTS = 256
_POINTS = 128
_STAGES = 4
_MIN_POINTS = 16
_LEAST_POINTS = 32
_USUAL_PROGRAMS = 108
_WIDE_BITS = 64
_SHARED_WARPS = 4
_PIXELS = (16, 32, 64, 128, 256)
_NO_TILES = 1 << 31
# CUDA Driver API, CUtensorMapSwizzle: the longest rows of a box that are permuted.
_MOST_SWIZZLED_BYTES = 128


def product_tiling(
    kernel: Kernel,
    found: Contraction,
    target: TargetFacts,
    index_bits: int,
    level: int = 0,
    *,
    is_aligned: bool = False,
) -> Tiling | None:
    """The tile for a product, or the one that is `level` steps worse; None if there is none.

    `is_aligned`: all buffers begin at multiples of 16 bytes, as tensor maps and wide loads need it.
    """
    if is_aligned and (windows := pixel_windows(kernel)) is not None:
        boxed = _boxed_tilings(kernel, windows, target, index_bits)
        if boxed:
            return boxed[level] if level < len(boxed) else None
    rows = static_numel(found.rows)
    if rows is None or rows > _FEW_ROWS:
        found_tilings = many_row_tilings(kernel, found, target, index_bits)
        if not is_aligned:
            gpu = target.section(GpuFacts)
            light = tuple(t for t in found_tilings if fits_registers(found, t, gpu))
            found_tilings = light or found_tilings
        if level >= len(found_tilings):
            return None
        tiling = found_tilings[level]
        return _with_maps(kernel, found, tiling, target) if is_aligned else tiling
    fitting = (
        tiling
        for tiling in _smaller_and_smaller(_first(kernel, found, target, index_bits), target)
        if fits_chip(found, tiling, target.section(GpuFacts))
    )
    return next((t for number, t in enumerate(fitting) if number == level), None)


def _boxed_tilings(
    kernel: Kernel, windows: PixelWindows, target: TargetFacts, index_bits: int
) -> tuple[Tiling, ...]:
    """The tiles of boxes of pixels that fit, the one with the least estimated time first.

    Empty if the chip has no tensor maps, or none that takes the channels.
    """
    gpu = target.section(GpuFacts)
    if not gpu.has_tensor_maps or index_bits == _WIDE_BITS:
        return ()
    boxes = {count: box for count in _PIXELS if (box := windows.best_box(count)) is not None}

    def columns_in(count: int) -> int:
        return windows.tiles(boxes[count]) * count if count in boxes else _NO_TILES

    found = many_row_tilings(kernel, windows.product, target, index_bits, columns_in)
    if windows.channels % _LEAST_POINTS:
        found = tuple(_with_half_steps(t) for t in found if t.kblock == _LEAST_POINTS)
    return tuple(
        _persistent(kernel, replace(tiling, box=boxes[tiling.rblock], has_maps=True), gpu)
        for tiling in found
        if tiling.rblock in boxes
        and windows.channels % tiling.kblock == 0
        and tiling.kblock * FACTOR_BYTES <= _MOST_SWIZZLED_BYTES
    )


def _with_half_steps(tiling: Tiling) -> Tiling:
    """The tile for groups of few channels: steps of half the points, as many bytes on their way."""
    return replace(tiling, kblock=tiling.kblock // 2, num_stages=2 * tiling.num_stages)


def _with_maps(kernel: Kernel, found: Contraction, tiling: Tiling, target: TargetFacts) -> Tiling:
    """The tiling with tensor maps, if chip and factors have them, which each program makes once."""
    gpu = target.section(GpuFacts)
    is_wide = tiling.index_bits == _WIDE_BITS  # the hardware counts rows and columns in 32 bits
    if not gpu.has_tensor_maps or is_wide or not tensor_maps(kernel, found):
        return tiling
    return _persistent(kernel, replace(tiling, has_maps=True), gpu)


def _persistent(kernel: Kernel, tiling: Tiling, gpu: GpuFacts) -> Tiling:
    """The tiling with one program or two for each multiprocessor, if there are more tiles."""
    tiles = program_count(kernel, tiling).as_int()
    is_shared = has_functions_behind(kernel) and tiling.num_warps == _SHARED_WARPS
    programs = gpu.multiprocessors * (2 if is_shared else 1)
    return replace(tiling, programs=programs if 0 < programs < tiles else 0)


def _first(kernel: Kernel, found: Contraction, target: TargetFacts, index_bits: int) -> Tiling:
    rows, columns = static_numel(found.rows), static_numel((*found.batches, *found.columns))
    least = min_side(target.section(GpuFacts))
    xblock = _side(rows, least, _FEW_ROWS)
    programs = target.memory.saturating_programs or _USUAL_PROGRAMS
    # As wide as it can be with a program for each multiprocessor in one wave.
    wave = None if columns is None else next_power_of_2(-(-columns // programs))
    kblock, stages = _POINTS, _STAGES
    sums = len(set(accumulators(kernel, found).values()))
    if len(found.sums) > sums:
        rblock, kblock, stages = _tile_of_parts(found, least)
    elif xblock > least:
        rblock = max(_NARROW_TILE_COLUMNS, _side(wave, least, _FEW_ROW_COLUMNS))
        stages = _STAGES + 1
        if rblock > _NARROW_TILE_COLUMNS:
            stages = _STAGES if found.has_columns else _STAGES + 2
    elif found.has_columns and (wave is None or wave > least):
        rblock, stages = _NARROW_TILE_COLUMNS, _STAGES + 1
    else:
        rblock = least if sums == 1 else _NARROW_TILE_COLUMNS
        kblock = _NARROW_TILE_POINTS
    factors = [factor for s in found.sums for factor in (s.left, s.right)]
    within = points_of_groups(kernel, kblock, factors)
    stages = 1 + (stages - 1) * (kblock // within)  # as many bytes on their way
    kblock = within
    summed = static_numel(kernel.reduction)
    if summed is not None:
        kblock = max(_MIN_POINTS, min(kblock, next_power_of_2(summed)))
    warps = 4 if xblock * rblock <= _MOST_OF_FOUR_WARPS else 8
    warps = 2 if xblock * rblock <= least**2 else warps
    return Tiling(xblock, xblock, rblock, False, index_bits, warps, stages, kblock=kblock)


def _tile_of_parts(found: Contraction, least: int) -> tuple[int, int, int]:
    """Columns, points and stages of a tile for a weight whose integers are parts of words.

    On an H200, of 7 to 9 tiles in 3 sizes each. A vector by columns has no row to load, and its
    factor is spread over those of a tile.
    """
    if not found.has_columns:
        return least, _POINTS // 2, _STAGES
    if found.rows:
        return _NARROW_TILE_COLUMNS, _POINTS // 2, _STAGES
    return _NARROW_TILE_COLUMNS, _POINTS, 2


def min_side(gpu: GpuFacts) -> int:
    """The fewest rows or columns of a tile: those of the chip's smallest instruction for matrices.

    Raises:
        KernelRejectedError: the chip's facts state none, so nothing computes products in tiles.
    """
    sides = [max(form.m, form.n) for form in gpu.matrix_instructions]
    if not sides:
        raise KernelRejectedError(
            "the chip's facts state no matrix_instructions; expected some for a product in tiles"
        )
    return min(sides)


def _side(points: int | None, least: int, most: int) -> int:
    return most if points is None else max(least, min(most, next_power_of_2(points)))


def _smaller_and_smaller(tiling: Tiling, target: TargetFacts) -> Iterator[Tiling]:
    """A tiling, then the same with fewer stages, then smaller ones, each with fewer stages too."""
    least = min_side(target.section(GpuFacts))
    while True:
        for stages in range(tiling.num_stages, 1, -1):
            yield replace(tiling, num_stages=stages)
        if tiling.rblock > least and tiling.rblock >= tiling.xblock:
            tiling = replace(tiling, rblock=tiling.rblock // 2)
        elif tiling.xblock > least:
            tiling = replace(tiling, xblock=tiling.xblock // 2, xsub=tiling.xblock // 2)
        elif tiling.kblock > _MIN_POINTS:
            tiling = replace(tiling, kblock=tiling.kblock // 2)
        else:
            return
