"""The form of a kernel's blocks: which of the possible ones moves the fewest bytes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from kernelfarm.ir.loop_ir import Kernel, scattering_stores
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic.access_patterns import KernelAccesses, kernel_accesses
from kernelfarm.traffic.model import Moved, flat_block, moved, request_cost_bytes

MAX_TILE_SIDE = 64
"""Points of a tile's side at most: 4,096 points are as many as a block should have."""
_MIN_TILE_SIDE = 16
_COLUMNS = 64
# Prices within two percent are equal; the simpler form or the first order wins.
_SAME = 1.02


class BlockForm(enum.Enum):
    """Which points a block holds.

    FLAT: consecutive points. TILE: some points of the two innermost axes. ROWS: the points of a
    reduction, for few outer points. COLUMNS: many outer points, and some points of each reduction.
    """

    FLAT = "flat"
    TILE = "tile"
    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """A form, and what it moves.

    `side` has the points of a tile along each of its two axes. `price` is a factor for what a form
    costs beside memory.
    """

    form: BlockForm
    moved: Moved
    side: int = 0
    price: float = 1.0

    def is_better(self, other: BlockChoice) -> bool:
        """True if this form is clearly cheaper."""
        return self._priced_bytes * _SAME < other._priced_bytes

    @property
    def _priced_bytes(self) -> float:
        return self.moved.cost_bytes * self.price


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
    elif can_tile and _turns(accesses, outer[-1]) and (side := tile_side(accesses, memory)):
        block = {outer[-1]: min(side, extents[outer[-1]])} | flat_block(outer[:-1], extents, side)
        found = moved(accesses, block, memory)
        # Its requests are not strided: elements change threads if necessary.
        choices.append(BlockChoice(BlockForm.TILE, found, side, memory.tile_price))
    return choices


def _turns(accesses: KernelAccesses, last: str) -> bool:
    """True if an access is strided along the last axis.

    Otherwise a tile only saves reading broadcast elements again, from a cache, and loses long runs:
    a bias and GELU of 512 x 3072 f32 takes 1.5 times as long in tiles on an AVX-512 processor.
    """
    return any(dict(p.steps).get(last, 0) > p.item_bytes for p in accesses.patterns)


def tile_side(accesses: KernelAccesses, memory: MemoryFacts) -> int:
    """The side of a square tile in points; 0 if the chip has none."""
    if memory.tile_side_bytes is None:
        return 0
    narrowest = min((p.item_bytes for p in accesses.patterns), default=1)
    return max(_MIN_TILE_SIDE, min(MAX_TILE_SIDE, memory.tile_side_bytes // narrowest))
