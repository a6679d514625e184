"""Statements under construction: equal statements are merged, index arithmetic stays symbolic."""

from __future__ import annotations

from collections.abc import Callable

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, maximum, minimum
from kernelfarm.ir.loop_ir import Compute, IndexValue, Indirect, Literal
from kernelfarm.ir.work_budget import spend
from optimizer_svc.ir.nest import NestStatement, Read
from optimizer_svc.lowering.literals import converted

_INDEX_ARITHMETIC: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": maximum,
    "minimum": minimum,
    "floor_div": lambda a, b: a // b,
    "mod_floor": lambda a, b: a % b,
}

_INDEX_FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "abs": lambda a: maximum(a, -a),
    "neg": lambda a: -a,
}

_DIVISIONS = frozenset({"floor_div", "mod_floor"})
_MAX_CHOICES = 16
"""The most steps to find the narrow values that a wide one may be."""


class NestBody:
    """A list of statements under construction, each with the element type of its value."""

    __slots__ = ("_numbers", "dtypes", "statements")

    def __init__(self) -> None:
        self.statements: list[NestStatement] = []
        self.dtypes: list[DType] = []
        self._numbers: dict[object, int] = {}

    def add(self, statement: NestStatement, dtype: DType) -> int:
        """The number of the statement, or of an equal one."""
        spend(8)
        key = _key(statement)
        found = self._numbers.get(key)
        if found is not None:
            return found
        number = self._numbers[key] = len(self.statements)
        self.statements.append(statement)
        self.dtypes.append(dtype)
        return number

    def literal(self, dtype: DType, value: float | int) -> int:
        """A literal of a type."""
        if dtype.is_float:
            return self.add(Literal(dtype, float(value)), dtype)
        return self.add(Literal(dtype, int(value)), dtype)

    def index_value(self, expr: Expr, dtype: DType = DType.I64) -> int:
        """An index expression as a value."""
        if expr.is_constant:
            return self.literal(dtype, expr.constant)
        if dtype in (DType.I64, DType.I32):
            return self.add(IndexValue(dtype, expr), dtype)
        return self.convert(self.add(IndexValue(DType.I64, expr), DType.I64), dtype)

    def compute(self, op: str, operands: tuple[int, ...], dtype: DType) -> int:
        """A scalar operation in its operands' types, folded if that is exact."""
        if op == "convert":
            return self.convert(operands[0], dtype)
        folded = self._folded_index(op, operands, dtype)
        if folded is not None:
            return folded
        return self.add(Compute(op, operands, dtype), dtype)

    def convert(self, operand: int, dtype: DType) -> int:
        """The value in another type; a narrow value that was widened is converted back for free."""
        source = self.dtypes[operand]
        if source is dtype:
            return operand
        match self.statements[operand]:
            case Literal(value=value):
                number = converted(value, source, dtype)
                if number is not None:
                    return self.literal(dtype, number)
            case IndexValue(expr=expr) if (source, dtype) == (DType.I32, DType.I64):
                return self.index_value(expr)
            case Compute(op="convert", operands=(inner,)) if self._is_round_trip(
                inner, source, dtype
            ):
                return inner
            case Compute(op="convert", operands=(inner,)) if self.dtypes[
                inner
            ] is dtype and self._holds_narrow(inner, source):
                return inner
        return self.add(Compute("convert", (operand,), dtype), dtype)

    def _holds_narrow(self, number: int, narrow: DType) -> bool:
        """True if a wide value is one of some narrow ones, so that rounding does not change it."""
        if not narrow.is_float or narrow.compute_dtype is narrow:
            return False
        pending = [number]
        for _ in range(_MAX_CHOICES):
            if not pending:
                return True
            match self.statements[pending.pop()]:
                case Compute(op="where", operands=(_, first, second)):
                    pending += (first, second)
                case Compute(op="convert", operands=(inner,)) if self.dtypes[inner] is narrow:
                    pass
                case Literal(value=0):
                    pass
                case _:
                    return False
        return False

    def before_conversion(self, number: int) -> int:
        """The value that a conversion to a narrower float has rounded; else the value itself."""
        match self.statements[number]:
            case Compute(op="convert", operands=(wide,), dtype=dtype):
                return wide if self.dtypes[wide] is dtype.compute_dtype else number
        return number

    def arithmetic(self, op: str, operands: tuple[int, ...], dtype: DType) -> int:
        """A scalar operation, computed in f32 if operands or result are narrow floats."""
        wide = tuple(self.convert(v, self.dtypes[v].compute_dtype) for v in operands)
        if wide == operands and dtype.compute_dtype is dtype:
            return self.compute(op, operands, dtype)
        return self.convert(self.compute(op, wide, dtype.compute_dtype), dtype)

    def is_read_if(self, number: int, mask: int | None) -> bool:
        """True if a value is an element of memory that is read if a condition holds, else 0.

        It may be converted.
        """
        statement = self.statements[number]
        while isinstance(statement, Compute) and statement.op == "convert":
            statement = self.statements[statement.operands[0]]
        return mask is not None and isinstance(statement, Read) and statement.mask == mask

    def logical_and(self, left: int | None, right: int) -> int:
        """The conjunction of two conditions; a missing one holds."""
        return right if left is None else self.compute("logical_and", (left, right), DType.BOOL)

    def expr_of(self, number: int) -> Expr | None:
        """The index expression of an i64 value; None if it is computed otherwise."""
        match self.statements[number]:
            case IndexValue(expr=expr):
                return expr
            case Literal(value=int() as value):
                return as_expr(value)
        return None

    def _folded_index(self, op: str, operands: tuple[int, ...], dtype: DType) -> int | None:
        if dtype is not DType.I64:
            return None
        if op in _INDEX_FUNCTIONS:
            expr = self.expr_of(operands[0])
            return None if expr is None else self.index_value(_INDEX_FUNCTIONS[op](expr))
        if op not in _INDEX_ARITHMETIC:
            return None
        left, right = (self.expr_of(v) for v in operands)
        if left is None or right is None:
            return None
        if op in _DIVISIONS and not (right.is_constant and right.constant > 0):
            return None
        return self.index_value(_INDEX_ARITHMETIC[op](left, right))

    def _is_round_trip(self, inner: int, middle: DType, target: DType) -> bool:
        narrow = target.compute_dtype is not target
        return narrow and self.dtypes[inner] is target and middle in (DType.F32, DType.F64)


def _key(statement: NestStatement) -> object:
    match statement:
        case Literal(dtype, value):
            return ("literal", dtype, repr(value))  # distinguishes 0.0 from -0.0
        case Indirect(value=value, extent=extent):
            return ("indirect", value, extent)
        case _:
            return statement
