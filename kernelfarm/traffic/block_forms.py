"""The form of a kernel's blocks: which of the possible ones moves the fewest bytes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from math import prod

from kernelfarm.ir.loop_ir import Kernel, scattering_stores
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic.access_patterns import KernelAccesses, kernel_accesses
from kernelfarm.traffic.model import Moved, flat_block, moved, request_cost_bytes

MAX_TILE_SIDE = 64
"""Points of a tile's side at most: 4,096 points are as many as a block should have."""
_MIN_TILE_SIDE = 16
_COLUMNS = 64
_STRIPS = (1024, 512, 256, 128)
# Lanes of strips for each point: few if possible, and never more than the second number.
_PADDINGS = (1.07, 1.15)
# A vector of 16 bytes may start at each row.
_VECTOR_BYTES = 16
# For a request of a value of a row, when each point loads it. Estimated from a flat kernel of
# Inductor: batch norm with four vectors of channels reaches 58% of a copy's speed on an H200.
_ROW_VALUE_BYTES = 24
# Prices within two percent are equal; the simpler form or the first order wins.
_SAME = 1.02


class BlockForm(enum.Enum):
    """Which points a block holds.

    FLAT: consecutive points. TILE: some points of the two innermost axes. STRIPS: many points of
    the innermost axis, for few points of the others, whose values are loaded once. ROWS: the points
    of a reduction, for few outer points. COLUMNS: many outer points, and some points of each
    reduction.
    """

    FLAT = "flat"
    TILE = "tile"
    STRIPS = "strips"
    ROWS = "rows"
    COLUMNS = "columns"


_PRICES = {BlockForm.TILE: 1.25, BlockForm.STRIPS: 1.1}
"""Judgement: masks on two axes; elements of a tile change threads between load and store."""


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """A form, and what it moves.

    `sides` has the points of a tile or strip along the outer axes but the last, and along the last.
    """

    form: BlockForm
    moved: Moved
    sides: tuple[int, int] = (0, 0)

    def is_better(self, other: BlockChoice) -> bool:
        """True if this form is clearly cheaper."""
        return self._price * _SAME < other._price

    def with_extra(self, extra_bytes: int) -> BlockChoice:
        """The same form at a higher cost."""
        cost_bytes = self.moved.cost_bytes + extra_bytes
        return replace(self, moved=replace(self.moved, cost_bytes=cost_bytes))

    @property
    def _price(self) -> float:
        return self.moved.cost_bytes * _PRICES.get(self.form, 1.0)


def choose_block(kernel: Kernel, memory: MemoryFacts) -> BlockChoice:
    """The form of the blocks of a kernel whose axes are in order."""
    accesses = kernel_accesses(kernel)
    outer = tuple(axis.name for axis in kernel.outer)
    reduction = tuple(axis.name for axis in kernel.reduction)
    return best_block(accesses, outer, reduction, memory, can_tile=can_tile(kernel))


def reads_columns(kernel: Kernel, memory: MemoryFacts) -> bool:
    """True if neighbouring outer points of a reduction should be computed together."""
    return choose_block(kernel, memory).form is BlockForm.COLUMNS


def row_and_column_blocks(kernel: Kernel, memory: MemoryFacts) -> tuple[BlockChoice, BlockChoice]:
    """What a reduction moves in blocks of both forms; the kernel has outer axes."""
    outer, reduction = (tuple(a.name for a in axes) for axes in (kernel.outer, kernel.reduction))
    accesses = kernel_accesses(kernel)
    rows, columns = block_choices(accesses, outer, reduction, memory, can_tile=False)
    return rows, columns


def can_tile(kernel: Kernel) -> bool:
    """True if the blocks may be tiles: nothing is reduced, and no update depends on an order."""
    return len(kernel.outer) > 1 and not kernel.reduction and not scattering_stores(kernel)


def best_block(
    accesses: KernelAccesses,
    outer: tuple[str, ...],
    reduction: tuple[str, ...],
    memory: MemoryFacts,
    *,
    can_tile: bool,
) -> BlockChoice:
    """The form that moves the fewest bytes for an order of axes; the simpler one if few more."""
    best, *others = block_choices(accesses, outer, reduction, memory, can_tile=can_tile)
    for choice in others:
        best = choice if choice.is_better(best) else best
    return best


