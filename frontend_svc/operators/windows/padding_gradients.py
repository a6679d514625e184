"""Gradients of padding, as gathers, and of slices, as padding with zeros."""

from __future__ import annotations

from collections.abc import Callable

from frontend_svc.operators.core.extents import Shape, axis_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.shapes.diagonals import to_positions, written
from frontend_svc.operators.windows.inverse_maps import (
    InverseMap,
    elements_of,
    gathered,
    inverse_map,
    spread,
)
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr

_CoverOf = Callable[[PrimsBuilder, Expr, int, int], InverseMap]
"""(builder, extent, elements added in front, elements added behind) -> copies of elements."""


def _mirrored(builder: PrimsBuilder, extent: Expr, low: int, high: int) -> InverseMap:
    """An element is copied to its own position, and mirrored at either end unless it is the end."""
    element, last = elements_of(builder, extent), number_of(extent - 1)
    own = builder.apply("add", element, low)
    in_front = builder.apply("sub", low, element)
    behind = builder.apply("sub", number_of((extent - 1) * 2 + low), element)
    inside = builder.full(True, DType.BOOL, element.shape)
    there = (inside, builder.apply("gt", element, 0), builder.apply("lt", element, last))
    found = builder.prim("cat", own, in_front, behind, dim=1)
    return inverse_map(
        builder, extent, extent + low + high, found, builder.prim("cat", *there, dim=1)
    )


def _repeated(builder: PrimsBuilder, extent: Expr, low: int, high: int) -> InverseMap:
    """An element is copied to its own position; an end also to every position beyond it."""
    element, count = elements_of(builder, extent), extent + low + high
    own = builder.apply("add", element, low)
    is_first = builder.apply("eq", element, 0)
    is_last = builder.apply("eq", element, number_of(extent - 1))
    begin = builder.where(is_first, min(low, 0), own)
    end = builder.where(is_last, number_of(extent - 1 + low + max(high, 0)), own)
    most = max(low, high, 0) + 1 if extent is not ONE else max(low, 0) + max(high, 0) + 1
    found = builder.apply("add", begin, builder.iota(as_expr(most)))
    return inverse_map(builder, extent, count, found, builder.apply("le", found, end))


def pad_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    padding: tuple[int, ...],
    *,
    cover: _CoverOf,
    axes: int,
) -> Tensor:
    """The gradient of padding: each element adds up the gradients of its copies."""
    if len(padding) != 2 * axes or self.rank not in (axes + 1, axes + 2):
        raise InvalidGraphError(
            f"{len(padding)} paddings of shape {text_of(self.shape)};"
            f" expected {2 * axes} for {axes + 1} or {axes + 2} axes"
        )
    covers, input_shape = [], list(self.shape)
    for number in range(axes):
        low, high = padding[2 * (axes - 1 - number) : 2 * (axes - number)]
        axis = self.rank - axes + number
        extent = self.shape[axis]
        input_shape[axis] = extent + low + high
        if extent is ZERO or builder.extents.is_negative(input_shape[axis] - 1):
            raise NotDecomposedError("padding of an empty axis")
        covers.append(cover(builder, extent, low, high))
    _check(builder, grad_output, tuple(input_shape))
    found = spread(builder, builder.widened(grad_output), covers)
    return builder.convert(gathered(builder, found, None, covers), self.dtype)


for _axes in (1, 2, 3):
    _reflection, _replication = f"aten.reflection_pad{_axes}d", f"aten.replication_pad{_axes}d"
    decomposes(f"{_reflection}_backward.default", fixed={"cover": _mirrored, "axes": _axes})(
        pad_backward
    )
    decomposes(f"{_replication}_backward.default", fixed={"cover": _repeated, "axes": _axes})(
        pad_backward
    )


