"""Which kernels sum the pixels of windows, weighted for each channel: depthwise convolutions.

    sum over (kh, kw) of image[n, h + kh, w + kw, c] * weight[kh, kw, c], for all n, h, w and c

The channels are adjacent in both factors, so a vector has successive channels of a pixel. Pixels
outside the image are conditions of the image's load: comparisons of a position that one outer and
one reduction axis give. They divide into those of columns (along `pixels` and `across`) and those
of rows. What is not within the image is not added, so a weight that is no number changes only the
windows that it meets inside.

Strides, dilations, padding and the order of the images follow from the positions: nothing else is
assumed about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr
from kernelfarm.ir.loop_ir import (
    Axis,
    Compute,
    Kernel,
    Load,
    Reduce,
    Scan,
    Sort,
    Store,
    StoreMode,
    scattering_stores,
)
from kernelfarm.ir.masked_loads import MaskedLoad, masked_load

_MOST_REDUCTIONS = 2
_LEAST_OUTER = 2


@dataclass(frozen=True, slots=True)
class WindowFactor:
    """A factor of a sum: its load and type.

    The steps are those to the next pixel of a result, and to the next pixel of a window's row, in
    elements. Those of weights have no step along pixels.
    """

    load: Load
    dtype: DType
    along: int
    across: int


@dataclass(frozen=True, slots=True)
class WindowSum:
    """One sum: the number of its Reduce, its factors, and where pixels are within the image.

    They are where all of `columns` and `rows` are at least 0.
    """

    number: int
    image: WindowFactor
    weight: WindowFactor
    columns: tuple[Expr, ...]
    rows: tuple[Expr, ...]

    def has_pixel(self, kernel: WindowSums, pixel: int, across: int) -> bool:
        """True if a column of the window is within the image, for a pixel of a row of results."""
        point = {kernel.pixels.name: pixel}
        if kernel.across is not None:
            point[kernel.across.name] = across
        return all(position.evaluate(point) >= 0 for position in self.columns)


@dataclass(frozen=True, slots=True)
class WindowSums:
    """The sums of a kernel, and its axes.

    `channels` are adjacent in memory, `pixels` are those of a row of results. `across` is the axis
    of a window's columns, `down` that of its rows, `lines` the axis of results along which `down`
    moves; each of the three may be missing. `others` are the outer axes besides channels and
    pixels, in the kernel's order.
    """

    channels: Axis
    pixels: Axis
    across: Axis | None
    down: Axis | None
    lines: Axis | None
    others: tuple[Axis, ...]
    sums: tuple[WindowSum, ...]

    @property
    def window_columns(self) -> int:
        """The columns of a window."""
        return 1 if self.across is None else self.across.extent.constant


def find_window_sums(kernel: Kernel) -> WindowSums | None:
    """The weighted sums of windows that a kernel computes; None if it is no such kernel."""
    if not _are_plain_sums(kernel) or len(kernel.outer) < _LEAST_OUTER:
        return None
    if not 0 < len(kernel.reduction) <= _MOST_REDUCTIONS:
        return None
    channels = kernel.outer[-1]
    factors = [_factors(kernel, n) for n, s in enumerate(kernel.body) if isinstance(s, Reduce)]
    known = [pair for pair in factors if pair is not None]
    if len(known) < len(factors) or not channels.extent.is_constant:
        return None
    axes = _axes(kernel, known[0][0])
    if axes is None:
        return None
    pixels, across, down = axes
    numbers = [n for n, s in enumerate(kernel.body) if isinstance(s, Reduce)]
    sums = [_sum(kernel, number, pair, axes) for number, pair in zip(numbers, known, strict=True)]
    found = tuple(each for each in sums if each is not None)
    if len(found) < len(sums):
        return None
    others = tuple(axis for axis in kernel.outer[:-1] if axis is not pixels)
    lines = _lines(others, down, [each.image.load for each in found])
    return WindowSums(channels, pixels, across, down, lines, others, found)


def sums_windows(kernel: Kernel) -> bool:
    """True if a kernel has such sums, in whatever order its axes are.

    The order and number of axes are the last ones only before code is generated.
    """
    numbers = [n for n, s in enumerate(kernel.body) if isinstance(s, Reduce)]
    if not _are_plain_sums(kernel) or len(kernel.reduction) > _MOST_REDUCTIONS:
        return False
    pairs = [_pair(kernel, number) for number in numbers]
    return any(
        all(pair is not None and _are_along(kernel, axis, pair) for pair in pairs)
        for axis in kernel.outer
    )


def _are_along(kernel: Kernel, channels: Axis, pair: tuple[MaskedLoad, MaskedLoad]) -> bool:
    """True if channels are adjacent in both factors, and one has other outer axes, too."""
    steps = [each.load.index.coefficient_of(channels.name) for each in pair]
    others = {axis.name for axis in kernel.outer if axis is not channels}
    have_others = [not others.isdisjoint(each.load.index.symbols) for each in pair]
    return all(step is ONE for step in steps) and sorted(have_others) == [False, True]


def _are_plain_sums(kernel: Kernel) -> bool:
    """True if all reductions are sums in f32, behind which all is stored once."""
    reduced = [s for s in kernel.body if isinstance(s, Reduce)]
    if not reduced or not all(s.op == "sum" and s.dtype is DType.F32 for s in reduced):
        return False
    if any(isinstance(s, Scan | Sort) for s in kernel.body) or scattering_stores(kernel):
        return False
    inside = {axis.name for axis in kernel.reduction}
    stores = [s for s in kernel.body if isinstance(s, Store)]
    return all(s.mode is StoreMode.SET and inside.isdisjoint(s.index.symbols) for s in stores)


def _factors(kernel: Kernel, number: int) -> tuple[MaskedLoad, MaskedLoad] | None:
    """The image and the weight of a sum; None if it is no sum of their products."""
    pair = _pair(kernel, number)
    if pair is None:
        return None
    outer = {axis.name for axis in kernel.outer[:-1]}
    are_images = [not outer.isdisjoint(each.load.index.symbols) for each in pair]
    if are_images == [True, False]:
        return pair
    return (pair[1], pair[0]) if are_images == [False, True] else None


def _pair(kernel: Kernel, number: int) -> tuple[MaskedLoad, MaskedLoad] | None:
    """The factors of a sum of products of two elements of memory; None if it is none."""
    summed = kernel.body[number]
    assert isinstance(summed, Reduce)  # the caller has asked
    product = kernel.body[summed.operand]
    if not isinstance(product, Compute) or product.op != "mul":
        return None
    first, second = (masked_load(kernel, operand) for operand in product.operands)
    return None if first is None or second is None else (first, second)


def _axes(kernel: Kernel, image: MaskedLoad) -> tuple[Axis, Axis | None, Axis | None] | None:
    """The axis of pixels, and those of a window's columns and rows."""
    steps = {axis.name: _step(image.load, axis) for axis in (*kernel.outer, *kernel.reduction)}
    outer = [axis for axis in kernel.outer[:-1] if steps[axis.name]]
    inner = [axis for axis in kernel.reduction if steps[axis.name]]
    if not outer or len(inner) < len(kernel.reduction):
        return None
    # Of equal steps, as in an image of one row, the last axis is that of columns.
    pixels = min(reversed(outer), key=lambda axis: steps[axis.name] or 0)
    window = sorted(reversed(inner), key=lambda axis: steps[axis.name] or 0)
    if not pixels.extent.is_constant or not all(axis.extent.is_constant for axis in window):
        return None
    if len(window) == _MOST_REDUCTIONS:
        return pixels, window[0], window[1]
    (only,) = window
    for position in image.positions:
        if only.name in position.symbols:
            return (pixels, only, None) if pixels.name in position.symbols else (pixels, None, only)
    lines = [axis for axis in outer if axis is not pixels]
    is_row = any((steps[only.name] or 0) >= (steps[axis.name] or 0) for axis in lines)
    return (pixels, None, only) if is_row else (pixels, only, None)


