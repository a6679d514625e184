"""Gradients of mirrored padding and of parts of tensors, as gathers and zeros around."""

from __future__ import annotations

from collections.abc import Callable

from frontend_svc.operators.core.extents import Shape, axis_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.shapes.diagonals import to_places, written
from frontend_svc.operators.windows.inverse_maps import (
    Cover,
    cover_of,
    elements_of,
    gathered,
    spread,
)
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr

_CoverOf = Callable[[Lowering, Expr, int, int], Cover]
"""(lowering, extent, elements added in front, and behind) -> where elements went."""


def _mirrored(op: Lowering, extent: Expr, low: int, high: int) -> Cover:
    """An element lies at its own place, and mirrored at either end unless it is the end."""
    element, last = elements_of(op, extent), number_of(extent - 1)
    own = op.apply("add", element, low)
    in_front = op.apply("sub", low, element)
    behind = op.apply("sub", number_of((extent - 1) * 2 + low), element)
    inside = op.full(True, DType.BOOL, element.shape)
    there = (inside, op.apply("gt", element, 0), op.apply("lt", element, last))
    found = op.prim("cat", own, in_front, behind, dim=1)
    return cover_of(op, extent, extent + low + high, found, op.prim("cat", *there, dim=1))


def _repeated(op: Lowering, extent: Expr, low: int, high: int) -> Cover:
    """An element lies at its own place; the ends lie everywhere beyond them as well."""
    element, count = elements_of(op, extent), extent + low + high
    own = op.apply("add", element, low)
    is_first = op.apply("eq", element, 0)
    is_last = op.apply("eq", element, number_of(extent - 1))
    begin = op.where(is_first, min(low, 0), own)
    end = op.where(is_last, number_of(extent - 1 + low + max(high, 0)), own)
    most = max(low, high, 0) + 1 if extent is not ONE else max(low, 0) + max(high, 0) + 1
    found = op.apply("add", begin, op.iota(as_expr(most)))
    return cover_of(op, extent, count, found, op.apply("le", found, end))


def _register(name: str, cover: _CoverOf, axes: int) -> None:
    def backward(
        op: Lowering, grad_output: Tensor, self: Tensor, padding: tuple[int, ...]
    ) -> Tensor:
        if len(padding) != 2 * axes or self.rank not in (axes + 1, axes + 2):
            raise InvalidGraphError(
                f"{len(padding)} paddings of shape {text_of(self.shape)};"
                f" expected {2 * axes} for {axes + 1} or {axes + 2} axes"
            )
        covers, wanted = [], list(self.shape)
        for number in range(axes):
            low, high = padding[2 * (axes - 1 - number) : 2 * (axes - number)]
            axis = self.rank - axes + number
            extent = self.shape[axis]
            wanted[axis] = extent + low + high
            if extent is ZERO or op.extents.is_negative(wanted[axis] - 1):
                raise NotDecomposedError("padding of an empty axis")
            covers.append(cover(op, extent, low, high))
        _check(op, grad_output, tuple(wanted))
        found = spread(op, op.widened(grad_output), covers)
        return op.convert(gathered(op, found, None, covers), self.dtype)

    decomposes(f"aten.{name}{axes}d_backward.default")(backward)


for _axes in (1, 2, 3):
    _register("reflection_pad", _mirrored, _axes)
    _register("replication_pad", _repeated, _axes)


@decomposes("aten.select_backward.default")
def select_backward(
    op: Lowering, grad_output: Tensor, input_sizes: tuple[Expr, ...], dim: int, index: Expr
) -> Tensor:
    """Zeros with the gradient at one place of an axis."""
    axis = _axis(input_sizes, dim)
    extent = input_sizes[axis]
    position = index + extent if op.extents.is_negative(index) else index
    _check(op, grad_output, (*input_sizes[:axis], *input_sizes[axis + 1 :]))
    row = op.reshape(grad_output, (*input_sizes[:axis], ONE, *input_sizes[axis + 1 :]))
    return _surrounded(op, row, axis, position, extent - position - 1)


@decomposes("aten.slice_backward.default")
def slice_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    grad_output: Tensor,
    input_sizes: tuple[Expr, ...],
    dim: int,
    start: Expr,
    end: Expr,
    step: int,
) -> Tensor:
    """Zeros with the gradient at the places of a slice."""
    axis = _axis(input_sizes, dim)
    if grad_output.rank != len(input_sizes):
        seen = f"{grad_output.rank} axes of {len(input_sizes)}"
        raise InvalidGraphError(f"a gradient with {seen}; expected all")
    extent, length = input_sizes[axis], grad_output.shape[axis]
    first = start
    if op.extents.is_negative(start):
        first = op.extents.larger(start + extent, ZERO)
    first = op.extents.smaller(first, extent)
    if step < 1:
        raise InvalidGraphError(f"step {step}; expected 1 or more")
    if length is ZERO:
        return op.full(0, grad_output.dtype, input_sizes)
    spread_out = grad_output
    if step > 1:
        spread_out = _every(op, grad_output, axis, step)
    behind = extent - first - spread_out.shape[axis]
    return _surrounded(op, spread_out, axis, first, behind)


@decomposes("aten.diagonal_backward.default")
def diagonal_backward(
    op: Lowering,
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
        return op.full(0, grad_output.dtype, input_sizes)
    _check(op, grad_output, (*rest, *grad_output.shape[-1:]))
    zeros = op.full(0, grad_output.dtype, matrix)
    return to_places(op, written(op, zeros, grad_output, offset), first, second)


def _every(op: Lowering, x: Tensor, axis: int, step: int) -> Tensor:
    """The elements of an axis `step` apart, zeros between; nothing behind the last."""
    shape = x.shape
    column = op.reshape(x, (*shape[: axis + 1], ONE, *shape[axis + 1 :]))
    wide = _surrounded(op, column, axis + 1, ZERO, as_expr(step - 1))
    flat = op.reshape(wide, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
    return op.slice_axis(flat, axis, ZERO, (shape[axis] - 1) * step + 1)


def _surrounded(op: Lowering, x: Tensor, axis: int, low: Expr, high: Expr) -> Tensor:
    if op.extents.is_negative(low) or op.extents.is_negative(high):
        raise InvalidGraphError(f"a part from {low} that is {-high} longer than its axis")
    before, after = [ZERO] * x.rank, [ZERO] * x.rank
    before[axis], after[axis] = low, high
    zero = 0.0 if x.dtype.is_float else 0 if x.dtype.is_integer else False
    return op.prim("pad", x, high=tuple(after), low=tuple(before), value=zero)


def _axis(sizes: Shape, dim: int) -> int:
    if not sizes:
        raise InvalidGraphError("a tensor without axes; expected an axis to take a part of")
    return axis_of(dim, len(sizes))


def _check(op: Lowering, grad: Tensor, wanted: Shape) -> None:
    if not op.extents.is_same_shape(grad.shape, wanted):
        raise InvalidGraphError(f"a gradient {text_of(grad.shape)}; expected {text_of(wanted)}")
