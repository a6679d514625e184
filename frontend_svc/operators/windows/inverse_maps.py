"""Scatters of known places as gathers: which results an element of an axis went into.

Pooling, unfolding and mirrored padding read an element for a few results, at places known without
data. Its gradient is the sum of theirs; their numbers are computed, so nothing is scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.windows.average_pooling import Window
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr


@dataclass(frozen=True, slots=True)
class Cover:
    """The results that may hold each element of an axis.

    `places` are the element's places in windows.

    Shapes: results, is_there, places: (extent, most results of an element); i64 (always inside
        the axis of results), bool, i64 (always inside a window).
    """

    extent: Expr
    results: Tensor
    is_there: Tensor
    places: Tensor | None = None


def cover_of(
    op: Lowering, extent: Expr, count: Expr, found: Tensor, is_there: Tensor | None
) -> Cover:
    """The cover of results `found`, of which those outside of 0 to count - 1 do not exist."""
    last = number_of(count - 1)
    exists = op.prim("logical_and", op.apply("ge", found, 0), op.apply("le", found, last))
    clamped = op.apply("minimum", op.apply("maximum", found, 0), last)
    if is_there is not None:
        exists = op.apply("logical_and", exists, is_there)
    return Cover(extent, clamped, exists)


def window_cover(op: Lowering, window: Window) -> Cover:
    """The windows that cover each element of an axis, and its places in them."""
    reached = op.apply("add", elements_of(op, window.extent), window.padding)
    if window.dilation == 1:
        most = -(-window.taps // window.stride)
        last = op.apply("floor_div", reached, window.stride)
        found = op.apply("sub", last, op.iota(as_expr(most)))
        place = op.apply("sub", reached, op.apply("mul", found, window.stride))
        reaches = op.apply("lt", place, window.taps)
    else:
        place = op.iota(as_expr(window.taps))
        begin = op.apply("sub", reached, op.apply("mul", place, window.dilation))
        found = op.apply("floor_div", begin, window.stride)
        reaches = op.apply("eq", op.apply("mul", found, window.stride), begin)
        place = op.expand(place, found.shape)
    cover = cover_of(op, window.extent, window.count, found, reaches)
    inside = op.apply("minimum", op.apply("maximum", place, 0), window.taps - 1)
    return Cover(cover.extent, cover.results, cover.is_there, inside)


def elements_of(op: Lowering, extent: Expr) -> Tensor:
    """The numbers of an axis's elements, as a column."""
    return op.reshape(op.iota(extent), (extent, ONE))


def spread(op: Lowering, x: Tensor, covers: Sequence[Cover]) -> Tensor:
    """Each of the last axes as two: the elements, and the results that may hold each."""
    lead = x.rank - len(covers)
    for number in reversed(range(len(covers))):
        x = op.prim("take", x, covers[number].results, dim=lead + number)
    return x


def placed(op: Lowering, table: Tensor, number: int, covers: Sequence[Cover]) -> Tensor:
    """A table of an axis's elements and results, to broadcast over the axes behind it."""
    return op.reshape(table, (*table.shape, *([ONE] * (2 * (len(covers) - 1 - number)))))


def gathered(
    op: Lowering, picked: Tensor, condition: Tensor | None, covers: Sequence[Cover]
) -> Tensor:
    """The sum over what was picked from results that hold the element; of a computing type."""
    for number, cover in enumerate(covers):
        there = placed(op, cover.is_there, number, covers)
        condition = there if condition is None else op.apply("logical_and", condition, there)
    if condition is not None:
        picked = op.where(condition, picked, 0.0)
    lead = picked.rank - 2 * len(covers)
    return op.reduce("sum", picked, tuple(lead + 1 + 2 * k for k in range(len(covers))))