@decomposes("aten.select_backward.default")
def select_backward(
    builder: PrimsBuilder, grad_output: Tensor, input_sizes: tuple[Expr, ...], dim: int, index: Expr
) -> Tensor:
    """Zeros with the gradient at one position of an axis."""
    axis = _axis(input_sizes, dim)
    extent = input_sizes[axis]
    position = index + extent if builder.extents.is_negative(index) else index
    _check(builder, grad_output, (*input_sizes[:axis], *input_sizes[axis + 1 :]))
    row = builder.reshape(grad_output, (*input_sizes[:axis], ONE, *input_sizes[axis + 1 :]))
    return _surrounded(builder, row, axis, position, extent - position - 1)


@decomposes("aten.slice_backward.default")
def slice_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    input_sizes: tuple[Expr, ...],
    dim: int,
    start: Expr,
    end: Expr,
    step: int,
) -> Tensor:
    """Zeros with the gradient at the positions of a slice."""
    axis = _axis(input_sizes, dim)
    if grad_output.rank != len(input_sizes):
        seen = f"{grad_output.rank} axes of {len(input_sizes)}"
        raise InvalidGraphError(f"a gradient with {seen}; expected all")
    extent, length = input_sizes[axis], grad_output.shape[axis]
    first = start
    if builder.extents.is_negative(start):
        first = builder.extents.larger(start + extent, ZERO)
    first = builder.extents.smaller(first, extent)
    if step < 1:
        raise InvalidGraphError(f"step {step}; expected 1 or more")
    if length is ZERO:
        return builder.full(0, grad_output.dtype, input_sizes)
    spread_out = grad_output
    if step > 1:
        spread_out = _every(builder, grad_output, axis, step)
    behind = extent - first - spread_out.shape[axis]
    return _surrounded(builder, spread_out, axis, first, behind)


@decomposes("aten.diagonal_backward.default")
def diagonal_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    input_sizes: tuple[Expr, ...],
    offset: int,
    dim1: int,
    dim2: int,
) -> Tensor:
    """Zeros with the gradient on a diagonal."""
    first, second = _axis(input_sizes, dim1), _axis(input_sizes, dim2)
    rest = [size for axis, size in enumerate(input_sizes) if axis not in (first, second)]
    matrix = (*rest, input_sizes[first], input_sizes[second])
    if first == second or grad_output.shape[-1:] == (ZERO,):
        return builder.full(0, grad_output.dtype, input_sizes)
    _check(builder, grad_output, (*rest, *grad_output.shape[-1:]))
    zeros = builder.full(0, grad_output.dtype, matrix)
    return to_positions(builder, written(builder, zeros, grad_output, offset), first, second)


def _every(builder: PrimsBuilder, x: Tensor, axis: int, step: int) -> Tensor:
    """The elements of an axis `step` apart, with zeros between them; the last one is the end."""
    shape = x.shape
    column = builder.reshape(x, (*shape[: axis + 1], ONE, *shape[axis + 1 :]))
    wide = _surrounded(builder, column, axis + 1, ZERO, as_expr(step - 1))
    flat = builder.reshape(wide, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
    return builder.slice_axis(flat, axis, ZERO, (shape[axis] - 1) * step + 1)


def _surrounded(builder: PrimsBuilder, x: Tensor, axis: int, low: Expr, high: Expr) -> Tensor:
    if builder.extents.is_negative(low) or builder.extents.is_negative(high):
        raise InvalidGraphError(
            f"a slice from {low} that ends {-high} elements behind its axis; expected it inside"
        )
    before, after = [ZERO] * x.rank, [ZERO] * x.rank
    before[axis], after[axis] = low, high
    zero = 0.0 if x.dtype.is_float else 0 if x.dtype.is_integer else False
    return builder.prim("pad", x, high=tuple(after), low=tuple(before), value=zero)


def _axis(sizes: Shape, dim: int) -> int:
    if not sizes:
        raise InvalidGraphError("a tensor without axes; expected at least one axis")
    return axis_of(dim, len(sizes))


def _check(builder: PrimsBuilder, grad: Tensor, expected: Shape) -> None:
    if not builder.extents.is_same_shape(grad.shape, expected):
        raise InvalidGraphError(f"a gradient {text_of(grad.shape)}; expected {text_of(expected)}")
