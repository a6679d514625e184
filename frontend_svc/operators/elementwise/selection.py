"""Choices between values: where, masked_fill, clamp, triangles."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import extremum
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes("aten.where.self", "aten.where.ScalarOther")
def where(builder: PrimsBuilder, condition: Tensor, self: Tensor, other: Operand) -> Tensor:
    """`self` where the condition holds, else `other`; NaN in the other branch has no effect."""
    return _where(builder, condition, self, other)


@decomposes("aten.where.ScalarSelf")
def where_scalar_self(
    builder: PrimsBuilder, condition: Tensor, self: Number, other: Tensor
) -> Tensor:
    """A number where the condition holds, else `other`."""
    return _where(builder, condition, self, other)


@decomposes("aten.where.Scalar")
def where_scalar(builder: PrimsBuilder, condition: Tensor, self: Number, other: Number) -> Tensor:
    """One of two numbers."""
    return _where(builder, condition, self, other)


@decomposes("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(builder: PrimsBuilder, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """The value where the mask holds, in the operand's type."""
    if isinstance(value, Tensor) and value.rank:
        raise InvalidGraphError(f"a value with {value.rank} axes; expected none")
    return builder.where(_condition(builder, mask), builder.cast(value, self.dtype), self)


@decomposes("aten.clamp.default", "aten.clamp.Tensor")
def clamp(
    builder: PrimsBuilder, self: Tensor, min: Operand | None = None, max: Operand | None = None
) -> Tensor:
    """Elements clamped to two bounds; the upper bound has priority, NaN stays."""
    if min is None and max is None:
        raise InvalidGraphError("no bound; expected a minimum or a maximum")
    dtype = builder.promoted(self, *(bound for bound in (min, max) if bound is not None))
    x = builder.convert(self, dtype)
    if min is not None:
        x = extremum(builder, "maximum", x, builder.cast(min, dtype))
    if max is not None:
        x = extremum(builder, "minimum", x, builder.cast(max, dtype))
    return x


@decomposes("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(builder: PrimsBuilder, self: Tensor, min: Operand) -> Tensor:
    """Elements, or the bound where they are below it."""
    return clamp(builder, self, min, None)


@decomposes("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(builder: PrimsBuilder, self: Tensor, max: Operand) -> Tensor:
    """Elements, or the bound where they are above it."""
    return clamp(builder, self, None, max)


@decomposes("aten.triu.default")
def triu(builder: PrimsBuilder, self: Tensor, diagonal: Expr | None = None) -> Tensor:
    """The upper triangle from a diagonal on, zeros below it."""
    return _triangle(builder, "ge", self, diagonal)


@decomposes("aten.tril.default")
def tril(builder: PrimsBuilder, self: Tensor, diagonal: Expr | None = None) -> Tensor:
    """The lower triangle up to a diagonal, zeros above it."""
    return _triangle(builder, "le", self, diagonal)


def _where(builder: PrimsBuilder, condition: Tensor, left: Operand, right: Operand) -> Tensor:
    dtype = builder.promoted(left, right)
    return builder.where(
        _condition(builder, condition), builder.cast(left, dtype), builder.cast(right, dtype)
    )


def _condition(builder: PrimsBuilder, condition: Tensor) -> Tensor:
    if condition.dtype not in (DType.BOOL, DType.U8):
        raise InvalidGraphError(f"a condition of type {condition.dtype!r}; expected bool")
    return builder.convert(condition, DType.BOOL)


def _triangle(builder: PrimsBuilder, prim: str, x: Tensor, diagonal: Expr | None) -> Tensor:
    if x.rank < 2:
        raise InvalidGraphError(f"a tensor with {x.rank} axes; expected two or more")
    rows, columns = x.shape[-2:]
    row = builder.reshape(builder.iota(rows), (rows, ONE))
    offset = builder.apply("sub", builder.iota(columns), row)
    bound: Number = 0 if diagonal is None else diagonal
    if isinstance(bound, Expr) and bound.is_constant:
        bound = bound.constant
    zero = False if x.dtype is DType.BOOL else 0
    return builder.where(builder.apply(prim, offset, bound), x, builder.full(zero, x.dtype))
