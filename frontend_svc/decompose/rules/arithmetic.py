"""Rules for neutral arithmetic; for floats only if they are exact, signed zeros included."""

from __future__ import annotations

import math
from typing import cast

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Node, Ref

Operands = tuple[int, ...]

_WIDENINGS = {
    DType.F16: (DType.F32, DType.F64),
    DType.BF16: (DType.F32, DType.F64),
    DType.F8E4M3FN: (DType.F16, DType.BF16, DType.F32, DType.F64),
    DType.F8E5M2: (DType.F16, DType.BF16, DType.F32, DType.F64),
    DType.F32: (DType.F64,),
    DType.I32: (DType.I64, DType.F64),
    DType.I16: (DType.I32, DType.I64, DType.F32, DType.F64),
    DType.I8: (DType.I16, DType.I32, DType.I64, DType.F16, DType.F32, DType.F64),
    DType.U8: (DType.I16, DType.I32, DType.I64, DType.F16, DType.F32, DType.F64),
    DType.BOOL: tuple(dtype for dtype in DType if dtype is not DType.BOOL),
}
"""Type -> types that represent each of its values exactly."""


def number_of(builder: GraphBuilder, value: int) -> bool | int | float | None:
    """The number of a `full`; None for any other value."""
    node = builder.definer_of(value)
    if node is None or node.op != "full":
        return None
    number = node.attr("value")
    return None if isinstance(number, Expr) else cast(float, number)


def mul(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """x * 1 is x."""
    left, right = operands
    if number_of(builder, right) == 1:
        return left
    return right if number_of(builder, left) == 1 else None


def div(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """x / 1 is x."""
    return operands[0] if number_of(builder, operands[1]) == 1 else None


def add(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """x + 0 is x for integers; for floats only x + -0.0 is x, since -0.0 + 0.0 is 0.0."""
    left, right = operands
    if _is_neutral(builder, right, negative_zero=True):
        return left
    return right if _is_neutral(builder, left, negative_zero=True) else None


def sub(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """x - 0 is x; for floats only if the zero is positive."""
    return operands[0] if _is_neutral(builder, operands[1], negative_zero=False) else None


def conjunction(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """x and true is x; x and false is false."""
    return _bool_unit(builder, node, operands, unit=True)


def disjunction(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """x or false is x; x or true is true."""
    return _bool_unit(builder, node, operands, unit=False)


def where(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A constant condition selects its branch; equal branches need no condition."""
    condition, if_true, if_false = operands
    if if_true == if_false:
        return if_true
    known = number_of(builder, condition)
    if known is None:
        return None
    return if_true if known else if_false


def twice(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """An operation that is its own inverse, applied twice."""
    source = builder.definer_of(operands[0])
    if source is None or source.op != node.op:
        return None
    return cast(Ref, source.args[0]).value


def convert(builder: GraphBuilder, node: Node, operands: Operands) -> int | None:
    """A conversion to the same type, or back through a type that represents all values."""
    dtype = node.types[0].dtype
    value = operands[0]
    held = builder.type_of(value).dtype
    if held is dtype:
        return value
    source = builder.definer_of(value)
    if source is None or source.op != "convert":
        return None
    inner = cast(Ref, source.args[0]).value
    inner_dtype = builder.type_of(inner).dtype
    if held not in _WIDENINGS.get(inner_dtype, ()):
        return None
    if inner_dtype is dtype:
        return inner
    return builder.add("convert", inner, **dict(node.attrs))


def _is_neutral(builder: GraphBuilder, value: int, *, negative_zero: bool) -> bool:
    number = number_of(builder, value)
    if number is None or number != 0:
        return False
    if not builder.type_of(value).dtype.is_float:
        return True
    return (math.copysign(1.0, number) < 0) is negative_zero


def _bool_unit(builder: GraphBuilder, node: Node, operands: Operands, *, unit: bool) -> int | None:
    if node.types[0].dtype is not DType.BOOL:
        return None
    for known, other in (operands, operands[::-1]):
        number = number_of(builder, known)
        if number is not None:
            return other if bool(number) is unit else known
    return operands[0] if operands[0] == operands[1] else None
