"""Loop nests: one materialized value each, before they are fused into kernels.

Grammar:

    Nest      ::= value, dtype, axes: [Axis], index: [Expr], reduction: [Axis],
                  body: [Statement], result, scatter?
    Statement ::= Read(value, index, mask?, other?) | Literal | IndexValue | Compute | Reduce
                | Scan | Sort | Indirect

Statement number `result` is the element `index` of `value`; the index is in the value's own shape,
over the nest's axes. With `scatter`, the axes enumerate updates, `index` may use indirect symbols,
and the result is combined with the element in memory. Reads name graph values, not buffers: fusion
decides whether a read becomes a load or an SSA value. Literal, IndexValue, Compute, Reduce, Scan,
Sort and Indirect are those of `kernelfarm.ir.loop_ir`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.loop_ir import (
    Axis,
    Compute,
    IndexValue,
    Indirect,
    Literal,
    Reduce,
    Scan,
    Sort,
    StoreMode,
    is_ordered_reduction,
)


@dataclass(frozen=True, slots=True)
class Read:
    """The element of a materialized value; if `mask` is false, `other` without an access."""

    value: int
    index: tuple[Expr, ...]
    mask: int | None = None
    other: int | None = None


NestStatement = Union[Read, Literal, IndexValue, Compute, Reduce, Scan, Sort, Indirect]


@dataclass(frozen=True, slots=True)
class Nest:
    """One materialized value as loops; `origins` are (prim, captured node) pairs for comments."""

    value: int
    dtype: DType
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]
    reduction: tuple[Axis, ...]
    body: tuple[NestStatement, ...]
    result: int
    origins: tuple[tuple[str, int], ...] = ()
    scatter: StoreMode | None = None

    @property
    def is_ordered(self) -> bool:
        """True if the result depends on the order of the reduction axes."""
        return any(is_ordered_reduction(s) for s in self.body)

    @property
    def reads(self) -> tuple[Read, ...]:
        """Every read of the body."""
        return tuple(s for s in self.body if isinstance(s, Read))


def with_operands(
    statement: NestStatement, numbers: Mapping[int, int] | list[int]
) -> NestStatement:
    """The statement with its operands renumbered."""
    match statement:
        case Read(mask=int() as mask, other=int() as other):
            return replace(statement, mask=numbers[mask], other=numbers[other])
        case Compute(operands=operands):
            return replace(statement, operands=tuple(numbers[v] for v in operands))
        case Reduce(operand=operand) | Scan(operand=operand) | Sort(operand=operand):
            return replace(statement, operand=numbers[operand])
        case Indirect(value=value):
            return replace(statement, value=numbers[value])
        case _:
            return statement


def with_indices(
    statement: NestStatement, values: Mapping[str, Expr], bounds: Bounds
) -> NestStatement:
    """The statement with symbols replaced in its index expressions."""
    match statement:
        case Read(index=index):
            return replace(statement, index=substituted(index, values, bounds))
        case IndexValue(expr=expr):
            return replace(statement, expr=simplify(expr.substitute(values), bounds))
        case Indirect(symbol=symbol, extent=extent):
            name = next(iter(values[symbol].symbols)) if symbol in values else symbol
            return replace(statement, symbol=name, extent=extent.substitute(values))
        case _:
            return statement


def substituted(
    index: tuple[Expr, ...], values: Mapping[str, Expr], bounds: Bounds
) -> tuple[Expr, ...]:
    """An index tuple with symbols replaced, and simplified."""
    return tuple(simplify(part.substitute(values), bounds) for part in index)


def operands_of(statement: NestStatement) -> tuple[int, ...]:
    """The numbers of the statements that a statement uses."""
    match statement:
        case Read(mask=mask, other=other):
            return tuple(v for v in (mask, other) if v is not None)
        case Compute(operands=operands):
            return operands
        case Reduce(operand=operand) | Scan(operand=operand) | Sort(operand=operand):
            return (operand,)
        case Indirect(value=value):
            return (value,)
        case _:
            return ()


def varying_numbers(body: Sequence[NestStatement], axes: Iterable[str]) -> set[int]:
    """The numbers of the statements whose value varies over these axes."""
    names = set(axes)
    varying: set[int] = set()
    for number, statement in enumerate(body):
        if isinstance(statement, Reduce):
            continue
        indices = _indices_of(statement)
        by_index = any(not names.isdisjoint(index.symbols) for index in indices)
        is_varying = by_index or not varying.isdisjoint(operands_of(statement))
        if is_varying or isinstance(statement, Scan | Sort):
            varying.add(number)
            if isinstance(statement, Indirect):
                names.add(statement.symbol)
    return varying


def _indices_of(statement: NestStatement) -> tuple[Expr, ...]:
    match statement:
        case Read(index=index):
            return index
        case IndexValue(expr=expr):
            return (expr,)
        case _:
            return ()
