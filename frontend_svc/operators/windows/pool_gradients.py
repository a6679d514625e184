"""Gradients of pooling, as gathers: an element asks each window that may cover it for its share.

Along an axis an element is covered by a few neighbouring windows. Their numbers are computed, the
gradients of those that do cover it are picked, and the shares are added up.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.windows.average_pooling import (
    along,
    average_divisors,
    per_axis,
    windows_of,
)
from frontend_svc.operators.windows.inverse_maps import (
    Cover,
    cover_of,
    elements_of,
    gathered,
    placed,
    spread,
    window_cover,
)
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr

_MOST_EXTENT = 1 << 16
"""Elements of an axis whose windows are counted here, one by one."""


def _register(axes: int) -> None:
    def of_max(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        op: Lowering,
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
        windows = windows_of(op, self.shape, kernel, step, around, apart, ceil_mode)
        _check_windows(op, grad_output, self, tuple(window.count for window in windows))
        covers = [window_cover(op, window) for window in windows]
        return _of_largest(op, self, grad_output, indices, covers)

    def of_average(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        op: Lowering,
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
        windows = windows_of(op, self.shape, kernel, step, around, (1,) * axes, ceil_mode)
        _check_windows(op, grad_output, self, tuple(window.count for window in windows))
        divisors = average_divisors(op, windows, ceil_mode, count_include_pad, divisor_override)
        covers = [window_cover(op, window) for window in windows]
        return _of_average(op, self, grad_output, divisors, covers)

    def of_adaptive_max(op: Lowering, grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
        covers = _adaptive_covers(op, grad_output, self, axes)
        return _of_largest(op, self, grad_output, indices, covers)

    def of_adaptive_average(op: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
        covers = _adaptive_covers(op, grad_output, self, axes)
        pairs = zip(grad_output.shape[-axes:], self.shape[-axes:], strict=True)
        divisors = [
            along(op, _adaptive_sizes(op, count, extent), axis, axes)
            for axis, (count, extent) in enumerate(pairs)
        ]
        return _of_average(op, self, grad_output, divisors, covers)

    note = "extern to round up symbolic sizes"
    decomposes(f"aten.max_pool{axes}d_with_indices_backward.default", note=note)(of_max)
    decomposes(f"aten.avg_pool{axes}d_backward.default", note=note)(of_average)
    note = "extern for a symbolic number of windows"
    decomposes(f"aten.adaptive_max_pool{axes}d_backward.default", note=note)(of_adaptive_max)
    decomposes(f"aten._adaptive_avg_pool{axes}d_backward.default", note=note)(of_adaptive_average)


for _axes in (2, 3):
    _register(_axes)


def _of_largest(
    op: Lowering, x: Tensor, grad: Tensor, indices: Tensor, covers: Sequence[Cover]
) -> Tensor:
    if indices.dtype is not DType.I64 or not op.extents.is_same_shape(indices.shape, grad.shape):
        raise InvalidGraphError(
            f"positions of {indices.dtype!r} {text_of(indices.shape)}; expected i64 of the"
            f" gradient's shape {text_of(grad.shape)}"
        )
    picked, positions = (spread(op, t, covers) for t in (op.widened(grad), indices))
    mine: Tensor | None = None
    for number, cover in enumerate(covers):
        own = placed(op, elements_of(op, cover.extent), number, covers)
        if mine is None:
            mine = own
        else:
            mine = op.apply("add", op.apply("mul", mine, number_of(cover.extent)), own)
    if mine is None:
        raise InvalidGraphError("windows of no axes; expected one or more")
    is_mine = op.apply("eq", positions, mine)
    return op.convert(gathered(op, picked, is_mine, covers), x.dtype)


def _of_average(
    op: Lowering,
    x: Tensor,
    grad: Tensor,
    divisors: Sequence[Tensor | int],
    covers: Sequence[Cover],
) -> Tensor:
    share = op.widened(grad)
    for divisor in divisors:
        number = divisor if isinstance(divisor, int) else op.convert(divisor, share.dtype)
        share = op.apply("div", share, number)
    return op.convert(gathered(op, spread(op, share, covers), None, covers), x.dtype)


def _adaptive_covers(op: Lowering, grad: Tensor, x: Tensor, axes: int) -> list[Cover]:
    if x.rank not in (axes + 1, axes + 2) or grad.rank != x.rank:
        raise InvalidGraphError(
            f"a gradient {text_of(grad.shape)} of {text_of(x.shape)}; expected {axes} axes more"
            " than channels and batches"
        )
    _check_windows(op, grad, x, grad.shape[-axes:])
    pairs = list(zip(grad.shape[-axes:], x.shape[-axes:], strict=True))
    if not all(count.is_constant and extent != 0 for count, extent in pairs):
        raise NotDecomposedError("a symbolic number of windows, or an empty axis")
    return [_adaptive_cover(op, count, extent) for count, extent in pairs]


def _adaptive_cover(op: Lowering, count: Expr, extent: Expr) -> Cover:
    """Windows from floor(i * count / extent) to below ceil((i + 1) * count / extent) cover i."""
    k, n = count.as_int(), number_of(extent)
    element = elements_of(op, extent)
    first = op.apply("floor_div", op.apply("mul", element, k), n)
    scaled = op.apply("mul", op.apply("add", element, 1), k)
    end = op.apply("floor_div", op.apply("add", scaled, number_of(extent - 1)), n)
    found = op.apply("add", first, op.iota(as_expr(_most_windows(op, k, extent))))
    return cover_of(op, extent, count, found, op.apply("lt", found, end))


def _most_windows(op: Lowering, count: int, extent: Expr) -> int:
    """No element of the axis is covered by more windows."""
    if extent.is_constant and extent.constant <= _MOST_EXTENT:
        n = extent.constant
        return max(-(-(i + 1) * count // n) - i * count // n for i in range(n))
    least = op.extents.bounds.interval(extent)[0]
    return min(count, -(-count // max(least or 1, 1)) + 1)


def _adaptive_sizes(op: Lowering, count: Expr, extent: Expr) -> Tensor:
    n, k = number_of(extent), count.as_int()
    number = op.iota(count)
    begin = op.apply("floor_div", op.apply("mul", number, n), k)
    scaled = op.apply("mul", op.apply("add", number, 1), n)
    return op.prim("sub", op.apply("floor_div", op.apply("add", scaled, k - 1), k), begin)


def _check_windows(op: Lowering, grad: Tensor, x: Tensor, counts: Shape) -> None:
    wanted = (*x.shape[: -len(counts)], *counts)
    if not op.extents.is_same_shape(grad.shape, wanted):
        raise InvalidGraphError(f"a gradient {text_of(grad.shape)}; expected {text_of(wanted)}")
    if not x.dtype.is_float or any(count == 0 for count in counts):
        raise NotDecomposedError("a gradient of integers or of no windows")
