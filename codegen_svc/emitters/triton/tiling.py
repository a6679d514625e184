"""The division of a kernel's points among programs: block sizes from a chip's facts.

For GPUs a tiling is a guess: the toolchain reports registers and spills, and the backend may try
the next smaller one. For chips with a local buffer, `local_tiling.py` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from codegen_svc.emitters.triton import byte_rows, streamed_rows
from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.byte_rows import points_of_step
from codegen_svc.emitters.triton.column_shapes import column_shape
from codegen_svc.emitters.triton.held_tiling import held_shape
from codegen_svc.emitters.triton.index import kernel_bounds, numel
from codegen_svc.emitters.triton.pixel_windows import pixel_windows
from codegen_svc.emitters.triton.row_blocks import block_over_rows, block_within_rows
from codegen_svc.emitters.triton.streamed_rows import streams_rows
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div
from kernelfarm.ir.contractions import ALL_FACTORS, find_contraction
from kernelfarm.ir.loop_ir import (
    Axis,
    Kernel,
    Load,
    Scan,
    Sort,
    Store,
)
from kernelfarm.targets import GpuFacts, TargetFacts, TritonFacts
from kernelfarm.traffic import BlockForm, choose_block, reads_columns

POINTWISE_ELEMS_PER_THREAD = 8
"""One 16-byte access of f16 or two of f32; on an H200 more did not help."""

# On an H200, a ReLU or batch norm of 25 million bf16 elements reaches 84% of a copy by blocks of
# 1,024 points, 102 by 2,048 with twice as many threads: the chip starts smaller ones too slowly.
_POINTWISE_BLOCK = 2048
# Fewer points are divided among more programs.
_MANY_POINTS = 1 << 20
# On an H200, changes of layout of f16 take 0.93 to 1.02 times as long as with 8.
_TILE_ELEMS_PER_THREAD = 16
_TILE = 2048
# On an H200, softmax, LayerNorm and RMSNorm over bf16 rows of 256, 512 and 1,024 elements reach 80%
# of a copy by blocks of 1,024 elements and 100 by 2,048, of 768 elements 60 and 92 to 101.
_ROWS_BLOCK = 2048
# On an H200, for softmax, LayerNorm and RMSNorm over rows of 16,384 to 131,072 elements.
_LOOPED_RBLOCK = 4096
_VARYING_LOOPED_RBLOCK = 2048
_LONG_LOOPED_RBLOCK = 16384
_LONG_ROW = 65536
"""Longer rows do not all fit a cache: then few programs of many threads are better."""
# A block's scan is unrolled: with 4096 a kernel of five scans took ptxas 26 s.
_SCAN_RBLOCK = 1024
# On an H200, rows of 5000 and 8192 elements take 0.46 to 0.91 times as long in pieces as held
# whole; rows of 3000 take 1.01 to 1.05 times as long.
_MAX_HELD_SCAN = 4096
# Wider rows that do not fill a block are held in pieces, of which at most one has a mask. On an
# H200, LayerNorm and SiLU over rows of varying length reach 98 instead of 85% of a copy for 8,192
# elements, 92 instead of 81% for 16,384; softmax and RMSNorm gain nothing.
_MOST_PADDED_ELEMS = 4096
# If wider rows are held whole, a multiprocessor has room for at most one program.
_EASY_PERSISTENT_ELEMS = 8192
_MAX_WARPS = 16
_REGISTER_BYTES = 4
# About the number of multiprocessors of a large chip; fewer programs leave some of them idle.
_FILL_PROGRAMS = 128
_INDEX_MARGIN = 1 << 20
INDEX_LIMIT = (1 << 31) - _INDEX_MARGIN
"""Largest position that 32-bit indices may reach; the margin is for lanes past the last point."""
EVEN_POINTS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """Block sizes of one kernel.

    A program computes `xblock` outer points, `xsub` at a time, and `rblock` reduction points at a
    time, 0 without reduction axes. If `is_persistent`, it holds all reduction points of a row. If
    `is_tile`, nothing is reduced: a program computes `rblock` points of the `tile_axes` innermost
    outer axes for each of `xblock` points of the other ones. A block that is loaded has
    `load_buffers` in a chip's local buffer: with two, the next block is fetched while the current
    one is used. If `kblock` is not 0, the kernel is a product of matrices: a program computes
    `rblock` columns of `xblock` rows, and reads `kblock` points of the sums at a time. If
    `loop_stages` is not 0, loads of loops over reduction points are copied to shared memory so many
    iterations ahead. If `pieces` is not 0, a program holds its row in so many pieces of `rblock`
    points, and loads what its last loop reads beside it `loads_ahead` pieces ahead; of the pieces,
    `shared_pieces` are in shared memory, the others in registers. A product with `has_maps` loads
    its factors by tensor maps. With `reads_words`, four neighbouring bytes are loaded as a word
    (`word_loads.py`). If `programs` is not 0, so many programs compute all tiles of a product, one
    after the other. A program is a cluster of `blocks` blocks of `num_warps` each, which share a
    held row and reduce it through their shared memory. If `box` is not empty, the `rblock` columns
    of a product are the pixels of a box (`pixel_windows.py`). If `has_even_points`, the number of
    outer points is a multiple of `EVEN_POINTS`. With `lane_groups`, sums of exponentials have one
    guide for so many points of a block (`streamed_rows.py`).
    """

    xblock: int
    xsub: int
    rblock: int
    is_persistent: bool
    index_bits: int
    num_warps: int = 1
    num_stages: int = 1
    is_tile: bool = False
    load_buffers: int = 1
    kblock: int = 0
    loop_stages: int = 0
    pieces: int = 0
    loads_ahead: int = 0
    shared_pieces: int = 0
    has_maps: bool = False
    reads_words: bool = False
    programs: int = 0
    blocks: int = 1
    box: tuple[int, ...] = ()
    tile_axes: int = 1
    has_even_points: bool = False
    lane_groups: int = 0


def is_reduction(kernel: Kernel) -> bool:
    """True if the kernel's blocks need a second axis."""
    return bool(kernel.reduction)


