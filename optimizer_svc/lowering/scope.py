"""Evaluation scopes: the condition under which a value is needed, and the ranges of indices."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """The condition under which a value is computed, and the ranges of symbols there.

    `mask` is the statement of the condition, None if it always holds. At other points the value is
    unspecified, so `bounds` may assume the condition.
    """

    mask: int | None
    bounds: Bounds


def narrowed(bounds: Bounds, part: Expr, low: Expr, limit: Expr) -> Bounds:
    """The bounds if `low <= part < limit` holds, for a part that is a symbol plus a number."""
    if len(part.symbols) != 1 or not (low.is_constant and limit.is_constant):
        return bounds
    name = next(iter(part.symbols))
    shift = part - symbol(name)
    known = bounds.ranges.get(name)
    if not shift.is_constant or known is None:
        return bounds
    least, most = bounds.interval(symbol(name))
    lower = low.constant - shift.constant
    upper = limit.constant - 1 - shift.constant
    return bounds.merged(
        Bounds(
            {
                name: Range(
                    as_expr(lower if least is None else max(lower, least)),
                    as_expr(upper if most is None else min(upper, most)),
                )
            }
        )
    )
