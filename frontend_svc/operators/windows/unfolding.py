"""Windows as axes or columns, and the inverse: overlapping windows added up."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape, axis_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.windows.average_pooling import (
    Window,
    padded,
    per_axis,
    slid,
    windows_of,
)
from frontend_svc.operators.windows.inverse_maps import (
    InverseMap,
    gathered,
    inverse_window_map,
    placed,
)
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes("aten.unfold.default", "aten.unfold_copy.default")
def unfold(builder: PrimsBuilder, self: Tensor, dimension: int, size: Expr, step: Expr) -> Tensor:
    """Windows of an axis; their elements form a new last axis."""
    x = self if self.rank else builder.reshape(self, (ONE,))
    axis = axis_of(dimension, x.rank)
    if builder.extents.is_negative(step - 1) or builder.extents.is_negative(x.shape[axis] - size):
        raise InvalidGraphError(
            f"windows of {size} every {step} in {x.shape[axis]} elements; expected them to fit"
        )
    if builder.extents.is_negative(size - 1):
        raise NotDecomposedError(f"windows of {size} elements")
    result = builder.prim(
        "window", x, dims=(axis,), sizes=(size,), strides=(step,), dilations=(ONE,)
    )
    return result if self.rank else builder.reshape(result, (size,))


@decomposes("aten.unfold_backward.default")
def unfold_backward(
    builder: PrimsBuilder,
    grad_in: Tensor,
    input_sizes: tuple[Expr, ...],
    dim: int,
    size: int,
    step: int,
) -> Tensor:
    """The sum of each element's gradients over all windows that contain it."""
    axis = axis_of(dim, len(input_sizes))
    if not input_sizes or size < 1 or step < 1:
        raise NotDecomposedError("windows of a tensor without axes, or of no elements")
    extent = input_sizes[axis]
    count = builder.extents.simplified((extent - size) // step + 1)
    expected = (*input_sizes[:axis], count, *input_sizes[axis + 1 :], ONE * size)
    if grad_in.rank == len(expected) and ONE in grad_in.shape:
        # One gradient may be shared by a whole batch, as the window of an inverse transform is.
        shared = [
            new if old is ONE and axis_number not in (axis, len(input_sizes)) else old
            for axis_number, (old, new) in enumerate(zip(grad_in.shape, expected, strict=True))
        ]
        grad_in = builder.expand(grad_in, tuple(shared))
    if not builder.extents.is_same_shape(grad_in.shape, expected) or not grad_in.dtype.is_float:
        raise InvalidGraphError(
            f"a gradient {text_of(grad_in.shape)}; expected {text_of(expected)}"
        )
    cover = inverse_window_map(builder, Window(extent, count, size, step, 0, 1))
    # The axis of elements and the axis of windows come first.
    found = _picked(builder, builder.widened(grad_in), [cover], (axis,), (grad_in.rank - 1,))
    rest = range(2, found.rank)
    total = gathered(builder, builder.permute(found, [*rest, 0, 1]), None, [cover])
    order = [*range(axis), total.rank - 1, *range(axis, total.rank - 1)]
    return builder.convert(builder.permute(total, order), grad_in.dtype)


@decomposes("aten.im2col.default")
def im2col(
    builder: PrimsBuilder,
    self: Tensor,
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[int, ...],
    stride: tuple[int, ...],
) -> Tensor:
    """Each window of the last two axes as a column."""
    windows = _windows(builder, self.shape, (kernel_size, dilation, padding, stride))
    zero = 0.0 if self.dtype.is_float else 0
    elements = slid(builder, padded(builder, self, windows, zero), windows)
    lead = self.rank - 3
    order = (*range(lead + 1), lead + 3, lead + 4, lead + 1, lead + 2)
    columns = self.shape[-3] * (windows[0].taps * windows[1].taps)
    area = windows[0].count * windows[1].count
    return builder.reshape(builder.permute(elements, order), (*self.shape[:-3], columns, area))


@decomposes("aten.col2im.default")
def col2im(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[int, ...],
    stride: tuple[int, ...],
) -> Tensor:
    """An image from columns that are its windows; overlapping windows are added up."""
    if self.rank not in (2, 3) or len(output_size) != 2 or not self.dtype.is_float:
        raise InvalidGraphError(
            f"{self.dtype!r} columns {text_of(self.shape)}; expected floats with 2 or 3 axes"
        )
    kernel = per_axis(kernel_size, 2, "kernel")
    lead, channels = self.shape[:-2], self.shape[-2] // (kernel[0] * kernel[1])
    image = (*lead, channels, *output_size)
    windows = _windows(builder, image, (kernel, dilation, padding, stride))
    inner = tuple(ONE * taps for taps in kernel)
    split = (*lead, channels, *inner, *(window.count for window in windows))
    flat = (*lead, channels * (kernel[0] * kernel[1]), windows[0].count * windows[1].count)
    if not builder.extents.is_same_shape(self.shape, flat):
        raise InvalidGraphError(f"columns {text_of(self.shape)}; expected {text_of(flat)}")
    elements = builder.reshape(builder.widened(self), split)
    covers = [inverse_window_map(builder, window) for window in windows]
    first = len(lead) + 1
    found = _picked(builder, elements, covers, (first + 2, first + 3), (first, first + 1))
    total = gathered(
        builder, builder.permute(found, [*range(4, found.rank), 0, 1, 2, 3]), None, covers
    )
    return builder.convert(total, self.dtype)


def _picked(
    builder: PrimsBuilder,
    x: Tensor,
    covers: list[InverseMap],
    result_axes: tuple[int, ...],
    offset_axes: tuple[int, ...],
) -> Tensor:
    """x at each element's results and positions: two axes for each map, then the others of x."""
    tables = [placed(builder, cover.results, k, covers) for k, cover in enumerate(covers)]
    for number, cover in enumerate(covers):
        if cover.positions is not None:
            tables.append(placed(builder, cover.positions, number, covers))
    shape = builder.extents.broadcast([table.shape for table in tables])
    indices = [builder.expand(table, shape) for table in tables]
    return builder.prim("gather_nd", x, *indices, dims=(*result_axes, *offset_axes))


def _windows(
    builder: PrimsBuilder, image: Shape, sizes: tuple[tuple[int, ...], ...]
) -> tuple[Window, ...]:
    names = ("kernel", "dilation", "padding", "stride")
    kernel, spread, around, step = (
        per_axis(size, 2, name) for size, name in zip(sizes, names, strict=True)
    )
    return windows_of(builder, image, kernel, step, around, spread)
