"""Finds sums that need the maximum or mean of their own row, and writes them in one pass.

    sum(exp(x - amax x))                  -> softmax_sum x
    sum(exp(x - (isinf(m) ? 0 : m)))      -> isinf(m) ? exp(m) : softmax_sum x    m = amax x
    sum((x - c) * (x - c))                -> welford_m2 x     c = (sum x) / count, or * 1 / count

The second form is that of a log-sum-exp. It is 0 for a row whose maximum is -inf, and inf for a row
with +inf, for which the first form is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import Expr, product_of
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    index_of,
    operands_of,
)
from optimizer_svc.ir.nest import Read, with_operands


@dataclass(frozen=True, slots=True)
class GuidedSum:
    """Sum number `statement` is the guided reduction `op` of value `operand`.

    In the second form, `top` is the maximum that may be infinite, else None.
    """

    statement: int
    op: str
    operand: int
    top: int | None = None


def find_guided_sums(kernel: Kernel) -> tuple[GuidedSum, ...]:
    """The sums of a kernel that can become guided reductions.

    There are none in a kernel that scans or sorts: two loops over a chunk may compute a value
    twice, but a scan must run once.
    """
    if any(isinstance(s, Scan | Sort) for s in kernel.body):
        return ()
    points = product_of([axis.extent for axis in kernel.reduction])
    found = []
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Reduce) and statement.op == "sum" and statement.dtype.is_float:
            guided = _exponents(kernel.body, number) or _squares(kernel.body, number, points)
            if guided is not None:
                found.append(guided)
    return tuple(found)


def in_one_pass(kernel: Kernel, sums: Sequence[GuidedSum]) -> Kernel:
    """The kernel with these sums replaced, without statements that are no longer needed."""
    by_number = {found.statement: found for found in sums}
    body: list[Statement] = []
    numbers: dict[int, int] = {}
    for number, statement in enumerate(kernel.body):
        found = by_number.get(number)
        if found is None:
            body.append(renumbered(statement, numbers))
        else:
            _append_guided(body, found, numbers, statement)
        numbers[number] = len(body) - 1
    return replace(kernel, body=_needed(body))


def _append_guided(
    body: list[Statement], found: GuidedSum, numbers: dict[int, int], old: Statement
) -> None:
    dtype = old.dtype if isinstance(old, Reduce) else DType.F32
    body.append(Reduce(found.op, numbers[found.operand], dtype))
    if found.top is None:
        return
    total, top = len(body) - 1, numbers[found.top]
    body.append(Compute("isinf", (top,), DType.BOOL))
    body.append(Compute("exp", (top,), dtype))
    body.append(Compute("where", (total + 1, total + 2, total), dtype))


def _exponents(body: Sequence[Statement], number: int) -> GuidedSum | None:
    x, shift = _difference(body, _operand(body, _operand(body, number, "sum"), "exp"))
    if x is None or shift is None:
        return None
    if _operand(body, shift, "amax") == x:
        return GuidedSum(number, "softmax_sum", x)
    statement = body[shift]
    if not isinstance(statement, Compute) or statement.op != "where":
        return None
    is_infinite, instead, top = statement.operands
    is_guarded = _operand(body, is_infinite, "isinf") == top and _number(body[instead]) == 0
    if is_guarded and _operand(body, top, "amax") == x:
        return GuidedSum(number, "softmax_sum", x, top)
    return None


def _squares(body: Sequence[Statement], number: int, points: Expr) -> GuidedSum | None:
    square = _operand(body, number, "sum")
    if square is None:
        return None
    statement = body[square]
    if not isinstance(statement, Compute) or statement.op != "mul":
        return None
    left, right = statement.operands
    x, mean = _difference(body, left if left == right else None)
    if x is None or mean is None or not _is_mean(body, mean, x, points):
        return None
    return GuidedSum(number, "welford_m2", x)


def _is_mean(body: Sequence[Statement], mean: int, x: int, points: Expr) -> bool:
    statement = body[mean]
    if not isinstance(statement, Compute) or statement.op not in ("div", "mul"):
        return False
    total, by = statement.operands
    if _operand(body, total, "sum") != x:
        return False
    if statement.op == "div":
        return _is_count(body, by, points)
    share = _number(body[by])  # the reciprocal of a power of two is exact
    return share is not None and points.is_constant and share * points.constant == 1


def _is_count(body: Sequence[Statement], number: int, points: Expr) -> bool:
    counted = _operand(body, number, "convert")
    statement = body[number if counted is None else counted]
    if isinstance(statement, IndexValue):
        return statement.expr == points
    return points.is_constant and _number(statement) == points.constant


def _difference(
    body: Sequence[Statement], number: int | None
) -> tuple[int, int] | tuple[None, None]:
    if number is None:
        return None, None
    statement = body[number]
    if not isinstance(statement, Compute) or statement.op != "sub":
        return None, None
    return statement.operands[0], statement.operands[1]


def _operand(body: Sequence[Statement], number: int | None, op: str) -> int | None:
    """The only operand of a statement if that is this operation or reduction, else None."""
    statement = None if number is None else body[number]
    if isinstance(statement, Reduce) and statement.op == op:
        return statement.operand
    if isinstance(statement, Compute) and statement.op == op and len(statement.operands) == 1:
        return statement.operands[0]
    return None


def _number(statement: Statement) -> float | int | None:
    return statement.value if isinstance(statement, Literal) else None


def renumbered(statement: Statement, numbers: dict[int, int]) -> Statement:
    """The statement with its operands renumbered."""
    match statement:
        case Load(mask=int() as mask, other=int() as other):
            return replace(statement, mask=numbers[mask], other=numbers[other])
        case Store(value=value):
            return replace(statement, value=numbers[value])
        case Load():
            return statement
        case _:
            placed = with_operands(statement, numbers)
            if isinstance(placed, Read):
                raise InternalError(f"a kernel that reads a graph value: {placed}")
            return placed


def _needed(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The stores and the statements that they need, renumbered."""
    indirect = {s.symbol: n for n, s in enumerate(body) if isinstance(s, Indirect)}
    pending = [n for n, s in enumerate(body) if isinstance(s, Store)]
    needed: set[int] = set()
    while pending:
        number = pending.pop()
        if number in needed:
            continue
        needed.add(number)
        statement = body[number]
        index = index_of(statement)
        symbols = frozenset() if index is None else index.symbols
        pending += operands_of(statement)
        pending += [indirect[name] for name in symbols if name in indirect]
    kept = sorted(needed)
    numbers = {old: new for new, old in enumerate(kept)}
    return tuple(renumbered(body[number], numbers) for number in kept)
