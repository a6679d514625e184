"""Diagonals: read, written and created."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import promote
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.reductions.over_axes import sum_dims
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr


@decomposes("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(
    builder: PrimsBuilder, self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """The diagonal of two axes, on a new last axis."""
    x, rows, columns = _matrices(builder, self, dim1, dim2)
    lead, length = x.shape[:-2], _length(builder, rows, columns, offset)
    if length is ZERO:
        return builder.full(0, x.dtype, (*lead, ZERO))
    if not (rows.is_constant and columns.is_constant):
        return _gathered(builder, x, length, offset)
    start = as_expr(offset) if offset >= 0 else columns * -offset
    flat = builder.reshape(x, (*lead, rows * columns))
    limit = start + (length - 1) * (columns + 1) + 1
    return builder.slice_axis(flat, len(lead), start, limit, columns + 1)


@decomposes("aten.diag_embed.default")
def diag_embed(
    builder: PrimsBuilder, self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Tensor:
    """Zeros with the last axis as the diagonal of two axes."""
    if not self.rank:
        raise InvalidGraphError("a tensor without axes; expected a diagonal")
    size = self.shape[-1] + abs(offset)
    zeros = builder.full(0, self.dtype, (*self.shape[:-1], size, size))
    return to_positions(builder, written(builder, zeros, self, offset), dim1, dim2)


@decomposes("aten.diagonal_scatter.default")
def diagonal_scatter(
    builder: PrimsBuilder, self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """The tensor with the diagonal of two axes replaced."""
    x, rows, columns = _matrices(builder, self, dim1, dim2)
    length = _length(builder, rows, columns, offset)
    if not builder.extents.is_same_shape(src.shape, (*x.shape[:-2], length)):
        raise InvalidGraphError(f"a diagonal of {src.shape}; expected {length} elements")
    if length is ZERO:
        return self
    return to_positions(
        builder, written(builder, x, builder.convert(src, x.dtype), offset), dim1, dim2
    )


@decomposes("aten.trace.default")
def trace(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if self.rank != 2:
        raise InvalidGraphError(f"a tensor with {self.rank} axes; expected a matrix")
    return sum_dims(builder, diagonal(builder, self), None)


@decomposes("aten.block_diag.default")
def block_diag(builder: PrimsBuilder, tensors: tuple[Tensor, ...]) -> Tensor:
    """Matrices along the diagonal of a matrix of zeros."""
    if not tensors or any(tensor.rank > 2 for tensor in tensors):
        raise InvalidGraphError("blocks; expected at least one, with at most two axes each")
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = promote(dtype, tensor.dtype)
    blocks = [_as_matrix(builder, builder.convert(tensor, dtype)) for tensor in tensors]
    width = sum((block.shape[1] for block in blocks), ZERO)
    rows, before = [], ZERO
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(_padded(builder, block, before, after))
        before = before + block.shape[1]
    return rows[0] if len(rows) == 1 else builder.prim("cat", *rows, dim=0)


def _gathered(builder: PrimsBuilder, x: Tensor, length: Expr, offset: int) -> Tensor:
    """The diagonal as a gather: for symbolic extents, a slice of the flat matrix is not proven."""
    number = builder.iota(length)
    row, column = (builder.apply("add", number, max(shift, 0)) for shift in (-offset, offset))
    found = builder.prim("gather_nd", x, row, column, dims=(x.rank - 2, x.rank - 1))
    return builder.permute(found, [*range(1, found.rank), 0])


def _as_matrix(builder: PrimsBuilder, x: Tensor) -> Tensor:
    return x if x.rank == 2 else builder.reshape(x, (ONE, *(x.shape or (ONE,))))


def _matrices(builder: PrimsBuilder, x: Tensor, dim1: int, dim2: int) -> tuple[Tensor, Expr, Expr]:
    """The tensor with two axes last, and their extents."""
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    if first == second or x.rank < 2:
        raise InvalidGraphError(f"the diagonal of dims {dim1} and {dim2}; expected two axes")
    rest = [axis for axis in range(x.rank) if axis not in (first, second)]
    moved = builder.permute(x, [*rest, first, second])
    return moved, moved.shape[-2], moved.shape[-1]


def to_positions(builder: PrimsBuilder, x: Tensor, dim1: int, dim2: int) -> Tensor:
    """The last two axes moved to two dims."""
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    if first == second:
        raise InvalidGraphError(f"dims {dim1} and {dim2}; expected two axes")
    rest = iter(range(x.rank - 2))
    axis_order = {first: x.rank - 2, second: x.rank - 1}
    return builder.permute(
        x, [axis_order[k] if k in axis_order else next(rest) for k in range(x.rank)]
    )


def _length(builder: PrimsBuilder, rows: Expr, columns: Expr, offset: int) -> Expr:
    height, width = rows + min(offset, 0), columns - max(offset, 0)
    return builder.extents.larger(builder.extents.smaller(height, width), ZERO)


def written(builder: PrimsBuilder, x: Tensor, values: Tensor, offset: int) -> Tensor:
    """Matrices with a diagonal replaced by the last axis of `values`."""
    rows, columns = x.shape[-2:]
    row = builder.reshape(builder.iota(rows), (rows, ONE))
    is_there = builder.apply("eq", builder.apply("add", row, offset), builder.iota(columns))
    low = as_expr(max(-offset, 0))
    high = rows - low - values.shape[-1]
    column = _padded(builder, values, low, high)
    return builder.where(is_there, builder.reshape(column, (*column.shape, ONE)), x)


def _padded(builder: PrimsBuilder, x: Tensor, low: Expr, high: Expr) -> Tensor:
    """Zeros around the last axis."""
    if (low, high) == (ZERO, ZERO):
        return x
    lead = (ZERO,) * (x.rank - 1)
    zero = 0.0 if x.dtype.is_float else 0 if x.dtype.is_integer else False
    return builder.prim("pad", x, high=(*lead, high), low=(*lead, low), value=zero)
