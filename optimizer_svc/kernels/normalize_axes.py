"""Brings a kernel's axes into canonical form: as few as possible, ordered, named d0.. and r0...

Two axes become one if every index uses them only as one. A longer axis never moves more bytes, and
the order of what remains is the one that moves the fewest (`kernelfarm.traffic`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.loop_ir import Axis, Kernel
from kernelfarm.targets import MemoryFacts
from kernelfarm.traffic import keeps_outer_order, keeps_reduction_order, order_axes
from optimizer_svc.kernels.rewrite_indices import body_indices, rewrite_indices


def normalize_axes(kernel: Kernel, sizes: Bounds, memory: MemoryFacts) -> Kernel:
    """The same kernel over its canonical axes for a memory."""
    merged, outer = _merge(kernel, kernel.outer, in_order=keeps_outer_order(kernel))
    merged, reduction = _merge(merged, kernel.reduction, in_order=keeps_reduction_order(kernel))
    ordered = order_axes(replace(merged, outer=outer, reduction=reduction), memory, sizes)
    return _simplified(_renamed(ordered), sizes)


def _merge(
    kernel: Kernel, axes: tuple[Axis, ...], *, in_order: bool
) -> tuple[Kernel, tuple[Axis, ...]]:
    """Merges axes a, b if every index uses them only as a*extent(b) + b.

    If the order of the points matters, only neighbours are merged.
    """
    found: Kernel | None = kernel
    while found is not None:
        kernel, found = found, None
        pairs = pairwise(axes) if in_order else permutations(axes, 2)
        for outer, inner in pairs:
            found = _merged_pair(kernel, outer, inner)
            if found is not None:
                pair = Axis(inner.name, outer.extent * inner.extent)
                axes = tuple(pair if a is inner else a for a in axes if a is not outer)
                break
    return kernel, axes


def _merged_pair(kernel: Kernel, outer: Axis, inner: Axis) -> Kernel | None:
    """The kernel with `inner` instead of both axes; None if an index uses them separately."""
    if not all(_may_merge(index, outer, inner) for index in body_indices(kernel)):
        return None
    both = {inner.name: symbol(inner.name) - symbol(outer.name) * inner.extent}
    changed: dict[Expr, Expr] = {}
    for index in body_indices(kernel):
        if index in changed:
            continue
        joined = index.substitute(both) if inner.name in index.symbols else index
        if outer.name in joined.symbols:
            return None
        changed[index] = joined
    return rewrite_indices(kernel, lambda expr: changed.get(expr, expr))


def _may_merge(index: Expr, outer: Axis, inner: Axis) -> bool:
    """False if the coefficients alone show that an index uses two axes separately."""
    if outer.name not in index.symbols and inner.name not in index.symbols:
        return True
    step, small_step = index.coefficient_of(outer.name), index.coefficient_of(inner.name)
    if step is None or small_step is None:
        return True
    return step is small_step * inner.extent


def _renamed(kernel: Kernel) -> Kernel:
    names: dict[str, Expr] = {}
    outer, reduction = (
        tuple(Axis(f"{letter}{number}", axis.extent) for number, axis in enumerate(axes))
        for letter, axes in (("d", kernel.outer), ("r", kernel.reduction))
    )
    for old, new in zip((*kernel.outer, *kernel.reduction), (*outer, *reduction), strict=True):
        names[old.name] = symbol(new.name)
    renamed = rewrite_indices(kernel, lambda expr: expr.substitute(names))
    return replace(renamed, outer=outer, reduction=reduction)


def _simplified(kernel: Kernel, sizes: Bounds) -> Kernel:
    ranges = dict(sizes.ranges)
    for axis in (*kernel.outer, *kernel.reduction):
        ranges[axis.name] = Range(ZERO, axis.extent - ONE)
    bounds = Bounds(ranges)
    return rewrite_indices(kernel, lambda expr: simplify(expr, bounds))
