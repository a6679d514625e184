"""Brings a kernel's axes into canonical form: as few as possible, ordered, named d0.. and r0...

The innermost outer axis is the one along which most accesses are contiguous; the others are ordered
by the strides of the stores. Two axes become one if every index uses them only as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.loop_ir import (
    Axis,
    Kernel,
    Store,
    StoreMode,
    is_ordered_reduction,
    scattering_stores,
)
from optimizer_svc.kernels.rewrite_indices import accesses, body_indices, rewrite_indices

_LIKELY_SIZE = 61
"""The value of a size when strides are compared; a prime, so that different products differ."""


def normalize_axes(kernel: Kernel, sizes: Bounds) -> Kernel:
    """The same kernel over its canonical axes."""
    ordered = replace(
        kernel,
        outer=_ordered_outer(kernel),
        reduction=_ordered_reduction(kernel),
    )
    merged, outer = _merge_neighbours(ordered, ordered.outer)
    merged, reduction = _merge_neighbours(merged, merged.reduction)
    merged = replace(merged, outer=outer, reduction=reduction)
    return _simplified(_renamed(merged), sizes)


def _ordered_outer(kernel: Kernel) -> tuple[Axis, ...]:
    # Of several updates of one element, the last in the graph's order must take effect.
    stores = (kernel.body[number] for number in scattering_stores(kernel))
    if any(isinstance(s, Store) and s.mode is StoreMode.SET for s in stores):
        return kernel.outer
    return _ordered(kernel, kernel.outer)


def _ordered_reduction(kernel: Kernel) -> tuple[Axis, ...]:
    # Arg-reductions, scans and sorts depend on the order of their axes.
    if any(is_ordered_reduction(s) for s in kernel.body):
        return kernel.reduction
    return _ordered(kernel, kernel.reduction)


def _ordered(kernel: Kernel, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    if len(axes) < 2:
        return tuple(axes)
    indices = [access.index for access in accesses(kernel)]
    stores = [s.index for s in kernel.body if isinstance(s, Store)]
    in_stores = any(axis.name in index.symbols for axis in axes for index in stores)
    key_indices = stores if in_stores else indices
    numbers = {axis.name: number for number, axis in enumerate(axes)}

    def by_stride(axis: Axis) -> tuple[int, int]:
        return -_largest_stride(axis, key_indices), numbers[axis.name]

    ranked = sorted(axes, key=by_stride)
    unit = {axis.name: _contiguous_accesses(axis, indices) for axis in axes}
    innermost = max(ranked, key=lambda axis: (unit[axis.name], ranked.index(axis)))
    return (*(axis for axis in ranked if axis is not innermost), innermost)


def _contiguous_accesses(axis: Axis, indices: Sequence[Expr]) -> int:
    return sum(index.coefficient_of(axis.name) is ONE for index in indices)


def _largest_stride(axis: Axis, indices: Sequence[Expr]) -> int:
    found = 0
    for index in indices:
        if axis.name not in index.symbols:
            continue
        stride = index.coefficient_of(axis.name)
        if stride is None:
            continue
        likely = stride.evaluate(dict.fromkeys(stride.symbols, _LIKELY_SIZE))
        found = max(found, abs(likely))
    return found


def _merge_neighbours(kernel: Kernel, axes: tuple[Axis, ...]) -> tuple[Kernel, tuple[Axis, ...]]:
    """Merges axes a, b if every index uses them only as a*extent(b) + b."""
    number = 0
    while number + 1 < len(axes):
        merged = _merged_pair(kernel, axes[number], axes[number + 1])
        if merged is None:
            number += 1
            continue
        pair = Axis(axes[number + 1].name, axes[number].extent * axes[number + 1].extent)
        axes = (*axes[:number], pair, *axes[number + 2 :])
        kernel = merged
    return kernel, axes


def _merged_pair(kernel: Kernel, outer: Axis, inner: Axis) -> Kernel | None:
    """The kernel with `inner` instead of both axes; None if an index uses them separately."""
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
