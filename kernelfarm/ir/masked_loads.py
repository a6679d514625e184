"""Elements of memory that a kernel reads only if an index is within limits, and takes as 0 else.

So a kernel reads an image with padding. The limits are conditions of the load: comparisons of
positions that axes give.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.contractions import ALL_FACTORS
from kernelfarm.ir.loop_ir import Compute, IndexValue, Kernel, Literal, Load

_COMPARISONS = {"ge": (1, 0), "gt": (1, 1), "le": (-1, 0), "lt": (-1, 1)}
"""By operation: the sign of the difference of its operands, and what that exceeds."""


@dataclass(frozen=True, slots=True)
class MaskedLoad:
    """A load, and what must be at least 0 for its element to be read; else it gives 0."""

    load: Load
    positions: tuple[Expr, ...]


def masked_load(kernel: Kernel, number: int) -> MaskedLoad | None:
    """The element of memory that a value is, perhaps converted to f32; None if it is another.

    The element is a factor of a sum of products: of one of their types.
    """
    positions: list[Expr] = []
    while True:
        statement = kernel.body[number]
        match statement:
            case Compute(op="convert", operands=(operand,), dtype=DType.F32):
                number = operand
            case Compute(op="where", operands=(condition, chosen, other)):
                known = _positions(kernel, condition)
                if known is None or not _is_zero(kernel, other):
                    return None
                positions += known
                number = chosen
            case Load():
                return _loaded(kernel, statement, positions)
            case _:
                return None


def _loaded(kernel: Kernel, load: Load, positions: list[Expr]) -> MaskedLoad | None:
    if kernel.param(load.param).dtype not in ALL_FACTORS:
        return None
    if load.mask is None:
        return MaskedLoad(load, tuple(dict.fromkeys(positions)))
    known = _positions(kernel, load.mask)
    if known is None or load.other is None or not _is_zero(kernel, load.other):
        return None
    return MaskedLoad(load, tuple(dict.fromkeys((*positions, *known))))


def _is_zero(kernel: Kernel, number: int) -> bool:
    statement = kernel.body[number]
    if isinstance(statement, Compute) and statement.op == "convert":
        return _is_zero(kernel, statement.operands[0])
    return isinstance(statement, Literal) and statement.value == 0


def _positions(kernel: Kernel, number: int) -> list[Expr] | None:
    """What must be at least 0 for a condition to hold; None if it is no such condition."""
    statement = kernel.body[number]
    if not isinstance(statement, Compute) or len(statement.operands) != 2:
        return None
    if statement.op == "logical_and":
        sides = [_positions(kernel, operand) for operand in statement.operands]
        return None if None in sides else [each for side in sides if side for each in side]
    left, right = (_integer(kernel, operand) for operand in statement.operands)
    if left is None or right is None or statement.op not in _COMPARISONS:
        return None
    sign, more = _COMPARISONS[statement.op]
    return [(left - right) * sign - more]


def _integer(kernel: Kernel, number: int) -> Expr | None:
    """An index or a constant as an expression."""
    match kernel.body[number]:
        case IndexValue(expr=expr):
            return expr
        case Literal(value=int() as value):
            return as_expr(value)
    return None
