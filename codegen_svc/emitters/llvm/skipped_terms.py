"""Conditions without which a kernel needs no terms of its sums: of keys that a mask hides.

Attention of one query reads each key and each value once, so what is skipped is not read. Scores
of hidden keys are -inf, and their values have shares of 0.

    needed_if     every store has where(condition, what a sum gives, -inf)
    adding_if     every sum is of where(factor != 0, factor * ..., 0)

Other conditions may be true and false in turn, so that processors cannot foresee them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from codegen_svc.emitters.llvm.schedule import Phase
from kernelfarm.ir.loop_ir import (
    Axis,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Reduce,
    Statement,
    Store,
    operands_of,
)


def needed_if(kernel: Kernel) -> int | None:
    """The condition without which no store needs a reduction; None if there is no such one."""
    found = {_needing(kernel, s.value) for s in kernel.body if isinstance(s, Store)}
    return found.pop() if len(found) == 1 else None


def adding_if(kernel: Kernel, phase: Phase, lane: Axis) -> int | None:
    """The condition without which a point of a phase changes no sum of any lane.

    It is one for all lanes. None if there is no such condition.
    """
    are_sums = all(a.op == "sum" and a.dtype.is_float for a in phase.plain)
    if phase.guided or phase.stores or not are_sums:
        return None
    found = {_adding(kernel, a.operand) for a in phase.plain}
    condition = found.pop() if len(found) == 1 else None
    if condition is None or any(lane.name in _symbols(s) for s in _above(kernel, condition)):
        return None
    return condition


def _needing(kernel: Kernel, number: int) -> int | None:
    """The condition of a value that is -inf without it, and that alone decides about sums."""
    choice = _choice(kernel, number)
    if choice is None or _literal(kernel, choice[2]) != -math.inf:
        return None
    condition = choice[0]
    is_known = not any(isinstance(s, Reduce) for s in _above(kernel, condition))
    return condition if is_known else None


def _adding(kernel: Kernel, number: int) -> int | None:
    """The condition of a product that is 0 without it: that a factor is not 0."""
    choice = _choice(kernel, number)
    if choice is None or _literal(kernel, choice[2]) != 0:
        return None
    condition, product, _ = choice
    compared, factors = kernel.body[condition], kernel.body[product]
    if not isinstance(compared, Compute) or compared.op != "ne":
        return None
    if not isinstance(factors, Compute) or factors.op != "mul":
        return None
    factor, zero = compared.operands
    return condition if factor in factors.operands and _literal(kernel, zero) == 0 else None


def _choice(kernel: Kernel, number: int) -> tuple[int, int, int] | None:
    """The operands of a choice between two values; None if a value is no such choice."""
    statement = kernel.body[number]
    if not isinstance(statement, Compute) or statement.op != "where":
        return None
    condition, first, second = statement.operands
    return condition, first, second


def _literal(kernel: Kernel, number: int) -> object:
    statement = kernel.body[number]
    return statement.value if isinstance(statement, Literal) else None


def _above(kernel: Kernel, number: int) -> Iterator[Statement]:
    """The statements that a value depends on, with its own."""
    seen: set[int] = set()
    pending = [number]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending += operands_of(kernel.body[current])
            yield kernel.body[current]


def _symbols(statement: Statement) -> frozenset[str]:
    """The axes that a statement names."""
    if isinstance(statement, Load):
        return frozenset(statement.index.symbols)
    if isinstance(statement, IndexValue):
        return frozenset(statement.expr.symbols)
    return frozenset()
