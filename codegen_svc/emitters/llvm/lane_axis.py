"""The vectorized axis of a kernel on a CPU, and the accesses that go through tiles beside it."""

from __future__ import annotations

from typing import Final

from kernelfarm.ir.algebra.expr import ONE, ZERO
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Kernel,
    Load,
    Sort,
    Store,
    StoreMode,
    varying_values,
)
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic import can_tile, keeps_outer_order, row_and_column_blocks

# Lanes of a block: several thousand hide the cost of starting a unit. With a reduction, the block's
# accumulators must stay in the L1 cache.
POINTWISE_LANES: Final = 4096
REDUCTION_LANES: Final = 256
# With fewer lanes, the reduction axis is better to vectorize.
MIN_LANES: Final = 16
# Lanes of a tile, if an access is contiguous along another axis: its cache lines stay in the L1
# cache until the next point of that axis uses them.
TILE_LANES: Final = 64
# With fewer rows or lanes, a square in registers would hardly have neighbours.
MIN_TURNED: Final = 4
# Bytes of stack that one unit may use for scratch rows: half of the smallest L1 data cache.
SCRATCH_BYTES: Final = 16 * 1024


def lane_axis(kernel: Kernel, memory: MemoryFacts) -> Axis | None:
    """The last outer axis, unless the reduction is better to vectorize."""
    if not kernel.outer or any(isinstance(s, Sort) for s in kernel.body):
        return None
    lane = kernel.outer[-1]
    if not kernel.reduction:
        return lane
    if keeps_outer_order(kernel) or (lane.extent.is_constant and lane.extent.constant < MIN_LANES):
        return None
    rows, columns = row_and_column_blocks(kernel, memory)
    if columns.is_better(rows) or rows.is_better(columns):
        return lane if columns.is_better(rows) else None
    # Both move as many bytes: a short window, for example. Vectors are along the better steps.
    loads = (s for n in varying_values(kernel) if isinstance(s := kernel.body[n], Load))
    is_contiguous = any(_step_is_one(load, lane) for load in loads)
    is_better = _unit_steps(kernel, lane) > _unit_steps(kernel, kernel.reduction[-1])
    return lane if is_better and is_contiguous else None


def _unit_steps(kernel: Kernel, axis: Axis) -> int:
    """The accesses with step 1 along an axis, less those with another; stores count double."""
    score = 0
    for statement in kernel.body:
        if isinstance(statement, Load | Store) and axis.name in statement.index.symbols:
            weight = 2 if isinstance(statement, Store) else 1
            score += weight if _step_is_one(statement, axis) else -weight
    return score


def _step_is_one(statement: Load | Store, axis: Axis) -> bool:
    return statement.index.coefficient_of(axis.name) is ONE


def lane_block_of(lane: Axis | None, *, has_reduction: bool) -> int:
    """The lanes of a block; 0 without a vectorized axis."""
    if lane is None:
        return 0
    block = REDUCTION_LANES if has_reduction else POINTWISE_LANES
    if lane.extent.is_constant and lane.extent.constant <= 2 * block:
        return max(lane.extent.constant, 1)
    return block


def turned_accesses(kernel: Kernel, rows: tuple[Axis, ...], lane: Axis | None) -> tuple[int, ...]:
    """The accesses whose neighbours lie along the last row axis, and which may go through tiles.

    Elements of a buffer that is read and written must be read and written in the kernel's order.
    """
    if lane is None or not can_tile(kernel):
        return ()
    row = rows[-1]
    if any(axis.extent.is_constant and axis.extent.constant < MIN_TURNED for axis in (row, lane)):
        return ()
    known = {axis.name for axis in kernel.outer} | {size.name for size in kernel.sizes}
    chosen: list[int] = []
    free_bytes = SCRATCH_BYTES
    for number, statement in enumerate(kernel.body):
        if not isinstance(statement, Load | Store) or not statement.index.symbols <= known:
            continue
        param = kernel.param(statement.param)
        size = TILE_LANES * max(TILE_LANES, TILE_LANES // param.dtype.itemsize_bytes)
        if (
            _is_plain(statement)
            and param.access is not Access.READ_WRITE
            and _step_is_one(statement, row)
            and _is_strided(statement, lane)
            and size <= free_bytes
        ):
            chosen.append(number)
            free_bytes -= size
    return tuple(chosen)


def _is_plain(statement: Load | Store) -> bool:
    """True if an access takes place at all points, and a store only replaces the old element."""
    if isinstance(statement, Load):
        return statement.mask is None
    return statement.mode is StoreMode.SET


def _is_strided(statement: Load | Store, lane: Axis) -> bool:
    """True if neighbouring lanes have different elements, but not neighbouring ones."""
    step = statement.index.coefficient_of(lane.name)
    return step is not None and step not in (ZERO, ONE)


def tile_rows(kernel: Kernel, turned: tuple[int, ...], memory: MemoryFacts) -> int:
    """The rows of a tile, which take whole lines of each turned access; 0 if there is none."""
    names = {s.param for n in turned if isinstance(s := kernel.body[n], Load | Store)}
    sizes = [kernel.param(name).dtype.itemsize_bytes for name in names]
    return memory.line_bytes // min(sizes) if sizes else 0
