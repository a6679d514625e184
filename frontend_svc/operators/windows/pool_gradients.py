"""Gradients of pooling, as gathers: an element adds up its share of each window that covers it.

Along an axis, a few neighbouring windows cover an element. Their numbers are computed, the
gradients of these windows are gathered, and the shares are added up.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.windows.average_pooling import (
    along,
    average_divisors,
    per_axis,
    windows_of,
)
from frontend_svc.operators.windows.inverse_maps import (
    InverseMap,
    elements_of,
    gathered,
    inverse_map,
    inverse_window_map,
    placed,
    spread,
)
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr

_MOST_EXTENT = 1 << 16
"""The longest axis whose elements are checked one by one for the windows that cover them."""


_NOTE = "extern to round up symbolic sizes"
_ADAPTIVE_NOTE = "extern for a symbolic number of windows"


@decomposes("aten.max_pool2d_with_indices_backward.default", fixed={"axes": 2}, note=_NOTE)
@decomposes("aten.max_pool3d_with_indices_backward.default", fixed={"axes": 3}, note=_NOTE)
def max_pool_backward(  # noqa: PLR0913, PLR0917  # the operators' own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
    indices: Tensor,
    *,
    axes: int,
) -> Tensor:
    """The gradient of max pooling; `indices` are the positions of the largest elements."""
    names = ("kernel", "stride", "padding", "dilation")
    given = (kernel_size, stride or kernel_size, padding, dilation)
    kernel, step, around, apart = (
        per_axis(sizes, axes, name) for sizes, name in zip(given, names, strict=True)
    )
    windows = windows_of(builder, self.shape, kernel, step, around, apart, ceil_mode)
    _check_windows(builder, grad_output, self, tuple(window.count for window in windows))
    covers = [inverse_window_map(builder, window) for window in windows]
    return _of_largest(builder, self, grad_output, indices, covers)


@decomposes("aten.avg_pool2d_backward.default", fixed={"axes": 2}, note=_NOTE)
@decomposes("aten.avg_pool3d_backward.default", fixed={"axes": 3}, note=_NOTE)
def avg_pool_backward(  # noqa: PLR0913, PLR0917  # the operators' own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    axes: int,
) -> Tensor:
    """The gradient of average pooling."""
    kernel = per_axis(kernel_size, axes, "kernel")
    step = per_axis(stride, axes, "stride") if stride else kernel
    around = per_axis(padding, axes, "padding")
    windows = windows_of(builder, self.shape, kernel, step, around, (1,) * axes, ceil_mode)
    _check_windows(builder, grad_output, self, tuple(window.count for window in windows))
    divisors = average_divisors(builder, windows, ceil_mode, count_include_pad, divisor_override)
    covers = [inverse_window_map(builder, window) for window in windows]
    return _of_average(builder, self, grad_output, divisors, covers)


@decomposes("aten.adaptive_max_pool2d_backward.default", fixed={"axes": 2}, note=_ADAPTIVE_NOTE)
@decomposes("aten.adaptive_max_pool3d_backward.default", fixed={"axes": 3}, note=_ADAPTIVE_NOTE)
def adaptive_max_pool_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, indices: Tensor, *, axes: int
) -> Tensor:
    """The gradient of adaptive max pooling; `indices` are the positions of the largest elements."""
    covers = _adaptive_covers(builder, grad_output, self, axes)
    return _of_largest(builder, self, grad_output, indices, covers)


@decomposes("aten._adaptive_avg_pool2d_backward.default", fixed={"axes": 2}, note=_ADAPTIVE_NOTE)
@decomposes("aten._adaptive_avg_pool3d_backward.default", fixed={"axes": 3}, note=_ADAPTIVE_NOTE)
def adaptive_avg_pool_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, *, axes: int
) -> Tensor:
    """The gradient of adaptive average pooling."""
    covers = _adaptive_covers(builder, grad_output, self, axes)
    pairs = zip(grad_output.shape[-axes:], self.shape[-axes:], strict=True)
    divisors = [
        along(builder, _adaptive_sizes(builder, count, extent), axis, axes)
        for axis, (count, extent) in enumerate(pairs)
    ]
    return _of_average(builder, self, grad_output, divisors, covers)


def _of_largest(
    builder: PrimsBuilder, x: Tensor, grad: Tensor, indices: Tensor, covers: Sequence[InverseMap]
) -> Tensor:
    if indices.dtype is not DType.I64 or not builder.extents.is_same_shape(
        indices.shape, grad.shape
    ):
        raise InvalidGraphError(
            f"positions of {indices.dtype!r} {text_of(indices.shape)}; expected i64 of the"
            f" gradient's shape {text_of(grad.shape)}"
        )
    picked, positions = (spread(builder, t, covers) for t in (builder.widened(grad), indices))
    mine: Tensor | None = None
    for number, cover in enumerate(covers):
        own = placed(builder, elements_of(builder, cover.extent), number, covers)
        if mine is None:
            mine = own
        else:
            mine = builder.apply("add", builder.apply("mul", mine, number_of(cover.extent)), own)
    if mine is None:
        raise InvalidGraphError("windows of no axes; expected one or more")
    is_mine = builder.apply("eq", positions, mine)
    return builder.convert(gathered(builder, picked, is_mine, covers), x.dtype)


def _of_average(
    builder: PrimsBuilder,
    x: Tensor,
    grad: Tensor,
    divisors: Sequence[Tensor | int],
    covers: Sequence[InverseMap],
) -> Tensor:
    share = builder.widened(grad)
    for divisor in divisors:
        number = divisor if isinstance(divisor, int) else builder.convert(divisor, share.dtype)
        share = builder.apply("div", share, number)
    return builder.convert(gathered(builder, spread(builder, share, covers), None, covers), x.dtype)


def _adaptive_covers(builder: PrimsBuilder, grad: Tensor, x: Tensor, axes: int) -> list[InverseMap]:
    if x.rank not in (axes + 1, axes + 2) or grad.rank != x.rank:
        raise InvalidGraphError(
            f"a gradient {text_of(grad.shape)} of {text_of(x.shape)}; expected {axes} axes beside"
            " channels and batches"
        )
    _check_windows(builder, grad, x, grad.shape[-axes:])
    pairs = list(zip(grad.shape[-axes:], x.shape[-axes:], strict=True))
    if not all(count.is_constant and extent != 0 for count, extent in pairs):
        raise NotDecomposedError("a symbolic number of windows, or an empty axis")
    return [_adaptive_cover(builder, count, extent) for count, extent in pairs]


def _adaptive_cover(builder: PrimsBuilder, count: Expr, extent: Expr) -> InverseMap:
    """The windows k of an element i: floor(i * n / extent) <= k < ceil((i + 1) * n / extent)."""
    k, n = count.as_int(), number_of(extent)
    element = elements_of(builder, extent)
    first = builder.apply("floor_div", builder.apply("mul", element, k), n)
    scaled = builder.apply("mul", builder.apply("add", element, 1), k)
    end = builder.apply("floor_div", builder.apply("add", scaled, number_of(extent - 1)), n)
    found = builder.apply("add", first, builder.iota(as_expr(_most_windows(builder, k, extent))))
    return inverse_map(builder, extent, count, found, builder.apply("lt", found, end))


def _most_windows(builder: PrimsBuilder, count: int, extent: Expr) -> int:
    """The largest number of windows that cover one element of an axis."""
    if extent.is_constant and extent.constant <= _MOST_EXTENT:
        n = extent.constant
        return max(-(-(i + 1) * count // n) - i * count // n for i in range(n))
    least = builder.extents.bounds.interval(extent)[0]
    return min(count, -(-count // max(least or 1, 1)) + 1)


def _adaptive_sizes(builder: PrimsBuilder, count: Expr, extent: Expr) -> Tensor:
    n, k = number_of(extent), count.as_int()
    number = builder.iota(count)
    begin = builder.apply("floor_div", builder.apply("mul", number, n), k)
    scaled = builder.apply("mul", builder.apply("add", number, 1), n)
    return builder.prim(
        "sub", builder.apply("floor_div", builder.apply("add", scaled, k - 1), k), begin
    )


def _check_windows(builder: PrimsBuilder, grad: Tensor, x: Tensor, counts: Shape) -> None:
    expected = (*x.shape[: -len(counts)], *counts)
    if not builder.extents.is_same_shape(grad.shape, expected):
        raise InvalidGraphError(f"a gradient {text_of(grad.shape)}; expected {text_of(expected)}")
    if not x.dtype.is_float or any(count == 0 for count in counts):
        raise NotDecomposedError("a gradient of integers or of no windows")
