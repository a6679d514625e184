"""Tiles for products with many rows: all that a chip can hold, in the order of estimated times.

The candidates follow from the chip's facts: sides that its instructions for matrices divide, blocks
that its shared memory holds, sums that its registers hold. The estimate is in cycles of one
multiprocessor. A step of the loop takes as long as its products, as its loads from the second-level
cache, or as its share of their latency, whichever is longest, and a part of the others.

On an H200, of 6 to 11 tiles for each of 14 products of 256 to 8,192 rows, the first tile takes at
most 1.11 times as long as the best one, and 1.007 times in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.tiling import Tiling, static_numel
from kernelfarm.ir.contractions import Contraction
from kernelfarm.ir.loop_ir import Compute, Kernel
from kernelfarm.ir.prims import FUNCTION_OPS
from kernelfarm.targets import GpuFacts, TargetFacts

FACTOR_BYTES = 2
_SIDES = (32, 64, 128, 256)
_POINTS = (32, 64, 128)
_WARPS = (4, 8)
_STAGES = (2, 3, 4, 5)
# Judgement: half of the registers of a thread hold sums.
_ACCUMULATED_SHARE = 2
# Of sm_90a's 255 registers of a thread: with 128 sums, or more loads, all of 8 tiles spilled.
_LOADED_ELEMS = 64
# Judgement: a load from memory on its way through the second-level cache.
_LATENCY_CYCLES = 800
# Judgement: instructions of one warp reach so much of the rate where groups of warps have others.
_LONE_WARP_RATE = 0.6
# By 64 columns, an instruction of a group of warps reads shared memory as long as it multiplies: on
# an H200, SwiGLU of 512 rows takes 1.13 times as long by tiles of 128 x 64 as by 128 x 128.
_NARROW_TILE_COLUMNS, _NARROW_TILE_RATE = 64, 0.85
_LIGHT_POINTS = 8192
# On an H200, sums of 16 terms with a SiLU take 53 us by tiles of 128 x 128, 4 warps and two
# programs for each multiprocessor, 72 by one, 69 by tiles of 256 x 128, 8 warps and one.
SHORT_SUM, _SHARED_POINTS = 64, 16384
# Judgement: what is done at the same time is not free.
_OVERLAP_LOSS = 0.2
_USUAL_EXTENT = 4096
"""The assumed extent of an axis whose extent varies."""
_USUAL_PROGRAMS = 108


@dataclass(frozen=True, slots=True)
class _Problem:
    """The extents of a product, and how often the kernel has factors of each side and sums."""

    rows: int
    columns: int
    summed: int
    batches: int
    lefts: int
    rights: int
    sums: int


def shared_bytes(found: Contraction, tiling: Tiling) -> int:
    """The shared memory that the blocks of all factors take, for all stages of the loop."""
    left, right = ({getattr(s, side) for s in found.sums} for side in ("left", "right"))
    points = len(left) * tiling.xblock + len(right) * tiling.rblock
    return tiling.num_stages * points * tiling.kblock * FACTOR_BYTES


def fits_chip(found: Contraction, tiling: Tiling, gpu: GpuFacts) -> bool:
    """True if a chip has the shared memory and the registers that a tile needs."""
    threads = tiling.num_warps * gpu.warp_size
    held = len(found.sums) * tiling.xblock * tiling.rblock
    return (
        shared_bytes(found, tiling) <= gpu.max_shared_bytes
        and threads <= gpu.max_threads_per_block
        and held * _ACCUMULATED_SHARE <= threads * (gpu.max_registers + 1)
    )


def fits_registers(found: Contraction, tiling: Tiling, gpu: GpuFacts) -> bool:
    """True if loads of single elements, whose values wait in registers, leave room for the sums."""
    threads = tiling.num_warps * gpu.warp_size
    left, right = ({getattr(s, side) for s in found.sums} for side in ("left", "right"))
    points = (len(left) * tiling.xblock + len(right) * tiling.rblock) * tiling.kblock
    held = len(found.sums) * tiling.xblock * tiling.rblock
    return points <= _LOADED_ELEMS * threads and held <= _LOADED_ELEMS * threads


def many_row_tilings(
    kernel: Kernel,
    found: Contraction,
    target: TargetFacts,
    index_bits: int,
    columns_in: Callable[[int], int] | None = None,
) -> tuple[Tiling, ...]:
    """The tiles that fit, the one with the least estimated time first.

    `columns_in`: the columns of all tiles of so many, if some are computed for nothing.
    """
    problem = _problem(kernel, found)

    def cycles(tiling: Tiling) -> float:
        if columns_in is None:
            return estimated_cycles(problem, tiling, target)
        padded = replace(problem, columns=columns_in(tiling.rblock))
        return estimated_cycles(padded, tiling, target)

    gpu = target.gpu
    if gpu is None:
        return ()
    fitting = (t for t in _candidates(problem, gpu, index_bits) if fits_chip(found, t, gpu))
    timed = {tiling: cycles(tiling) for tiling in fitting}
    has_functions = _has_functions(kernel)

    is_behind = has_functions_behind(kernel)

    def order(tiling: Tiling) -> tuple[bool, float, int, int]:
        # What follows takes longer than a short sum: two programs hide each other's latency.
        is_shared = (
            tiling.num_warps == _WARPS[0] and tiling.xblock * tiling.rblock == _SHARED_POINTS
        )
        # Of equal estimates, more stages of fewer points take 0.9 to 1 times as long as fewer of
        # more.
        is_heavy = has_functions and tiling.xblock * tiling.rblock > _LIGHT_POINTS
        warps = _WARPS[-1] if is_heavy else _WARPS[0]
        rest = timed[tiling], tiling.kblock, abs(tiling.num_warps - warps)
        return (is_behind and not is_shared, *rest)

    return tuple(sorted(timed, key=order))


def has_functions_behind(kernel: Kernel) -> bool:
    """True if a kernel computes exponentials or the like behind short sums."""
    summed = static_numel(kernel.reduction)
    return summed is not None and summed <= SHORT_SUM and _has_functions(kernel)


def _has_functions(kernel: Kernel) -> bool:
    """True if a kernel computes exponentials or the like of its sums.

    On an H200, a GELU behind tiles of 128 x 128 takes 1.02 to 1.3 times as long by four warps as by
    eight, behind tiles of 64 x 128 0.92 to 0.94 times; other products take 0.8 to 1.02 times.
    """
    return any(isinstance(value, Compute) and value.op in FUNCTION_OPS for value in kernel.body)


def _problem(kernel: Kernel, found: Contraction) -> _Problem:
    def extent(points: int | None) -> int:
        return _USUAL_EXTENT if points is None else points

    return _Problem(
        rows=extent(static_numel(found.rows)),
        columns=extent(static_numel(found.columns)),
        summed=extent(static_numel(kernel.reduction)),
        batches=extent(static_numel(found.batches)),
        lefts=len({s.left for s in found.sums}),
        rights=len({s.right for s in found.sums}),
        sums=len(found.sums),
    )


def _candidates(problem: _Problem, gpu: GpuFacts, index_bits: int) -> Iterator[Tiling]:
    least = min((max(form.m, form.n) for form in gpu.matrix_instructions), default=0)
    if not least:
        return
    rows, columns = (
        sorted({max(least, min(side, next_power_of_2(extent))) for side in _SIDES})
        for extent in (problem.rows, problem.columns)
    )
    deepest = max(16, next_power_of_2(problem.summed))
    points = sorted({min(point, deepest) for point in _POINTS})
    for x, r, k, warps, stages in product(rows, columns, points, _WARPS, _STAGES):
        if x * r >= warps * least * least:  # each warp has a tile of an instruction
            yield Tiling(x, x, r, False, index_bits, warps, stages, kblock=k)


def estimated_cycles(problem: _Problem, tiling: Tiling, target: TargetFacts) -> float:
    """The cycles of a multiprocessor until all tiles are computed."""
    gpu = target.gpu
    if gpu is None or not gpu.multiply_adds_per_cycle:
        return 0.0
    x, r, k = tiling.xblock, tiling.rblock, tiling.kblock
    products = problem.sums * x * r * k / (gpu.multiply_adds_per_cycle * _rate(tiling, gpu))
    loaded = (problem.lefts * x + problem.rights * r) * k * FACTOR_BYTES
    waits = _LATENCY_CYCLES / (tiling.num_stages - 1)
    parts = (products, loaded / gpu.cache_bytes_per_cycle, waits)
    step = max(parts) + _OVERLAP_LOSS * (sum(parts) - max(parts))
    stored = x * r * FACTOR_BYTES / gpu.cache_bytes_per_cycle
    tile = _LATENCY_CYCLES + -(-problem.summed // k) * step + stored
    tiles = -(-problem.rows // x) * -(-problem.columns // r) * problem.batches
    programs = gpu.multiprocessors or target.memory.saturating_programs or _USUAL_PROGRAMS
    return -(-tiles // programs) * tile


def _rate(tiling: Tiling, gpu: GpuFacts) -> float:
    """The share of the chip's rate that the instructions of a tile reach."""
    groups = [form for form in gpu.matrix_instructions if form.warps > 1]
    is_grouped = any(
        tiling.xblock % form.m == 0
        and tiling.rblock % form.n == 0
        and tiling.num_warps % form.warps == 0
        for form in groups
    )
    narrow = _NARROW_TILE_RATE if groups and tiling.rblock <= _NARROW_TILE_COLUMNS else 1.0
    return narrow if is_grouped or not groups else _LONE_WARP_RATE * narrow
