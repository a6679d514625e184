"""The largest elements of windows and where they lie; ties and NaN as in PyTorch's kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.windows.average_pooling import (
    MOST_TAPS,
    SMALLEST,
    Window,
    along,
    padded,
    per_axis,
    slid,
    taps_of,
    window_axes,
    windows_of,
)
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import as_expr, product_of


@decomposes("aten.max_pool2d_with_indices.default", note="extern to round up symbolic sizes")
def max_pool2d_with_indices(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows of the last two axes, and where they lie."""
    return _largest(op, self, (kernel_size, stride, padding, dilation), ceil_mode, 2)


@decomposes("aten.max_pool3d_with_indices.default", note="extern to round up symbolic sizes")
def max_pool3d_with_indices(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows of the last three axes, and where they lie."""
    return _largest(op, self, (kernel_size, stride, padding, dilation), ceil_mode, 3)


def _largest(
    op: Lowering, x: Tensor, sizes: tuple[tuple[int, ...], ...], ceil_mode: bool, axes: int
) -> tuple[Tensor, Tensor]:
    names = ("kernel", "stride", "padding", "dilation")
    kernel, stride, padding, dilation = (
        per_axis(size or sizes[0], axes, name) for size, name in zip(sizes, names, strict=True)
    )
    windows = windows_of(op, x.shape, kernel, stride, padding, dilation, ceil_mode)
    wide = op.widened(x)
    lowest = float("-inf") if x.dtype.is_float else SMALLEST.get(x.dtype)
    if lowest is None:
        raise NotDecomposedError(f"windows of type {x.dtype!r}")
    around = padded(op, wide, windows, lowest)
    if math.prod(kernel) > MOST_TAPS:
        best, place = _largest_reduced(op, around, windows, lowest)
    else:
        best, place = _largest_unrolled(op, around, windows, lowest)
    return op.convert(best, x.dtype), place


def _largest_unrolled(
    op: Lowering, around: Tensor, windows: Sequence[Window], lowest: float
) -> tuple[Tensor, Tensor]:
    best: Tensor | None = None
    place: Tensor | None = None
    for places, tap in taps_of(op, around, windows):
        here = op.expand(_flat_position(op, windows, places), tap.shape)
        if best is None or place is None:
            first = op.expand(_flat_position(op, windows, None), tap.shape)
            best, place = op.full(lowest, tap.dtype, tap.shape), first
        is_better = op.prim("gt", tap, best)
        if tap.dtype.is_float:
            is_better = op.prim("logical_or", is_better, op.prim("isnan", tap))
        best, place = (
            op.prim("where", is_better, tap, best),
            op.prim("where", is_better, here, place),
        )
    if best is None or place is None:
        raise InvalidGraphError("a window of no elements; expected one or more")
    return best, place


def _largest_reduced(
    op: Lowering, around: Tensor, windows: Sequence[Window], lowest: float
) -> tuple[Tensor, Tensor]:
    """The same by reductions: of equal elements the first counts, of several NaN the last."""
    elements, axes = slid(op, around, windows), window_axes(around, windows)
    best = op.reduce("amax", elements, axes)
    tap = op.reduce("argmax", elements, axes)
    first = op.expand(_flat_position(op, windows, None), best.shape)
    if best.dtype.is_float:
        inner = tuple(as_expr(window.taps) for window in windows)
        numbers = op.reshape(op.iota(product_of(inner)), inner)
        spoilt = op.where(op.prim("isnan", elements), numbers, -1)
        tap = op.where(op.prim("isnan", best), op.reduce("amax", spoilt, axes), tap)
    place = _flat_position_of(op, windows, tap)
    return best, op.where(op.apply("eq", best, lowest), first, place)


def _flat_position_of(op: Lowering, windows: Sequence[Window], tap: Tensor) -> Tensor:
    """As `_flat_position`, of an element given by its number in the window."""
    total: Tensor | None = None
    behind = math.prod(window.taps for window in windows)
    for axis, window in enumerate(windows):
        behind //= window.taps
        inner = op.apply("mod_floor", op.apply("floor_div", tap, behind), window.taps)
        begin = op.apply(
            "sub", op.apply("mul", op.iota(window.count), window.stride), window.padding
        )
        position = op.apply(
            "add", along(op, begin, axis, len(windows)), op.apply("mul", inner, window.dilation)
        )
        if total is None:
            total = position
        else:
            total = op.apply("add", op.apply("mul", total, window.extent), position)
    if total is None:
        raise InvalidGraphError("a window of no axes; expected one or more")
    return total


def _flat_position(
    op: Lowering, windows: Sequence[Window], places: tuple[int, ...] | None
) -> Tensor:
    """Position of a place of each window in the flattened last axes; None is the first inside."""
    total: Tensor | None = None
    for axis, window in enumerate(windows):
        begin = op.apply(
            "sub", op.apply("mul", op.iota(window.count), window.stride), window.padding
        )
        if places is not None:
            position = op.apply("add", begin, places[axis] * window.dilation)
        else:
            position = _first_inside(op, begin, window.dilation)
        position = along(op, position, axis, len(windows))
        if total is None:
            total = position
        else:
            total = op.apply("add", op.apply("mul", total, window.extent), position)
    if total is None:
        raise InvalidGraphError("a window of no axes; expected one or more")
    return total


def _first_inside(op: Lowering, begin: Tensor, dilation: int) -> Tensor:
    """The first of begin, begin + dilation, ... that is not negative."""
    if dilation == 1:
        return op.apply("maximum", begin, 0)
    return op.where(op.apply("lt", begin, 0), op.apply("mod_floor", begin, dilation), begin)
