"""Average pooling, and the windows that all pooling operators share.

Small windows are unrolled: each of their elements is a shifted view, so that pooling is pointwise
work. Windows of more than `MAX_TAPS` elements are reductions over a sliding window.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, ceil_div

MAX_TAPS = 64
"""The largest number of elements of a window that is unrolled; 8 x 8."""

SMALLEST: dict[DType, int | float] = {
    DType.I8: -(2**7),
    DType.I16: -(2**15),
    DType.I32: -(2**31),
    DType.I64: -(2**63),
    DType.U8: 0,
}
"""The smallest number of each integer type; for floats it is minus infinity."""


@dataclass(frozen=True, slots=True)
class Window:
    """Windows along one axis: `count` of them, each of `taps` elements.

    Window k begins at element k * stride - padding; its elements are `dilation` apart.
    """

    extent: Expr
    count: Expr
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> Expr:
        """Elements of the padded axis that the windows read."""
        return (self.count - 1) * self.stride + (self.taps - 1) * self.dilation + 1


def windows_of(  # noqa: PLR0913, PLR0917  # the parameters of pooling operators
    builder: PrimsBuilder,
    shape: Shape,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> tuple[Window, ...]:
    """One window for each of the last axes.

    Raises:
        InvalidGraphError: sizes that are not valid for pooling.
        NotDecomposedError: the number of windows is rounded up on a symbolic axis.
    """
    axes = len(kernel)
    if len(shape) not in (axes + 1, axes + 2):
        raise InvalidGraphError(f"a tensor of shape {text_of(shape)}; expected {axes + 1} axes")
    each = zip(shape[-axes:], kernel, stride or kernel, padding, dilation, strict=True)
    return tuple(_window(builder, *sizes, ceil_mode=ceil_mode) for sizes in each)


def _window(  # noqa: PLR0913  # as above
    builder: PrimsBuilder,
    extent: Expr,
    taps: int,
    stride: int,
    padding: int,
    dilation: int,
    *,
    ceil_mode: bool,
) -> Window:
    if min(taps, stride, dilation) < 1 or padding < 0:
        raise InvalidGraphError(
            f"windows of {taps}, {stride} and {dilation} apart, {padding} outside;"
            " expected 1, 1, 1 and 0 or more"
        )
    last_start = extent + (2 * padding - dilation * (taps - 1) - 1)
    if not ceil_mode:
        count = builder.extents.simplified(last_start // stride + 1)
    elif not last_start.is_constant:
        raise NotDecomposedError("windows rounded up on an axis of symbolic extent")
    else:
        count = ceil_div(last_start, stride) + 1
        # The last window must begin inside the axis or its lower padding.
        if ((count - 1) * stride - padding - extent).constant >= 0:
            count = count - 1
    if builder.extents.is_negative(count - 1):
        raise InvalidGraphError(f"no window of {taps} fits into {extent} and {padding} around it")
    return Window(extent, count, taps, stride, padding, dilation)


def padded(
    builder: PrimsBuilder, x: Tensor, windows: Sequence[Window], value: int | float
) -> Tensor:
    """The tensor with its last axes padded as far as the windows read."""
    lead = x.rank - len(windows)
    low = [as_expr(w.padding) for w in windows]
    high = []
    for window in windows:
        missing = window.reach - window.padding - window.extent
        amount = as_expr(window.padding)
        if missing.is_constant:
            amount = missing if missing.constant > 0 else ZERO
        high.append(amount)
    if all(amount is ZERO for amount in (*low, *high)):
        return x
    zeros = (ZERO,) * lead
    return builder.prim("pad", x, high=(*zeros, *high), low=(*zeros, *low), value=value)


def slid(builder: PrimsBuilder, around: Tensor, windows: Sequence[Window]) -> Tensor:
    """Every window of a padded tensor: the axes of windows, then the axes within a window."""
    lead = around.rank - len(windows)
    # Elements behind the last window are cut off.
    sizes, limits = (ONE,) * around.rank, list(around.shape)
    for axis, window in enumerate(windows):
        limits[lead + axis] = window.reach
    if tuple(limits) != around.shape:
        starts = (ZERO,) * around.rank
        around = builder.prim("slice", around, limits=tuple(limits), starts=starts, steps=sizes)
    return builder.prim(
        "window",
        around,
        dims=tuple(range(lead, around.rank)),
        sizes=tuple(as_expr(w.taps) for w in windows),
        strides=tuple(as_expr(w.stride) for w in windows),
        dilations=tuple(as_expr(w.dilation) for w in windows),
    )


def window_axes(around: Tensor, windows: Sequence[Window]) -> tuple[int, ...]:
    """The axes within a window of the result of `slid`."""
    return tuple(range(around.rank, around.rank + len(windows)))


def taps_of(
    builder: PrimsBuilder, around: Tensor, windows: Sequence[Window]
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """(position in the window, the element there of every window), row by row."""
    lead = around.rank - len(windows)
    for offsets in itertools.product(*(range(w.taps) for w in windows)):
        starts, limits, steps = [ZERO] * lead, list(around.shape[:lead]), [ONE] * lead
        for window, offset in zip(windows, offsets, strict=True):
            start = as_expr(offset * window.dilation)
            starts.append(start)
            limits.append(start + (window.count - 1) * window.stride + 1)
            steps.append(as_expr(window.stride))
        yield (
            offsets,
            builder.prim(
                "slice", around, limits=tuple(limits), starts=tuple(starts), steps=tuple(steps)
            ),
        )


def along(builder: PrimsBuilder, vector: Tensor, axis: int, axes: int) -> Tensor:
    """A vector on one of the last axes, shaped to broadcast over the others."""
    return builder.reshape(vector, (*vector.shape, *([ONE] * (axes - 1 - axis))))


def per_axis(sizes: tuple[int, ...], axes: int, name: str) -> tuple[int, ...]:
    """One size for each axis; a single size holds for all axes.

    Raises:
        InvalidGraphError: neither one size nor one for each axis.
    """
    if len(sizes) not in (1, axes):
        raise InvalidGraphError(f"{len(sizes)} sizes as {name}; expected 1 or {axes}")
    return sizes * axes if len(sizes) == 1 else sizes


def _average(  # noqa: PLR0913, PLR0917  # the operators' own parameters
    builder: PrimsBuilder,
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    axes: int,
) -> Tensor:
    kernel = per_axis(kernel, axes, "kernel")
    stride = per_axis(stride, axes, "stride") if stride else kernel
    padding = per_axis(padding, axes, "padding")
    windows = windows_of(builder, x.shape, kernel, stride, padding, (1,) * axes, ceil_mode)
    divide = "div" if x.dtype.is_float else "trunc_div"
    summed = [_shortened(window) for window in windows]
    around = padded(builder, builder.widened(x), summed, 0.0 if x.dtype.is_float else 0)
    total = _total(builder, around, summed)
    for number in average_divisors(builder, windows, ceil_mode, count_include_pad, divisor):
        placed = number if isinstance(number, int) else builder.convert(number, total.dtype)
        total = builder.apply(divide, total, placed)
    return builder.convert(total, x.dtype)


def _shortened(window: Window) -> Window:
    """The window without the elements that are behind the axis even in the first window.

    Models that pool a whole axis may use windows of hundreds of elements on axes of two.
    """
    if not window.extent.is_constant:
        return window
    last = max(window.extent.constant + window.padding - 1, 0)
    return replace(window, taps=min(window.taps, last // window.dilation + 1))


def _total(builder: PrimsBuilder, around: Tensor, windows: Sequence[Window]) -> Tensor:
    if math.prod(window.taps for window in windows) > MAX_TAPS:
        return builder.reduce("sum", slid(builder, around, windows), window_axes(around, windows))
    total: Tensor | None = None
    for _, tap in taps_of(builder, around, windows):
        total = tap if total is None else builder.prim("add", total, tap)
    if total is None:
        raise InvalidGraphError("a window of no elements; expected one or more")
    return total


def average_divisors(
    builder: PrimsBuilder,
    windows: Sequence[Window],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> list[Tensor | int]:
    """The divisors of the sums of windows: a number, or the counts along each axis.

    Raises:
        InvalidGraphError: a divisor of 0.
    """
    if divisor is not None:
        if divisor == 0:
            raise InvalidGraphError("a divisor of 0; expected another number")
        return [divisor]
    if not ceil_mode and (count_include_pad or not any(w.padding for w in windows)):
        return [math.prod(window.taps for window in windows)]
    return [
        along(builder, _counts(builder, window, count_include_pad), axis, len(windows))
        for axis, window in enumerate(windows)
    ]


def _counts(builder: PrimsBuilder, window: Window, count_include_pad: bool) -> Tensor:
    """The number of elements of each window of an axis, with or without padding; i64."""
    begin = builder.apply(
        "sub", builder.apply("mul", builder.iota(window.count), window.stride), window.padding
    )
    end = builder.apply("add", begin, window.taps)
    if count_include_pad:
        top = builder.apply("minimum", end, window.extent + window.padding)
        return builder.prim("sub", top, begin)
    top = builder.apply("minimum", end, window.extent)
    return builder.prim("sub", top, builder.apply("maximum", begin, 0))


@decomposes("aten.avg_pool1d.default", note="extern to round up symbolic sizes")
def avg_pool1d(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The means of windows of the last axis."""
    return _average(
        builder, self, kernel_size, stride, padding, ceil_mode, count_include_pad, None, 1
    )


@decomposes("aten.avg_pool2d.default", fixed={"axes": 2}, note="extern to round up symbolic sizes")
@decomposes("aten.avg_pool3d.default", fixed={"axes": 3}, note="extern to round up symbolic sizes")
def avg_pool(  # noqa: PLR0913, PLR0917  # the operators' own parameters
    builder: PrimsBuilder,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    axes: int,
) -> Tensor:
    """The means of windows of the last axes."""
    sizes = kernel_size, stride, padding
    return _average(builder, self, *sizes, ceil_mode, count_include_pad, divisor_override, axes)
