"""Evenly spaced numbers, and powers of them."""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import DEFAULT_FLOAT
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr


@decomposes(
    "aten.linspace.default",
    "aten.linspace.Tensor_Tensor",
    "aten.linspace.Tensor_Scalar",
    "aten.linspace.Scalar_Tensor",
)
def linspace(
    builder: PrimsBuilder, start: Operand, end: Operand, steps: int, *, dtype: DType | None = None
) -> Tensor:
    """Evenly spaced numbers from start to end, both included, computed from the nearer end."""
    result = dtype or _stated(builder)
    if result.is_float:
        return builder.convert(_spaced(builder, start, end, steps, result), result)
    first, last = (_truncated(builder, end, result) for end in (start, end))
    return builder.convert(_spaced(builder, first, last, steps, DType.F64), result)


@decomposes(
    "aten.logspace.default",
    "aten.logspace.Tensor_Tensor",
    "aten.logspace.Tensor_Scalar",
    "aten.logspace.Scalar_Tensor",
)
def logspace(
    builder: PrimsBuilder,
    start: Operand,
    end: Operand,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The base to the power of evenly spaced numbers."""
    result = dtype or _stated(builder)
    if result.is_float:
        return builder.convert(
            builder.apply("pow", base, _spaced(builder, start, end, steps, result)), result
        )
    # For more than one number, PyTorch truncates the ends to the result's type; it computes in f64.
    first, last = start, end
    if steps != 1:
        first, last = (_truncated(builder, end, result) for end in (start, end))
    exponents = _spaced(builder, first, last, steps, DType.F64)
    return builder.convert(builder.apply("pow", base, exponents), result)


def _stated(builder: PrimsBuilder) -> DType:
    return builder.stated[0].dtype if builder.stated else DEFAULT_FLOAT


def _spaced(
    builder: PrimsBuilder, start: Operand, end: Operand, steps: int, dtype: DType
) -> Tensor:
    if isinstance(start, Expr) or isinstance(end, Expr):
        raise NotDecomposedError("the range has symbolic ends")
    if steps < 0:
        raise InvalidGraphError(f"{steps} steps; expected none or more")
    wide = dtype.compute_dtype
    first, last = _end(builder, start, wide), _end(builder, end, wide)
    position = builder.iota(as_expr(steps))
    step = _step(builder, first, last, steps, wide)
    up = builder.apply("add", builder.apply("mul", builder.convert(position, wide), step), first)
    back = builder.convert(builder.apply("sub", steps - 1, position), wide)
    down = builder.apply(
        "sub",
        builder.expand(builder.cast(last, wide), position.shape),
        builder.apply("mul", back, step),
    )
    is_first_half = builder.apply("lt", position, steps // 2 if steps > 1 else 1)
    return builder.where(is_first_half, up, down)


def _step(
    builder: PrimsBuilder, first: Operand, last: Operand, steps: int, dtype: DType
) -> Operand:
    if steps < 2:
        return 0.0
    if isinstance(first, float) and isinstance(last, float):
        return (last - first) / (steps - 1)
    span = builder.prim("sub", builder.cast(last, dtype), builder.cast(first, dtype))
    return builder.apply("div", span, steps - 1)


def _truncated(builder: PrimsBuilder, end: Operand, dtype: DType) -> Operand:
    """An end of a range of integers, truncated."""
    if isinstance(end, Tensor):
        return builder.convert(end, dtype)
    if isinstance(end, float) and not math.isfinite(end):
        raise InvalidGraphError(f"a range of integers that ends at {end}; expected a number")
    return end if isinstance(end, Expr) else int(end)


def _end(builder: PrimsBuilder, end: Operand, dtype: DType) -> Operand:
    if not isinstance(end, Tensor):
        if isinstance(end, Expr):
            raise NotDecomposedError("the range has symbolic ends")
        return float(end)
    if end.rank:
        raise InvalidGraphError(f"an end with {end.rank} axes; expected none")
    return builder.convert(end, dtype)
