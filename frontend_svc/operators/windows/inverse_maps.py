"""Scatters of known places as gathers: which results an element of an axis went into.

Pooling, unfolding and mirrored padding read an element for a few results, at places known without
data. Its gradient is the sum of theirs; their numbers are computed, so nothing is scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.windows.average_pooling import Window
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr


@dataclass(frozen=True, slots=True)
class InverseMap:
    """The results that may hold each element of an axis.

    `places` are the element's places in windows.

    Shapes: results, is_there, places: (extent, most results of an element); i64 (always inside
        the axis of results), bool, i64 (always inside a window).
    """

    extent: Expr
    results: Tensor
    is_there: Tensor
    positions: Tensor | None = None


def inverse_map(
    builder: PrimsBuilder, extent: Expr, count: Expr, found: Tensor, is_there: Tensor | None
) -> InverseMap:
    """The cover of results `found`, of which those outside of 0 to count - 1 do not exist."""
    last = number_of(count - 1)
    exists = builder.prim(
        "logical_and", builder.apply("ge", found, 0), builder.apply("le", found, last)
    )
    clamped = builder.apply("minimum", builder.apply("maximum", found, 0), last)
    if is_there is not None:
        exists = builder.apply("logical_and", exists, is_there)
    return InverseMap(extent, clamped, exists)


def inverse_window_map(builder: PrimsBuilder, window: Window) -> InverseMap:
    """The windows that cover each element of an axis, and its places in them."""
    reached = builder.apply("add", elements_of(builder, window.extent), window.padding)
    if window.dilation == 1:
        most = -(-window.taps // window.stride)
        last = builder.apply("floor_div", reached, window.stride)
        found = builder.apply("sub", last, builder.iota(as_expr(most)))
        position = builder.apply("sub", reached, builder.apply("mul", found, window.stride))
        reaches = builder.apply("lt", position, window.taps)
    else:
        position = builder.iota(as_expr(window.taps))
        begin = builder.apply("sub", reached, builder.apply("mul", position, window.dilation))
        found = builder.apply("floor_div", begin, window.stride)
        reaches = builder.apply("eq", builder.apply("mul", found, window.stride), begin)
        position = builder.expand(position, found.shape)
    cover = inverse_map(builder, window.extent, window.count, found, reaches)
    inside = builder.apply("minimum", builder.apply("maximum", position, 0), window.taps - 1)
    return InverseMap(cover.extent, cover.results, cover.is_there, inside)


def elements_of(builder: PrimsBuilder, extent: Expr) -> Tensor:
    """The numbers of an axis's elements, as a column."""
    return builder.reshape(builder.iota(extent), (extent, ONE))


def spread(builder: PrimsBuilder, x: Tensor, covers: Sequence[InverseMap]) -> Tensor:
    """Each of the last axes as two: the elements, and the results that may hold each."""
    lead = x.rank - len(covers)
    for number in reversed(range(len(covers))):
        x = builder.prim("take", x, covers[number].results, dim=lead + number)
    return x


def placed(
    builder: PrimsBuilder, table: Tensor, number: int, covers: Sequence[InverseMap]
) -> Tensor:
    """A table of an axis's elements and results, to broadcast over the axes behind it."""
    return builder.reshape(table, (*table.shape, *([ONE] * (2 * (len(covers) - 1 - number)))))


def gathered(
    builder: PrimsBuilder, picked: Tensor, condition: Tensor | None, covers: Sequence[InverseMap]
) -> Tensor:
    """The sum over what was picked from results that hold the element; of a computing type."""
    for number, cover in enumerate(covers):
        there = placed(builder, cover.is_there, number, covers)
        condition = there if condition is None else builder.apply("logical_and", condition, there)
    if condition is not None:
        picked = builder.where(condition, picked, 0.0)
    lead = picked.rank - 2 * len(covers)
    return builder.reduce("sum", picked, tuple(lead + 1 + 2 * k for k in range(len(covers))))
