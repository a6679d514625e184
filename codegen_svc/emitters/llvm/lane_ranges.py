"""Ranges of lanes or rows in which comparisons of an index have one value, and usual conditions.

Windows with padding and concatenations compare their axes with constants. Within a range of lanes
the result of such a comparison is known, so the loop over the range has no masks for it. Conditions
on the other axes that hold in the middle of an image select a version of the loops without them;
else the ranges of one other axis, as of the channels of a concatenation, have a version each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from codegen_svc.emitters.llvm.index import bounds_of
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.loop_ir import Axis, Compute, IndexValue, Kernel, Literal

MAX_RANGES: Final = 8
MIN_ROWS: Final = 4
# Statements that all ranges and versions may have together: each takes LLVM about 0.1 ms.
MAX_COPIED_STATEMENTS: Final = 2500
# By operation: whether it holds below its limit, and how far the limit lies above the operand.
_COMPARISONS: Final = {"lt": (True, 0), "le": (True, 1), "ge": (False, 0), "gt": (False, 1)}


@dataclass(frozen=True, slots=True)
class LaneRange:
    """The points of an axis from `first` to `last` (excluded), and the comparisons known there."""

    first: int
    last: int
    known: tuple[tuple[int, bool], ...]


def lane_ranges(kernel: Kernel, lane: Axis) -> tuple[LaneRange, ...]:
    """The ranges in order; none if no comparison divides the lanes, or there were too many."""
    return _ranges(kernel, lane)


def row_ranges(
    kernel: Kernel, lane: Axis, copies: int
) -> tuple[Axis, tuple[LaneRange, ...]] | None:
    """The other axis that the most comparisons divide, and its ranges; None if there is none.

    Each range has a version of the loops over lanes, which are divided into `copies` ranges. A
    range of few rows is the border of a window, which is not worth one.
    """
    rows = [axis for axis in kernel.outer if axis.name != lane.name and axis.extent.is_constant]
    found = max(rows, key=lambda axis: len(_limits(kernel, axis.name)), default=None)
    if found is None:
        return None
    ranges = _ranges(kernel, found, max(copies, 1))
    are_wide = all(each.last - each.first >= MIN_ROWS for each in ranges)
    return (found, ranges) if len(ranges) > 1 and are_wide else None


def _ranges(kernel: Kernel, lane: Axis, copies: int = 1) -> tuple[LaneRange, ...]:
    if not lane.extent.is_constant:
        return ()
    extent = lane.extent.constant
    limits = _limits(kernel, lane.name)
    borders = sorted({0, extent, *(limit for limit, _ in limits.values() if 0 < limit < extent)})
    count = len(borders) - 1
    if (
        not limits
        or count > MAX_RANGES
        or count * copies * len(kernel.body) > MAX_COPIED_STATEMENTS
    ):
        return ()
    return tuple(
        LaneRange(
            first,
            last,
            tuple((n, (first < limit) == is_below) for n, (limit, is_below) in limits.items()),
        )
        for first, last in pairwise(borders)
    )


def usual_conditions(kernel: Kernel, lane: Axis, copies: int) -> tuple[int, ...]:
    """The comparisons of other axes, if all hold in the middle; `copies` has the lanes' ranges."""
    rows = [axis for axis in kernel.outer if axis.name != lane.name and axis.extent.is_constant]
    found: list[int] = []
    for axis in rows:
        middle = axis.extent.constant // 2
        for number, (limit, is_below) in _limits(kernel, axis.name).items():
            if (middle < limit) != is_below:
                return ()
            if not _always(axis.extent.constant, limit, is_below=is_below):
                found.append(number)
    is_small = 2 * max(copies, 1) * len(kernel.body) <= MAX_COPIED_STATEMENTS
    return tuple(sorted(found)) if is_small and len(found) > 1 else ()


def _always(extent: int, limit: int, *, is_below: bool) -> bool:
    return limit >= extent if is_below else limit <= 0


def _limits(kernel: Kernel, axis: str) -> dict[int, tuple[int, bool]]:
    """By comparison of the axis with a constant: the limit, and whether it holds below it.

    What is added to a multiple of the axis may vary, if the multiple decides: of 16 * d1 + d0 < 32,
    with d0 from 0 to 15, the limit of d1 is 2.
    """
    found = {}
    bounds = bounds_of(kernel)
    for number, statement in enumerate(kernel.body):
        if not isinstance(statement, Compute) or statement.op not in _COMPARISONS:
            continue
        index, bound = (_integer(kernel, operand) for operand in statement.operands)
        if index is None or bound is None or not bound.is_constant:
            continue
        is_below, above = _COMPARISONS[statement.op]
        limit = _limit(index, bound.constant + above, axis, bounds)
        if limit is not None:
            found[number] = limit, is_below
    return found


def _limit(index: Expr, limit: int, axis: str, bounds: Bounds) -> int | None:
    """The first point of an axis where an index reaches a limit; None if others decide, too."""
    step = index.coefficient_of(axis)
    if step is None or not step.is_constant or step.constant < 1:
        return None
    rest = index - symbol(axis) * step
    if rest.is_constant:
        return -((rest.constant - limit) // step.constant)
    is_within = bounds.is_within(rest, step)
    return limit // step.constant if is_within and limit % step.constant == 0 else None


def _integer(kernel: Kernel, number: int) -> Expr | None:
    """An index or a constant as an expression."""
    match kernel.body[number]:
        case IndexValue(expr=expr):
            return expr
        case Literal(value=int() as value):
            return as_expr(value)
    return None