def _step(load: Load, axis: Axis) -> int | None:
    """The elements from one point of an axis to the next one; None if they vary, or are none."""
    step = load.index.coefficient_of(axis.name)
    return step.constant if step is not None and step.is_constant and step.constant > 0 else None


def _sum(
    kernel: Kernel,
    number: int,
    factors: tuple[MaskedLoad, MaskedLoad],
    axes: tuple[Axis, Axis | None, Axis | None],
) -> WindowSum | None:
    pixels, across, down = axes
    (image, weight), channels = factors, kernel.outer[-1]
    known = [each.load.index.coefficient_of(channels.name) for each in factors]
    if any(step is not ONE for step in known) or weight.positions:
        return None
    along = _step(image.load, pixels)
    steps = [0 if across is None else _step(each.load, across) for each in factors]
    if along is None or None in steps:
        return None
    of_columns = {axis.name for axis in (pixels, across) if axis is not None}
    columns, rows = [], []
    for position in image.positions:
        if position.symbols <= of_columns:
            columns.append(position)
        elif of_columns.isdisjoint(position.symbols):
            rows.append(position)
        else:
            return None
    if not _are_bounds(rows, down, channels):
        return None
    return WindowSum(
        number,
        WindowFactor(image.load, kernel.param(image.load.param).dtype, along, steps[0] or 0),
        WindowFactor(weight.load, kernel.param(weight.load.param).dtype, 0, steps[1] or 0),
        tuple(columns),
        tuple(rows),
    )


def _are_bounds(rows: Sequence[Expr], down: Axis | None, channels: Axis) -> bool:
    """True if the rows of a window that are within an image are successive ones."""
    for position in rows:
        if channels.name in position.symbols:
            return False
        step = as_expr(0) if down is None else position.coefficient_of(down.name)
        if step is None or not step.is_constant:
            return False
    return True


def _lines(others: Sequence[Axis], down: Axis | None, images: Sequence[Load]) -> Axis | None:
    """The axis of results that has the least step beside pixels: rows of an image."""
    if down is None:
        return None
    steps = {axis.name: _step(images[0], axis) for axis in others}
    known = [axis for axis in others if steps[axis.name]]
    return min(reversed(known), key=lambda axis: steps[axis.name] or 0, default=None)