def static_numel(axes: tuple[Axis, ...]) -> int | None:
    """The number of points of a nest if it is static, else None."""
    points = numel(axes)
    return points.as_int() if points.is_constant else None


def gpu_tiling(
    kernel: Kernel,
    target: TargetFacts,
    index_bits: int,
    level: int = 0,
    width_limit: int | None = None,
    *,
    even_sizes: frozenset[str] | None = None,
) -> Tiling | None:
    """The tiling for a chip with warps, shrunk `level` times; None if there is no smaller one.

    `width_limit`: an assumption that a reduction of varying extent has at most so many points.
    `even_sizes`: one that buffers begin at multiples of 16 bytes, and that these sizes are
    multiples of 16.
    """
    gpu = target.section(GpuFacts)
    if sorts_rows(kernel):
        tiling = _sorting_tiling(kernel, target, index_bits)
    elif is_reduction(kernel) and reads_columns(kernel, target.memory):
        tiling = _column_tiling(kernel, gpu, index_bits, even_sizes)
    elif is_reduction(kernel):
        tiling = _reduction(kernel, target, index_bits, width_limit)
    else:
        tiling = _pointwise(kernel, target, index_bits)
    for _ in range(level):
        smaller = _held_instead(kernel, tiling, gpu, width_limit) or _shrunk(tiling, gpu)
        if scans_rows(kernel) and tiling.is_persistent and tiling.rblock > _SCAN_RBLOCK:
            smaller = _scanning_tiling(gpu, index_bits, None)
        if smaller is None or (sorts_rows(kernel) and not smaller.is_persistent):
            return None
        tiling = smaller
    return tiling


def needs_64_bit_indices(kernel: Kernel) -> bool:
    """True unless every position is proven to stay below `INDEX_LIMIT`."""
    bounds = kernel_bounds(kernel)
    exprs: list[Expr] = [numel(kernel.outer), numel(kernel.reduction)]
    exprs += [param.size_elems for param in kernel.params]
    exprs += [s.index for s in kernel.body if isinstance(s, Load | Store) and s.index.is_constant]
    return any(high is None or high > INDEX_LIMIT for _, high in map(bounds.interval, exprs))