def block_choices(
    accesses: KernelAccesses,
    outer: tuple[str, ...],
    reduction: tuple[str, ...],
    memory: MemoryFacts,
    *,
    can_tile: bool,
) -> list[BlockChoice]:
    """The possible forms for an order of axes, the simplest first."""
    extents, points = accesses.extents, memory.block_points

    def choice(
        form: BlockForm, block: dict[str, int], requests_along: tuple[str, ...]
    ) -> BlockChoice:
        found = moved(accesses, block, memory)
        requests = request_cost_bytes(accesses, requests_along, memory)
        return BlockChoice(form, replace(found, cost_bytes=max(found.cost_bytes, requests)))

    axes = (*outer, *reduction)
    form = BlockForm.ROWS if reduction else BlockForm.FLAT
    choices = [choice(form, flat_block(axes, extents, points), axes)]
    if reduction and outer:
        block = flat_block(outer, extents, _COLUMNS)
        block |= flat_block(reduction, extents, points // _COLUMNS)
        choices.append(choice(BlockForm.COLUMNS, block, (*reduction, *outer)))
    elif can_tile:
        choices += _two_axes(accesses, outer, memory)
        # Vectors may run along either side of a tile, so its price does not depend on their order.
        inner = {BlockForm.FLAT: outer[-1:], BlockForm.TILE: outer[-2:], BlockForm.STRIPS: ()}
        choices = [
            c.with_extra(_row_value_bytes(accesses, outer, inner[c.form], memory)) for c in choices
        ]
    return choices


def _two_axes(
    accesses: KernelAccesses, outer: tuple[str, ...], memory: MemoryFacts
) -> list[BlockChoice]:
    """Tiles and strips. Their requests are not strided: elements change threads if necessary."""
    side, strip = tile_side(accesses, memory), _strip(accesses, outer[-1], memory)
    sides = [(BlockForm.TILE, (side, side))] if side else []
    if strip:
        sides.append((BlockForm.STRIPS, (max(1, memory.block_points // strip), strip)))
    found = []
    for form, (rows, columns) in sides:
        block = {outer[-1]: min(columns, accesses.extents[outer[-1]])}
        block |= flat_block(outer[:-1], accesses.extents, rows)
        found.append(BlockChoice(form, moved(accesses, block, memory), (rows, columns)))
    return found


def _row_value_bytes(
    accesses: KernelAccesses, outer: tuple[str, ...], inner: tuple[str, ...], memory: MemoryFacts
) -> int:
    """What it costs that points load values again which are equal along one of the inner axes."""
    if not memory.loads_each_point:
        return 0
    points = prod(accesses.extents[axis] for axis in outer)
    moving = [{axis for axis, _ in pattern.steps} for pattern in accesses.patterns]
    values = sum(bool(axes) and not axes.issuperset(inner) for axes in moving)
    return values * points * _ROW_VALUE_BYTES // memory.request_points


def _strip(accesses: KernelAccesses, last: str, memory: MemoryFacts) -> int:
    """The length of a strip along the last axis; 0 if no length fits it, or rows are unaligned."""
    if not memory.loads_each_point:
        return 0
    for pattern in accesses.patterns:
        others = [step for axis, step in pattern.steps if axis != last]
        if len(others) < len(pattern.steps) and any(step % _VECTOR_BYTES for step in others):
            return 0
    extent = accesses.extents[last]
    fitting = (n for most in _PADDINGS for n in _STRIPS if -(-extent // n) * n <= extent * most)
    return next(fitting, 0)


def tile_side(accesses: KernelAccesses, memory: MemoryFacts) -> int:
    """The side of a square tile in points; 0 if the chip has none."""
    if memory.tile_side_bytes is None:
        return 0
    narrowest = min((p.item_bytes for p in accesses.patterns), default=1)
    return max(_MIN_TILE_SIDE, min(MAX_TILE_SIDE, memory.tile_side_bytes // narrowest))
