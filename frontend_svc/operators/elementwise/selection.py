"""Choices between values: where, masked_fill, clamp, triangles."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import extremum
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes("aten.where.self", "aten.where.ScalarOther")
def where(op: Lowering, condition: Tensor, self: Tensor, other: Operand) -> Tensor:
    """`self` where the condition holds, else `other`; NaN in the branch not taken is dropped."""
    return _where(op, condition, self, other)


@decomposes("aten.where.ScalarSelf")
def where_scalar_self(op: Lowering, condition: Tensor, self: Number, other: Tensor) -> Tensor:
    """A number where the condition holds, else `other`."""
    return _where(op, condition, self, other)


@decomposes("aten.where.Scalar")
def where_scalar(op: Lowering, condition: Tensor, self: Number, other: Number) -> Tensor:
    """One of two numbers."""
    return _where(op, condition, self, other)


@decomposes("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(op: Lowering, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """The value where the mask holds, in the operand's type."""
    if isinstance(value, Tensor) and value.rank:
        raise InvalidGraphError(f"a value with {value.rank} axes; expected none")
    return op.where(_condition(op, mask), op.cast(value, self.dtype), self)


@decomposes("aten.clamp.default", "aten.clamp.Tensor")
def clamp(
    op: Lowering, self: Tensor, min: Operand | None = None, max: Operand | None = None
) -> Tensor:
    """Between two bounds; the upper one wins, NaN stays."""
    if min is None and max is None:
        raise InvalidGraphError("no bound; expected a minimum or a maximum")
    dtype = op.promoted(self, *(bound for bound in (min, max) if bound is not None))
    x = op.convert(self, dtype)
    if min is not None:
        x = extremum(op, "maximum", x, op.cast(min, dtype))
    if max is not None:
        x = extremum(op, "minimum", x, op.cast(max, dtype))
    return x


@decomposes("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(op: Lowering, self: Tensor, min: Operand) -> Tensor:
    """Not below a bound."""
    return clamp(op, self, min, None)


@decomposes("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(op: Lowering, self: Tensor, max: Operand) -> Tensor:
    """Not above a bound."""
    return clamp(op, self, None, max)


@decomposes("aten.triu.default")
def triu(op: Lowering, self: Tensor, diagonal: Expr | None = None) -> Tensor:
    """The upper triangle from a diagonal; zeros below."""
    return _triangle(op, "ge", self, diagonal)


@decomposes("aten.tril.default")
def tril(op: Lowering, self: Tensor, diagonal: Expr | None = None) -> Tensor:
    """The lower triangle to a diagonal; zeros above."""
    return _triangle(op, "le", self, diagonal)


def _where(op: Lowering, condition: Tensor, left: Operand, right: Operand) -> Tensor:
    dtype = op.promoted(left, right)
    return op.where(_condition(op, condition), op.cast(left, dtype), op.cast(right, dtype))


def _condition(op: Lowering, condition: Tensor) -> Tensor:
    if condition.dtype not in (DType.BOOL, DType.U8):
        raise InvalidGraphError(f"a condition of type {condition.dtype!r}; expected bool")
    return op.convert(condition, DType.BOOL)


def _triangle(op: Lowering, prim: str, x: Tensor, diagonal: Expr | None) -> Tensor:
    if x.rank < 2:
        raise InvalidGraphError(f"a tensor with {x.rank} axes; expected two or more")
    rows, columns = x.shape[-2:]
    row = op.reshape(op.iota(rows), (rows, ONE))
    offset = op.apply("sub", op.iota(columns), row)
    bound: Number = 0 if diagonal is None else diagonal
    if isinstance(bound, Expr) and bound.is_constant:
        bound = bound.constant
    zero = False if x.dtype is DType.BOOL else 0
    return op.where(op.apply(prim, offset, bound), x, op.full(zero, x.dtype))
