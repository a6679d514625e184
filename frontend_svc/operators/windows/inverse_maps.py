"""Inverse maps: for each element of an axis, the results that read it.

Pooling, unfolding and mirrored padding read an element for a few results, whose positions do not
depend on data. The gradient of the element is the sum of their gradients. The positions are
computed, so the gradient is a gather instead of a scatter.
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
    """The results that may read each element of an axis.

    `is_there` is false for results that do not exist; `positions` are those of the element within
    windows.

    Shapes: results, is_there, positions: (extent, largest number of results of an element); i64
        (inside the axis of results), bool, i64 (inside a window).
    """

    extent: Expr
    results: Tensor
    is_there: Tensor
    positions: Tensor | None = None


def inverse_map(
    builder: PrimsBuilder, extent: Expr, count: Expr, found: Tensor, is_there: Tensor | None
) -> InverseMap:
    """The map to the results `found`; those outside of 0 to count - 1 do not exist."""
    last = number_of(count - 1)
    exists = builder.prim(
        "logical_and", builder.apply("ge", found, 0), builder.apply("le", found, last)
    )
    clamped = builder.apply("minimum", builder.apply("maximum", found, 0), last)
    if is_there is not None:
        exists = builder.apply("logical_and", exists, is_there)
    return InverseMap(extent, clamped, exists)


def inverse_window_map(builder: PrimsBuilder, window: Window) -> InverseMap:
    """The windows that cover each element of an axis, and its positions in them."""
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
    """Each of the last axes as two axes: the elements, and the results that may read each."""
    lead = x.rank - len(covers)
    for number in reversed(range(len(covers))):
        x = builder.prim("take", x, covers[number].results, dim=lead + number)
    return x


def placed(
    builder: PrimsBuilder, table: Tensor, number: int, covers: Sequence[InverseMap]
) -> Tensor:
    """A table of an axis's elements and results, shaped to broadcast over the later axes."""
    return builder.reshape(table, (*table.shape, *([ONE] * (2 * (len(covers) - 1 - number)))))


def gathered(
    builder: PrimsBuilder, picked: Tensor, condition: Tensor | None, covers: Sequence[InverseMap]
) -> Tensor:
    """The sum of the picked elements over all results of each element; in a computing type."""
    for number, cover in enumerate(covers):
        there = placed(builder, cover.is_there, number, covers)
        condition = there if condition is None else builder.apply("logical_and", condition, there)
    if condition is not None:
        picked = builder.where(condition, picked, 0.0)
    lead = picked.rank - 2 * len(covers)
    return builder.reduce("sum", picked, tuple(lead + 1 + 2 * k for k in range(len(covers))))
