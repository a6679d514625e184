"""Pooling to a given number of windows, which may differ in size by one element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.reductions.statistics import mean_of
from frontend_svc.operators.windows.average_pooling import MOST_TAPS, SMALLEST, along
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr

_MOST_WINDOWS = 1 << 16
"""Windows along an axis whose sizes are compared one by one."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Windows of an axis: window k reaches from floor(k * n / count) to ceil((k + 1) * n / count).

    `taps` are the elements of the largest.
    """

    extent: int
    count: int
    taps: int


def _register(axes: int) -> None:
    def average(op: Lowering, self: Tensor, output_size: tuple[Expr, ...]) -> Tensor:
        return _average(op, self, _checked(op, self, output_size, axes))

    def largest(op: Lowering, self: Tensor, output_size: tuple[Expr, ...]) -> tuple[Tensor, Tensor]:
        return _largest(op, self, _checked(op, self, output_size, axes))

    note = "extern for large windows of several sizes"
    decomposes(f"aten._adaptive_avg_pool{axes}d.default", note=note)(average)
    decomposes(f"aten.adaptive_max_pool{axes}d.default", note=note)(largest)


for _axes in (2, 3):
    _register(_axes)


def _checked(op: Lowering, x: Tensor, sizes: Shape, axes: int) -> Shape:
    sizes = sizes * axes if len(sizes) == 1 else sizes
    if x.rank not in (axes + 1, axes + 2) or len(sizes) != axes:
        raise InvalidGraphError(
            f"{text_of(sizes)} windows of shape {text_of(x.shape)}; expected {axes} more than"
            " channels and batches"
        )
    return sizes


def _average(op: Lowering, x: Tensor, sizes: Shape) -> Tensor:
    if not x.dtype.is_float:
        raise InvalidGraphError(f"a mean of type {x.dtype!r}; expected a float")
    wide, extents = op.widened(x), x.shape[-len(sizes) :]
    lead = x.shape[: -len(sizes)]
    if all(op.extents.simplified(e % n) is ZERO for e, n in zip(extents, sizes, strict=True)):
        split = [part for e, n in zip(extents, sizes, strict=True) for part in (n, e // n)]
        inner = tuple(len(lead) + 1 + 2 * axis for axis in range(len(sizes)))
        mean = mean_of(op, op.reshape(wide, (*lead, *split)), inner)
        return op.convert(op.reshape(mean, (*lead, *sizes)), x.dtype)
    windows = _axes_of(extents, sizes)
    total: Tensor | None = None
    for tap, is_inside, _ in _taps(op, wide, windows):
        part = op.where(is_inside, tap, 0.0)
        total = part if total is None else op.prim("add", total, part)
    if total is None:
        raise InvalidGraphError("windows of no elements; expected one or more")
    for axis, window in enumerate(windows):
        begin, end = _bounds(op, window)
        count = op.convert(op.prim("sub", end, begin), total.dtype)
        total = op.apply("div", total, along(op, count, axis, len(windows)))
    return op.convert(total, x.dtype)


def _largest(op: Lowering, x: Tensor, sizes: Shape) -> tuple[Tensor, Tensor]:
    lowest = float("-inf") if x.dtype.is_float else SMALLEST.get(x.dtype)
    if lowest is None:
        raise NotDecomposedError(f"windows of type {x.dtype!r}")
    windows = _axes_of(x.shape[-len(sizes) :], sizes)
    best: Tensor | None = None
    place: Tensor | None = None
    for tap, is_inside, position in _taps(op, op.widened(x), windows):
        here = op.expand(position, tap.shape)
        if best is None or place is None:  # the first element is inside every window
            best, place = tap, here
            continue
        is_better = op.prim("gt", tap, best)
        if x.dtype.is_float:
            is_better = op.prim("logical_or", is_better, op.prim("isnan", tap))
        is_better = op.apply("logical_and", is_better, is_inside)
        best = op.prim("where", is_better, tap, best)
        place = op.prim("where", is_better, here, place)
    if best is None or place is None:
        raise InvalidGraphError("windows of no elements; expected one or more")
    return op.convert(best, x.dtype), place


def _axes_of(extents: Shape, sizes: Shape) -> tuple[_Axis, ...]:
    if not all(size.is_constant for size in (*extents, *sizes)):
        raise NotDecomposedError("windows of several sizes on a symbolic axis")
    axes = []
    for extent, count in zip(
        (e.constant for e in extents), (s.constant for s in sizes), strict=True
    ):
        if extent < 1 or not 1 <= count <= _MOST_WINDOWS:
            raise NotDecomposedError(f"{count} windows of {extent} elements")
        widths = (-(-(k + 1) * extent // count) - k * extent // count for k in range(count))
        axes.append(_Axis(extent, count, max(widths)))
    if math.prod(axis.taps for axis in axes) > MOST_TAPS:
        raise NotDecomposedError(f"windows of more than {MOST_TAPS} elements")
    return tuple(axes)


def _bounds(op: Lowering, axis: _Axis) -> tuple[Tensor, Tensor]:
    """Begin and end of each window, i64."""
    number = op.iota(as_expr(axis.count))
    begin = op.apply("floor_div", op.apply("mul", number, axis.extent), axis.count)
    scaled = op.apply("mul", op.apply("add", number, 1), axis.extent)
    end = op.apply("floor_div", op.apply("add", scaled, axis.count - 1), axis.count)
    return begin, end


def _taps(
    op: Lowering, x: Tensor, axes: Sequence[_Axis]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(element of every window, whether it is inside, its flat position), row by row."""
    lead = x.rank - len(axes)
    bounds = [_bounds(op, axis) for axis in axes]
    for places in itertools.product(*(range(axis.taps) for axis in axes)):
        tap, inside, flat = x, None, None
        for number, (axis, place) in enumerate(zip(axes, places, strict=True)):
            begin, end = bounds[number]
            position = op.apply("add", begin, place)
            is_inside = along(op, op.prim("lt", position, end), number, len(axes))
            position = op.apply("minimum", position, axis.extent - 1)
            tap = op.prim("take", tap, position, dim=lead + number)
            shown = along(op, position, number, len(axes))
            inside = is_inside if inside is None else op.apply("logical_and", inside, is_inside)
            flat = (
                shown
                if flat is None
                else op.apply("add", op.apply("mul", flat, axis.extent), shown)
            )
        if inside is None or flat is None:
            raise InvalidGraphError("windows of no axes; expected one or more")
        yield tap, inside, flat
