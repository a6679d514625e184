"""Pooling with a given number of windows, whose sizes may differ by one element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.reductions.statistics import mean_of
from frontend_svc.operators.windows.average_pooling import MAX_TAPS, SMALLEST, along
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr

_NOTE = "extern for large windows of several sizes"
_MOST_WINDOWS = 1 << 16
"""Windows along an axis whose sizes are compared one by one."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Windows of an axis: window k is from floor(k * n / count) to ceil((k + 1) * n / count).

    `taps` is the number of elements of the largest window.
    """

    extent: int
    count: int
    taps: int


def _checked(x: Tensor, sizes: Shape, axes: int) -> Shape:
    sizes = sizes * axes if len(sizes) == 1 else sizes
    if x.rank not in (axes + 1, axes + 2) or len(sizes) != axes:
        raise InvalidGraphError(
            f"{text_of(sizes)} windows of shape {text_of(x.shape)}; expected {axes} axes beside"
            " channels and batches"
        )
    return sizes


@decomposes("aten._adaptive_avg_pool2d.default", fixed={"axes": 2}, note=_NOTE)
@decomposes("aten._adaptive_avg_pool3d.default", fixed={"axes": 3}, note=_NOTE)
def adaptive_avg_pool(
    builder: PrimsBuilder, self: Tensor, output_size: tuple[Expr, ...], *, axes: int
) -> Tensor:
    """The means of a given number of windows on each of the last axes."""
    x, sizes = self, _checked(self, output_size, axes)
    if not x.dtype.is_float:
        raise InvalidGraphError(f"a mean of type {x.dtype!r}; expected a float")
    wide, extents = builder.widened(x), x.shape[-len(sizes) :]
    lead = x.shape[: -len(sizes)]
    if all(builder.extents.simplified(e % n) is ZERO for e, n in zip(extents, sizes, strict=True)):
        split = [part for e, n in zip(extents, sizes, strict=True) for part in (n, e // n)]
        inner = tuple(len(lead) + 1 + 2 * axis for axis in range(len(sizes)))
        mean = mean_of(builder, builder.reshape(wide, (*lead, *split)), inner)
        return builder.convert(builder.reshape(mean, (*lead, *sizes)), x.dtype)
    windows = _axes_of(extents, sizes)
    total: Tensor | None = None
    for tap, is_inside, _ in _taps(builder, wide, windows):
        part = builder.where(is_inside, tap, 0.0)
        total = part if total is None else builder.prim("add", total, part)
    if total is None:
        raise InvalidGraphError("windows of no elements; expected one or more")
    for axis, window in enumerate(windows):
        begin, end = _bounds(builder, window)
        count = builder.convert(builder.prim("sub", end, begin), total.dtype)
        total = builder.apply("div", total, along(builder, count, axis, len(windows)))
    return builder.convert(total, x.dtype)


@decomposes("aten.adaptive_max_pool2d.default", fixed={"axes": 2}, note=_NOTE)
@decomposes("aten.adaptive_max_pool3d.default", fixed={"axes": 3}, note=_NOTE)
def adaptive_max_pool(
    builder: PrimsBuilder, self: Tensor, output_size: tuple[Expr, ...], *, axes: int
) -> tuple[Tensor, Tensor]:
    """The largest elements of a given number of windows on each axis, and their positions."""
    x, sizes = self, _checked(self, output_size, axes)
    lowest = float("-inf") if x.dtype.is_float else SMALLEST.get(x.dtype)
    if lowest is None:
        raise NotDecomposedError(f"windows of type {x.dtype!r}")
    windows = _axes_of(x.shape[-len(sizes) :], sizes)
    best: Tensor | None = None
    best_position: Tensor | None = None
    for tap, is_inside, position in _taps(builder, builder.widened(x), windows):
        here = builder.expand(position, tap.shape)
        if best is None or best_position is None:  # every window contains its first element
            best, best_position = tap, here
            continue
        is_better = builder.prim("gt", tap, best)
        if x.dtype.is_float:
            is_better = builder.prim("logical_or", is_better, builder.prim("isnan", tap))
        is_better = builder.apply("logical_and", is_better, is_inside)
        best = builder.prim("where", is_better, tap, best)
        best_position = builder.prim("where", is_better, here, best_position)
    if best is None or best_position is None:
        raise InvalidGraphError("windows of no elements; expected one or more")
    return builder.convert(best, x.dtype), best_position


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
    if math.prod(axis.taps for axis in axes) > MAX_TAPS:
        raise NotDecomposedError(f"windows of more than {MAX_TAPS} elements")
    return tuple(axes)


def _bounds(builder: PrimsBuilder, axis: _Axis) -> tuple[Tensor, Tensor]:
    """Begin and end of each window, i64."""
    number = builder.iota(as_expr(axis.count))
    begin = builder.apply("floor_div", builder.apply("mul", number, axis.extent), axis.count)
    scaled = builder.apply("mul", builder.apply("add", number, 1), axis.extent)
    end = builder.apply("floor_div", builder.apply("add", scaled, axis.count - 1), axis.count)
    return begin, end


def _taps(
    builder: PrimsBuilder, x: Tensor, axes: Sequence[_Axis]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(element of every window, whether the window contains it, its flat position), row by row."""
    lead = x.rank - len(axes)
    bounds = [_bounds(builder, axis) for axis in axes]
    for offsets in itertools.product(*(range(axis.taps) for axis in axes)):
        tap, inside, flat = x, None, None
        for number, (axis, offset) in enumerate(zip(axes, offsets, strict=True)):
            begin, end = bounds[number]
            position = builder.apply("add", begin, offset)
            is_inside = along(builder, builder.prim("lt", position, end), number, len(axes))
            position = builder.apply("minimum", position, axis.extent - 1)
            tap = builder.prim("take", tap, position, dim=lead + number)
            shown = along(builder, position, number, len(axes))
            inside = (
                is_inside if inside is None else builder.apply("logical_and", inside, is_inside)
            )
            flat = (
                shown
                if flat is None
                else builder.apply("add", builder.apply("mul", flat, axis.extent), shown)
            )
        if inside is None or flat is None:
            raise InvalidGraphError("windows of no axes; expected one or more")
        yield tap, inside, flat
