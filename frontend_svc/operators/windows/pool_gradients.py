"""Gradients of pooling, as gathers: an element asks each window that may cover it for its share.

Along an axis an element is covered by a few neighbouring windows. Their numbers are computed, the
gradients of those that do cover it are picked, and the shares are added up.
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
"""Elements of an axis whose windows are counted here, one by one."""


def _register(axes: int) -> None:
    def of_max(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        self: Tensor,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        names = ("kernel", "stride", "padding", "dilation")
        given = (kernel_size, stride or kernel_size, padding, dilation)
        kernel, step, around, apart = (
            per_axis(sizes, axes, name) for sizes, name in zip(given, names, strict=True)
        )
        windows = windows_of(builder, self.shape, kernel, step, around, apart, ceil_mode)
        _check_windows(builder, grad_output, self, tuple(window.count for window in windows))
        covers = [inverse_window_map(builder, window) for window in windows]
        return _of_largest(builder, self, grad_output, indices, covers)

    def of_average(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        self: Tensor,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        kernel = per_axis(kernel_size, axes, "kernel")
        step = per_axis(stride, axes, "stride") if stride else kernel
        around = per_axis(padding, axes, "padding")
        windows = windows_of(builder, self.shape, kernel, step, around, (1,) * axes, ceil_mode)
        _check_windows(builder, grad_output, self, tuple(window.count for window in windows))
        divisors = average_divisors(
            builder, windows, ceil_mode, count_include_pad, divisor_override
        )
        covers = [inverse_window_map(builder, window) for window in windows]
        return _of_average(builder, self, grad_output, divisors, covers)

    def of_adaptive_max(
        builder: PrimsBuilder, grad_output: Tensor, self: Tensor, indices: Tensor
    ) -> Tensor:
        covers = _adaptive_covers(builder, grad_output, self, axes)
        return _of_largest(builder, self, grad_output, indices, covers)

    def of_adaptive_average(builder: PrimsBuilder, grad_output: Tensor, self: Tensor) -> Tensor:
        covers = _adaptive_covers(builder, grad_output, self, axes)
        pairs = zip(grad_output.shape[-axes:], self.shape[-axes:], strict=True)
        divisors = [
            along(builder, _adaptive_sizes(builder, count, extent), axis, axes)
            for axis, (count, extent) in enumerate(pairs)
        ]
        return _of_average(builder, self, grad_output, divisors, covers)

    note = "extern to round up symbolic sizes"
    decomposes(f"aten.max_pool{axes}d_with_indices_backward.default", note=note)(of_max)
    decomposes(f"aten.avg_pool{axes}d_backward.default", note=note)(of_average)
    note = "extern for a symbolic number of windows"
    decomposes(f"aten.adaptive_max_pool{axes}d_backward.default", note=note)(of_adaptive_max)
    decomposes(f"aten._adaptive_avg_pool{axes}d_backward.default", note=note)(of_adaptive_average)


for _axes in (2, 3):
    _register(_axes)


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
            f"a gradient {text_of(grad.shape)} of {text_of(x.shape)}; expected {axes} axes more"
            " than channels and batches"
        )
    _check_windows(builder, grad, x, grad.shape[-axes:])
    pairs = list(zip(grad.shape[-axes:], x.shape[-axes:], strict=True))
    if not all(count.is_constant and extent != 0 for count, extent in pairs):
        raise NotDecomposedError("a symbolic number of windows, or an empty axis")
    return [_adaptive_cover(builder, count, extent) for count, extent in pairs]


def _adaptive_cover(builder: PrimsBuilder, count: Expr, extent: Expr) -> InverseMap:
    """Windows from floor(i * count / extent) to below ceil((i + 1) * count / extent) cover i."""
    k, n = count.as_int(), number_of(extent)
    element = elements_of(builder, extent)
    first = builder.apply("floor_div", builder.apply("mul", element, k), n)
    scaled = builder.apply("mul", builder.apply("add", element, 1), k)
    end = builder.apply("floor_div", builder.apply("add", scaled, number_of(extent - 1)), n)
    found = builder.apply("add", first, builder.iota(as_expr(_most_windows(builder, k, extent))))
    return inverse_map(builder, extent, count, found, builder.apply("lt", found, end))


def _most_windows(builder: PrimsBuilder, count: int, extent: Expr) -> int:
    """No element of the axis is covered by more windows."""
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
