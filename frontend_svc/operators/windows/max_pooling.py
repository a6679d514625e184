"""The largest elements of windows and their positions; ties and NaN as in PyTorch's kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.windows.average_pooling import (
    MAX_TAPS,
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

_NOTE = "extern to round up symbolic sizes"


@decomposes("aten.max_pool2d_with_indices.default", fixed={"axes": 2}, note=_NOTE)
@decomposes("aten.max_pool3d_with_indices.default", fixed={"axes": 3}, note=_NOTE)
def max_pool_with_indices(  # noqa: PLR0913, PLR0917  # the operators' own parameters
    builder: PrimsBuilder,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
    *,
    axes: int,
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows of the last axes, and their positions."""
    sizes = (kernel_size, stride or kernel_size, padding, dilation)
    names = ("kernel", "stride", "padding", "dilation")
    kernel, stride, padding, dilation = (
        per_axis(size, axes, name) for size, name in zip(sizes, names, strict=True)
    )
    windows = windows_of(builder, self.shape, kernel, stride, padding, dilation, ceil_mode)
    lowest = float("-inf") if self.dtype.is_float else SMALLEST.get(self.dtype)
    if lowest is None:
        raise NotDecomposedError(f"windows of type {self.dtype!r}")
    around = padded(builder, builder.widened(self), windows, lowest)
    if math.prod(kernel) > MAX_TAPS:
        best, best_position = _largest_reduced(builder, around, windows, lowest)
    else:
        best, best_position = _largest_unrolled(builder, around, windows, lowest)
    return builder.convert(best, self.dtype), best_position


def _largest_unrolled(
    builder: PrimsBuilder, around: Tensor, windows: Sequence[Window], lowest: float
) -> tuple[Tensor, Tensor]:
    best: Tensor | None = None
    position: Tensor | None = None
    for offsets, tap in taps_of(builder, around, windows):
        here = builder.expand(_flat_position(builder, windows, offsets), tap.shape)
        if best is None or position is None:
            first = builder.expand(_flat_position(builder, windows, None), tap.shape)
            best, position = builder.full(lowest, tap.dtype, tap.shape), first
        is_better = builder.prim("gt", tap, best)
        if tap.dtype.is_float:
            is_better = builder.prim("logical_or", is_better, builder.prim("isnan", tap))
        # Without positions, which inference mostly lacks, one operation for each element is left.
        best, position = (
            builder.prim("maximum", best, tap),
            builder.prim("where", is_better, here, position),
        )
    if best is None or position is None:
        raise InvalidGraphError("a window of no elements; expected one or more")
    return best, position


def _largest_reduced(
    builder: PrimsBuilder, around: Tensor, windows: Sequence[Window], lowest: float
) -> tuple[Tensor, Tensor]:
    """The same by reductions: the position is that of the first largest element or the last NaN."""
    elements, axes = slid(builder, around, windows), window_axes(around, windows)
    best = builder.reduce("amax", elements, axes)
    tap = builder.reduce("argmax", elements, axes)
    first = builder.expand(_flat_position(builder, windows, None), best.shape)
    if best.dtype.is_float:
        inner = tuple(as_expr(window.taps) for window in windows)
        numbers = builder.reshape(builder.iota(product_of(inner)), inner)
        of_nan = builder.where(builder.prim("isnan", elements), numbers, -1)
        tap = builder.where(builder.prim("isnan", best), builder.reduce("amax", of_nan, axes), tap)
    position = _flat_position_of(builder, windows, tap)
    return best, builder.where(builder.apply("eq", best, lowest), first, position)


def _flat_position_of(builder: PrimsBuilder, windows: Sequence[Window], tap: Tensor) -> Tensor:
    """As `_flat_position`, for elements given by their numbers in the windows."""
    total: Tensor | None = None
    behind = math.prod(window.taps for window in windows)
    for axis, window in enumerate(windows):
        behind //= window.taps
        inner = builder.apply("mod_floor", builder.apply("floor_div", tap, behind), window.taps)
        begin = builder.apply(
            "sub", builder.apply("mul", builder.iota(window.count), window.stride), window.padding
        )
        position = builder.apply(
            "add",
            along(builder, begin, axis, len(windows)),
            builder.apply("mul", inner, window.dilation),
        )
        if total is None:
            total = position
        else:
            total = builder.apply("add", builder.apply("mul", total, window.extent), position)
    if total is None:
        raise InvalidGraphError("a window of no axes; expected one or more")
    return total


def _flat_position(
    builder: PrimsBuilder, windows: Sequence[Window], offsets: tuple[int, ...] | None
) -> Tensor:
    """Positions, in the flattened last axes, of one element of each window.

    `offsets` is its position in the window; None means the first element that is not padding.
    """
    total: Tensor | None = None
    for axis, window in enumerate(windows):
        begin = builder.apply(
            "sub", builder.apply("mul", builder.iota(window.count), window.stride), window.padding
        )
        if offsets is not None:
            position = builder.apply("add", begin, offsets[axis] * window.dilation)
        else:
            position = _first_inside(builder, begin, window.dilation)
        position = along(builder, position, axis, len(windows))
        if total is None:
            total = position
        else:
            total = builder.apply("add", builder.apply("mul", total, window.extent), position)
    if total is None:
        raise InvalidGraphError("a window of no axes; expected one or more")
    return total


def _first_inside(builder: PrimsBuilder, begin: Tensor, dilation: int) -> Tensor:
    """The first of begin, begin + dilation, ... that is not negative."""
    if dilation == 1:
        return builder.apply("maximum", begin, 0)
    return builder.where(
        builder.apply("lt", begin, 0), builder.apply("mod_floor", begin, dilation), begin
    )