def program_count(kernel: Kernel, tiling: Tiling) -> Expr:
    """The number of programs that compute all points."""
    if tiling.kblock and (product := find_contraction(kernel, ALL_FACTORS)) is not None:
        if tiling.programs:
            return as_expr(tiling.programs)
        if tiling.box and (windows := pixel_windows(kernel)) is not None:
            rows = ceil_div(numel(windows.product.rows), tiling.xblock)
            return rows * windows.tiles(tiling.box) * numel(product.batches)
        tiles = ceil_div(numel(product.columns), tiling.rblock) * numel(product.batches)
        return ceil_div(numel(product.rows), tiling.xblock) * tiles
    if not tiling.is_tile:
        return ceil_div(numel(kernel.outer), tiling.xblock)
    tiles = ceil_div(numel(kernel.outer[-tiling.tile_axes :]), tiling.rblock)
    return ceil_div(numel(kernel.outer[: -tiling.tile_axes]), tiling.xblock) * tiles


def _pointwise(kernel: Kernel, target: TargetFacts, index_bits: int) -> Tiling:
    gpu = target.section(GpuFacts)
    choice = choose_block(kernel, target.memory)
    if choice.form is not BlockForm.FLAT:
        return _tile(kernel, gpu, index_bits, choice.side)
    points = static_numel(kernel.outer)
    is_large = points is None or points >= _MANY_POINTS
    xblock = _POINTWISE_BLOCK if is_large else _POINTWISE_BLOCK // 2
    if block := block_within_rows(kernel):
        rows = max(1, xblock // block)
        warps = _warps(rows * block, POINTWISE_ELEMS_PER_THREAD, gpu)
        return Tiling(rows, rows, block, False, index_bits, warps, 1, is_tile=True)
    over = block_over_rows(kernel)
    if over is not None and points is not None and points >= _FILL_PROGRAMS * _POINTWISE_BLOCK:
        warps = _warps(over.rows * over.columns, _TILE_ELEMS_PER_THREAD, gpu)
        tiling = Tiling(over.rows, over.rows, over.columns, False, index_bits, warps, 1)
        return replace(tiling, is_tile=True, tile_axes=over.axes)
    if points is not None:
        xblock = max(gpu.warp_size, min(xblock, next_power_of_2(points)))
    warps = _warps(xblock, POINTWISE_ELEMS_PER_THREAD, gpu)
    return Tiling(xblock, xblock, 0, False, index_bits, warps, 1)


def _tile(kernel: Kernel, gpu: GpuFacts, index_bits: int, side: int) -> Tiling:
    """A square of two axes, smaller along an axis that is shorter."""
    rows, columns = static_numel(kernel.outer[:-1]), static_numel(kernel.outer[-1:])
    xblock = side if rows is None else min(side, next_power_of_2(rows))
    rblock = side if columns is None else min(side, next_power_of_2(columns))
    warps = _warps(xblock * rblock, _TILE_ELEMS_PER_THREAD, gpu)
    return Tiling(xblock, xblock, rblock, False, index_bits, warps, 1, is_tile=True)


def _reduction(
    kernel: Kernel, target: TargetFacts, index_bits: int, width_limit: int | None
) -> Tiling:
    gpu = target.section(GpuFacts)
    rows, width = static_numel(kernel.outer), static_numel(kernel.reduction)
    if points := points_of_step(kernel):
        return Tiling(1, 1, points, False, index_bits, byte_rows.WARPS, 1)
    widest = width if width is not None else width_limit
    most = gpu.max_persistent_elems
    most = min(most, _MAX_HELD_SCAN) if scans_rows(kernel) else most
    rblock = 0 if widest is None else next_power_of_2(widest)
    if (widest is None or rblock > _MOST_PADDED_ELEMS) and streams_rows(kernel):
        return _streamed_tiling(gpu, index_bits)
    is_long = widest is None or rblock > most
    if widest is not None and (is_long or width != rblock > _MOST_PADDED_ELEMS):
        held = _held_tiling(kernel, gpu, index_bits, widest)
        if held is not None:
            return held
    if widest is None or is_long:
        looped = _scanning_tiling if scans_rows(kernel) else _looped_tiling
        return looped(gpu, index_bits, width)
    xblock = _filling_rows(max(1, _ROWS_BLOCK // rblock), rows)
    warps = _warps(xblock * rblock, gpu.reduction_elems_per_thread, gpu)
    return Tiling(xblock, xblock, rblock, widest > 0, index_bits, warps, 1)


def sorts_rows(kernel: Kernel) -> bool:
    """True if the kernel sorts, so that a block must hold whole rows."""
    return any(isinstance(s, Sort) for s in kernel.body)


def scans_rows(kernel: Kernel) -> bool:
    """True if the kernel scans: a value of a row depends on those before it."""
    return any(isinstance(s, Scan) for s in kernel.body)


def longest_sorted(kernel: Kernel, target: TargetFacts) -> int:
    """The most elements that a row can have.

    Raises:
        KernelRejectedError: a block of the target cannot sort so many.
    """
    most = target.section(TritonFacts).max_sort_elems
    _, longest = kernel_bounds(kernel).interval(numel(kernel.reduction))
    if longest is None or longest > most:
        length = "any number of" if longest is None else str(longest)
        raise KernelRejectedError(
            f"kernel {kernel.name} sorts rows of {length} elements; a block of {target.name} sorts"
            f" at most {most}"
        )
    return longest


def _sorting_tiling(kernel: Kernel, target: TargetFacts, index_bits: int) -> Tiling:
    rblock = next_power_of_2(longest_sorted(kernel, target))
    xblock = _filling_rows(max(1, _TILE // 2 // rblock), static_numel(kernel.outer))
    warps = _warps(xblock * rblock, POINTWISE_ELEMS_PER_THREAD, target.section(GpuFacts))
    return Tiling(xblock, xblock, rblock, True, index_bits, warps, 1)


def _filling_rows(xblock: int, rows: int | None) -> int:
    """Rows of one program; fewer if a large chip would get too few programs."""
    while rows is not None and xblock > 1 and rows // xblock < _FILL_PROGRAMS:
        xblock //= 2
    return xblock


def _looped_tiling(gpu: GpuFacts, index_bits: int, width: int | None) -> Tiling:
    """For rows of `width` points, or, if it is None, of any number."""
    if width is None:
        rblock = _VARYING_LOOPED_RBLOCK
    else:
        rblock = _LONG_LOOPED_RBLOCK if width > _LONG_ROW else _LOOPED_RBLOCK
    warps = rblock // (gpu.warp_size * POINTWISE_ELEMS_PER_THREAD)
    warps = min(warps, gpu.max_threads_per_block // gpu.warp_size)
    return Tiling(1, 1, rblock, False, index_bits, warps, 2)


def _streamed_tiling(gpu: GpuFacts, index_bits: int) -> Tiling:
    """For rows of any number of points that one loop reads."""
    rblock = streamed_rows.GROUPS * streamed_rows.ACCESS_ELEMS * streamed_rows.THREADS
    warps = streamed_rows.THREADS // gpu.warp_size
    return Tiling(1, 1, rblock, False, index_bits, warps, 2, lane_groups=streamed_rows.GROUPS)


def _held_tiling(kernel: Kernel, gpu: GpuFacts, index_bits: int, width: int) -> Tiling | None:
    """For rows of at most `width` points that several loops read from registers."""
    held = held_shape(kernel, gpu, width)
    if held is None:
        return None
    warps = held.threads // gpu.warp_size
    tiling = Tiling(1, 1, held.piece_elems, False, index_bits, warps, 1)
    return replace(tiling, pieces=held.pieces, blocks=held.blocks, loads_ahead=held.loads_ahead)


def _held_instead(
    kernel: Kernel, tiling: Tiling, gpu: GpuFacts, width_limit: int | None
) -> Tiling | None:
    """Rows in pieces, for rows that are too wide to be held whole; then by more threads."""
    width = static_numel(kernel.reduction) or width_limit
    if width is None or scans_rows(kernel) or sorts_rows(kernel):
        return None
    if tiling.is_persistent and tiling.rblock > _EASY_PERSISTENT_ELEMS:
        return _held_tiling(kernel, gpu, tiling.index_bits, width)
    if tiling.loads_ahead:  # They take registers.
        return replace(tiling, loads_ahead=0)
    if tiling.pieces > 1 and tiling.num_warps * gpu.warp_size < gpu.max_threads_per_block:
        rblock = 2 * tiling.rblock
        pieces = ceil(width / rblock)
        return replace(tiling, rblock=rblock, num_warps=2 * tiling.num_warps, pieces=pieces)
    return None


def holds_rows(tiling: Tiling) -> bool:
    """True if a program reads each row once."""
    return tiling.is_persistent or tiling.pieces > 0


def fills_multiprocessor(tiling: Tiling, gpu: GpuFacts) -> bool:
    """True if a program is meant to have a multiprocessor alone, with a row in a cache or held."""
    if tiling.pieces:
        held = tiling.num_warps * gpu.warp_size * gpu.held_thread_bytes
        registers = gpu.registers_per_multiprocessor
        has_half = registers is not None and held >= registers * _REGISTER_BYTES // 2
        return tiling.num_warps > _MAX_WARPS or has_half
    return not tiling.is_persistent and tiling.rblock > _LOOPED_RBLOCK


def _scanning_tiling(gpu: GpuFacts, index_bits: int, width: int | None) -> Tiling:
    """A scan of rows in pieces: a piece waits for the one before it, so it has few threads."""
    tiling = _looped_tiling(gpu, index_bits, width)
    return replace(tiling, rblock=_SCAN_RBLOCK, num_warps=4)


def _column_tiling(
    kernel: Kernel, gpu: GpuFacts, index_bits: int, even_sizes: frozenset[str] | None
) -> Tiling:
    """For neighbouring outer points that are adjacent in memory: a block spans many of them."""
    shape = column_shape(kernel, gpu, even_sizes)
    stages = shape.stages or (1 if shape.is_whole else 2)
    tiling = Tiling(
        shape.columns, shape.columns, shape.points, shape.is_whole, index_bits, shape.warps, stages
    )
    return replace(tiling, loop_stages=shape.stages)


def _warps(tile_elems: int, per_thread: int, gpu: GpuFacts) -> int:
    limit = min(_MAX_WARPS, gpu.max_threads_per_block // gpu.warp_size)
    return max(1, min(limit, next_power_of_2(tile_elems // (gpu.warp_size * per_thread))))


def _shrunk(tiling: Tiling, gpu: GpuFacts) -> Tiling | None:
    """The next smaller tiling: wide rows looped over, more warps, fewer rows, smaller blocks."""
    if tiling.pieces or (tiling.is_persistent and tiling.rblock > _EASY_PERSISTENT_ELEMS):
        return _looped_tiling(gpu, tiling.index_bits, max(1, tiling.pieces) * tiling.rblock)
    limit = gpu.max_threads_per_block // gpu.warp_size
    elems_per_thread = tiling.xblock * max(1, tiling.rblock) // (tiling.num_warps * gpu.warp_size)
    if tiling.num_warps < limit and elems_per_thread >= 2 * POINTWISE_ELEMS_PER_THREAD:
        groups = tiling.lane_groups // 2
        return replace(tiling, num_warps=tiling.num_warps * 2, lane_groups=groups)
    if tiling.xblock > 1 and not (tiling.is_tile and tiling.rblock > tiling.xblock):
        half = tiling.xblock // 2
        return replace(tiling, xblock=half, xsub=half)
    if tiling.is_tile and tiling.rblock > 1:
        return replace(tiling, rblock=tiling.rblock // 2)
    if tiling.rblock > 256:
        return replace(tiling, rblock=tiling.rblock // 2, is_persistent=False, num_stages=1)
    return None
