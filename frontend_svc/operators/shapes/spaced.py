"""Evenly spaced numbers, and powers of them."""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import Lowering
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
    op: Lowering, start: Operand, end: Operand, steps: int, *, dtype: DType | None = None
) -> Tensor:
    """Evenly spaced numbers from start to end, both included, counted from the nearer end."""
    result = dtype or _stated(op)
    if result.is_float:
        return op.convert(_spaced(op, start, end, steps, result), result)
    first, last = (_truncated(op, end, result) for end in (start, end))
    return op.convert(_spaced(op, first, last, steps, DType.F64), result)


@decomposes(
    "aten.logspace.default",
    "aten.logspace.Tensor_Tensor",
    "aten.logspace.Tensor_Scalar",
    "aten.logspace.Scalar_Tensor",
)
def logspace(  # the operator's own parameters
    op: Lowering,
    start: Operand,
    end: Operand,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The base to the power of evenly spaced numbers."""
    result = dtype or _stated(op)
    if result.is_float:
        return op.convert(op.apply("pow", base, _spaced(op, start, end, steps, result)), result)
    # PyTorch truncates the ends of several numbers to the result's type, and computes in f64.
    first, last = start, end
    if steps != 1:
        first, last = (_truncated(op, end, result) for end in (start, end))
    exponents = _spaced(op, first, last, steps, DType.F64)
    return op.convert(op.apply("pow", base, exponents), result)


def _stated(op: Lowering) -> DType:
    return op.stated[0].dtype if op.stated else DEFAULT_FLOAT


def _spaced(op: Lowering, start: Operand, end: Operand, steps: int, dtype: DType) -> Tensor:
    if isinstance(start, Expr) or isinstance(end, Expr):
        raise NotDecomposedError("the range has symbolic ends")
    if steps < 0:
        raise InvalidGraphError(f"{steps} steps; expected none or more")
    wide = dtype.compute_dtype
    first, last = _end(op, start, wide), _end(op, end, wide)
    position = op.iota(as_expr(steps))
    step = _step(op, first, last, steps, wide)
    up = op.apply("add", op.apply("mul", op.convert(position, wide), step), first)
    back = op.convert(op.apply("sub", steps - 1, position), wide)
    down = op.apply(
        "sub", op.expand(op.cast(last, wide), position.shape), op.apply("mul", back, step)
    )
    is_first_half = op.apply("lt", position, steps // 2 if steps > 1 else 1)
    return op.where(is_first_half, up, down)


def _step(op: Lowering, first: Operand, last: Operand, steps: int, dtype: DType) -> Operand:
    if steps < 2:
        return 0.0
    if isinstance(first, float) and isinstance(last, float):
        return (last - first) / (steps - 1)
    span = op.prim("sub", op.cast(last, dtype), op.cast(first, dtype))
    return op.apply("div", span, steps - 1)


def _truncated(op: Lowering, end: Operand, dtype: DType) -> Operand:
    """An end of a range of integers."""
    if isinstance(end, Tensor):
        return op.convert(end, dtype)
    if isinstance(end, float) and not math.isfinite(end):
        raise InvalidGraphError(f"a range of integers that ends at {end}; expected a number")
    return end if isinstance(end, Expr) else int(end)


def _end(op: Lowering, end: Operand, dtype: DType) -> Operand:
    if not isinstance(end, Tensor):
        if isinstance(end, Expr):
            raise NotDecomposedError("the range has symbolic ends")
        return float(end)
    if end.rank:
        raise InvalidGraphError(f"an end with {end.rank} axes; expected none")
    return op.convert(end, dtype)
