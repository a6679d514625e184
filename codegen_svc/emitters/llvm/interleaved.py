"""Kernels whose last axis alternates: neighbouring points that are computed differently.

An index that has the axis modulo a small number says which of some interleaved values a point has:
the integers of a byte, pairs of real and imaginary parts, the pixels that a shuffle puts beside
each other. All points of a period become one point, with stores for each of them. What
distinguishes them is constant then, and what they share is loaded once:

    for d in 128: out[d] = a[d // 2] & 15 if d % 2 < 1 else a[d // 2] >> 4

    for d in 64: out[2 * d] = a[d] & 15; out[2 * d + 1] = a[d] >> 4
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from codegen_svc.emitters.llvm.index import bounds_of
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, FloorDiv, Mod, as_expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Statement,
    Store,
    StoreMode,
)

PERIODS: Final = (8, 4, 2)
_MOST_STATEMENTS: Final = 128
"""Statements of a kernel with the points of a period: LLVM vectorizes them together."""
_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    **{"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge},
    **{"eq": operator.eq, "ne": operator.ne},
}
_KINDS = (Load, Literal, IndexValue, Compute, Store)


def with_interleaved_points(kernel: Kernel) -> Kernel:
    """The kernel with a period of its last axis as one point; itself if it has none."""
    period = _period(kernel)
    if period is None:
        return kernel
    last = kernel.outer[-1]
    outer = (*kernel.outer[:-1], Axis(last.name, last.extent // period))
    made = replace(kernel, outer=outer, body=())
    body = _Body(kernel, bounds_of(made))
    for point in range(period):
        body.add_point({last.name: symbol(last.name) * period + point})
    return replace(made, body=tuple(body.statements))


def _period(kernel: Kernel) -> int | None:
    """The points of the last axis that repeat; None if it has no small period."""
    if kernel.reduction or not kernel.outer or not kernel.outer[-1].extent.is_constant:
        return None
    is_plain = all(isinstance(s, _KINDS) for s in kernel.body)
    stores = [s for s in kernel.body if isinstance(s, Store)]
    is_set = all(s.mode is StoreMode.SET for s in stores)
    if not is_plain or not is_set or any(p.access is Access.READ_WRITE for p in kernel.params):
        return None
    last = kernel.outer[-1]
    found = {d for s in kernel.body for e in _expressions(s) for d in _moduli(e, last.name)}
    period = max(found, default=0)
    if period not in PERIODS or any(period % each for each in found):
        return None
    is_short = period * len(kernel.body) <= _MOST_STATEMENTS
    return period if is_short and last.extent.constant % period == 0 else None


def _expressions(statement: Statement) -> tuple[Expr, ...]:
    if isinstance(statement, Load | Store):
        return (statement.index,)
    return (statement.expr,) if isinstance(statement, IndexValue) else ()


def _moduli(expr: Expr, axis: str) -> Iterator[int]:
    """The numbers that an expression has the axis modulo of."""
    for monomial, _ in expr.terms:
        for atom in monomial:
            if not isinstance(atom, Mod | FloorDiv):
                continue
            step = atom.numerator.coefficient_of(axis)
            if isinstance(atom, Mod) and step == as_expr(1) and atom.denominator.is_constant:
                yield atom.denominator.constant
            yield from _moduli(atom.numerator, axis)


class _Body:
    """The statements of the points of a period, each once."""

    def __init__(self, kernel: Kernel, bounds: Bounds) -> None:
        self.statements: list[Statement] = []
        self._kernel = kernel
        self._bounds = bounds
        self._known: dict[tuple[Statement, str], int] = {}

    def add_point(self, at: Mapping[str, Expr]) -> None:
        """Appends the statements of a point of the old kernel."""
        numbers: dict[int, int] = {}
        for number, statement in enumerate(self._kernel.body):
            numbers[number] = self._add(self._moved(statement, numbers, at))

    def _add(self, statement: Statement | int) -> int:
        if isinstance(statement, int):
            return statement
        key = statement, repr(statement)  # 0.0 is -0.0, but for its text
        if key not in self._known:
            self._known[key] = len(self.statements)
            self.statements.append(statement)
        return self._known[key]

    def _moved(
        self, statement: Statement, numbers: Mapping[int, int], at: Mapping[str, Expr]
    ) -> Statement | int:
        """A statement at a point, or the number of the one that has its value."""
        match statement:
            case Load():
                return self._load(statement, numbers, at)
            case Store(index=index, value=value):
                return replace(statement, index=self._index(index, at), value=numbers[value])
            case IndexValue(dtype=dtype, expr=expr):
                found = self._index(expr, at)
                return (
                    Literal(dtype, found.constant)
                    if found.is_constant
                    else IndexValue(dtype, found)
                )
            case Compute(operands=operands):
                return self._compute(
                    replace(statement, operands=tuple(numbers[v] for v in operands))
                )
        return statement

    def _index(self, expr: Expr, at: Mapping[str, Expr]) -> Expr:
        return simplify(expr.substitute(at), self._bounds)

    def _load(
        self, load: Load, numbers: Mapping[int, int], at: Mapping[str, Expr]
    ) -> Statement | int:
        index = self._index(load.index, at)
        if load.mask is None:
            return replace(load, index=index)
        mask, other = numbers[load.mask], None if load.other is None else numbers[load.other]
        holds = self._number(mask)
        if holds is None:
            return replace(load, index=index, mask=mask, other=other)
        if holds:
            return Load(load.param, index)
        dtype = self._kernel.param(load.param).dtype
        if other is None:
            return Literal(dtype, 0.0 if dtype.is_float else 0)
        return Compute("convert", (other,), dtype) if self._dtype(other) is not dtype else other

    def _compute(self, compute: Compute) -> Statement | int:
        """An operation, or what it gives if the operands that decide are numbers."""
        numbers = [self._number(v) for v in compute.operands]
        if compute.op in _COMPARISONS:
            first, second = numbers
            if first is not None and second is not None:
                return Literal(DType.BOOL, int(_COMPARISONS[compute.op](first, second)))
        if compute.op == "where" and numbers[0] is not None:
            return compute.operands[1 if numbers[0] else 2]
        if compute.op in ("logical_and", "logical_or"):
            for known, other in zip(numbers, compute.operands[::-1], strict=True):
                if known is not None:
                    decides = bool(known) is (compute.op == "logical_or")
                    return Literal(DType.BOOL, int(known)) if decides else other
        return compute

    def _number(self, number: int) -> int | None:
        """The integer that a value is."""
        statement = self.statements[number]
        is_integer = isinstance(statement, Literal) and not statement.dtype.is_float
        return int(statement.value) if is_integer and isinstance(statement, Literal) else None

    def _dtype(self, number: int) -> DType:
        statement = self.statements[number]
        if isinstance(statement, Load):
            return self._kernel.param(statement.param).dtype
        assert isinstance(statement, Literal | Compute | IndexValue)  # others have no value
        return statement.dtype
