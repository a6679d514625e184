"""The order of a kernel's axes: the one whose blocks move the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.loop_ir import (
    Axis,
    Kernel,
    Store,
    StoreMode,
    is_ordered_reduction,
    scattering_stores,
)
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic.access_patterns import KernelAccesses, kernel_accesses
from kernelfarm.traffic.block_forms import BlockChoice, best_block, can_tile
from kernelfarm.traffic.model import contiguous_bytes

_Names = tuple[str, ...]


def order_axes(kernel: Kernel, memory: MemoryFacts, sizes: Bounds | None = None) -> Kernel:
    """The kernel with its axes in the best order; `sizes` has ranges of sizes that it lacks.

    The innermost axis comes last. If blocks are tiles, the last two axes are their sides. Axes
    whose order has a meaning keep it.
    """
    is_outer_free = len(kernel.outer) > 1 and not keeps_outer_order(kernel)
    is_reduction_free = len(kernel.reduction) > 1 and not keeps_reduction_order(kernel)
    if not is_outer_free and not is_reduction_free:
        return kernel
    accesses = kernel_accesses(kernel, sizes)
    outer, reduction = (tuple(a.name for a in axes) for axes in (kernel.outer, kernel.reduction))
    tiles = can_tile(kernel)
    outers = _orders(outer, accesses, memory, tiles) if is_outer_free else [outer]
    reductions = _orders(reduction, accesses, memory, False) if is_reduction_free else [reduction]
    best: tuple[BlockChoice, _Names, _Names] | None = None
    for outer, reduction in product(outers, reductions):
        choice = best_block(accesses, outer, reduction, memory, can_tile=tiles)
        if best is None or choice.is_better(best[0]):
            best = choice, outer, reduction
    if best is None:
        return kernel
    return replace(
        kernel,
        outer=_in_order(kernel.outer, best[1]),
        reduction=_in_order(kernel.reduction, best[2]),
    )


def keeps_outer_order(kernel: Kernel) -> bool:
    """True if the last of several updates of one element must take effect, in the graph's order."""
    stores = (kernel.body[number] for number in scattering_stores(kernel))
    return any(isinstance(s, Store) and s.mode is StoreMode.SET for s in stores)


def keeps_reduction_order(kernel: Kernel) -> bool:
    """True if the meaning depends on the order: arg-reductions, scans and sorts."""
    return any(is_ordered_reduction(s) for s in kernel.body)


def _orders(
    axes: _Names, accesses: KernelAccesses, memory: MemoryFacts, is_tiled: bool
) -> list[_Names]:
    """The orders to compare, the most likely one first.

    Innermost are axes along which some access is contiguous, by the bytes of such accesses; if
    blocks may be tiles, two of them. The others are in the order of the stores' steps.
    """
    ranked = _by_step(axes, accesses)
    near = contiguous_bytes(accesses, memory.sector_bytes)
    likely = [axis for axis in reversed(ranked) if axis in near] or [ranked[-1]]
    likely.sort(key=lambda axis: -near.get(axis, 0))
    ends: list[_Names] = [(axis,) for axis in likely]
    if is_tiled:
        ends += [(second, last) for last in likely for second in likely if second != last]
    return [(*(axis for axis in ranked if axis not in end), *end) for end in ends]


def _by_step(axes: _Names, accesses: KernelAccesses) -> list[str]:
    """The axes by the largest step of the stores, or of all accesses if no store moves."""
    moving = [p for p in accesses.stores if any(axis in axes for axis, _ in p.steps)]
    largest = dict.fromkeys(axes, 0.0)
    for pattern in moving or accesses.patterns:
        for axis, step in pattern.steps:
            if axis in largest:
                largest[axis] = max(largest[axis], step)
    return sorted(axes, key=lambda axis: -largest[axis])


def _in_order(axes: Sequence[Axis], names: Sequence[str]) -> tuple[Axis, ...]:
    by_name = {axis.name: axis for axis in axes}
    return tuple(by_name[name] for name in names)
