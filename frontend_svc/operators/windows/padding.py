"""Padding with elements of the tensor: mirrored at its ends, or its ends repeated."""

from __future__ import annotations

from collections.abc import Callable

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr

_Fold = Callable[[PrimsBuilder, Tensor, Expr], Tensor]
"""(builder, positions that may be outside of an axis, extent) -> positions inside."""


def _mirrored(builder: PrimsBuilder, position: Tensor, extent: Expr) -> Tensor:
    from_front = builder.prim("abs", position)
    last = extent - 1
    distance = builder.prim("abs", builder.apply("sub", from_front, last))
    return builder.apply("sub", last, distance)


def _clamped(builder: PrimsBuilder, position: Tensor, extent: Expr) -> Tensor:
    return builder.apply("minimum", builder.apply("maximum", position, 0), extent - 1)


def _padded_axis(
    builder: PrimsBuilder, x: Tensor, axis: int, amounts: tuple[Expr, ...], fold: _Fold
) -> Tensor:
    low, high = amounts
    if low == 0 and high == 0:
        return x
    extent = x.shape[axis]
    length = extent + low + high
    if builder.extents.is_negative(length) or not builder.extents.is_at_most(1, extent):
        raise InvalidGraphError(f"padding {low} and {high} of an axis of {extent} elements")
    positions = builder.apply("sub", builder.iota(length), number_of(low))
    return builder.prim("take", x, fold(builder, positions, extent), dim=axis)


def pad(
    builder: PrimsBuilder, self: Tensor, padding: tuple[Expr, ...], *, fold: _Fold, axes: int
) -> Tensor:
    """The last axes padded with elements of the tensor itself."""
    if len(padding) != 2 * axes or self.rank not in (axes + 1, axes + 2):
        raise InvalidGraphError(
            f"{len(padding)} paddings of shape {text_of(self.shape)};"
            f" expected {2 * axes} for {axes + 1} or {axes + 2} axes"
        )
    result = self
    for pair in range(axes):
        axis = self.rank - 1 - pair
        result = _padded_axis(builder, result, axis, padding[2 * pair : 2 * pair + 2], fold)
    return result


for _axes in (1, 2, 3):
    _reflection, _replication = f"aten.reflection_pad{_axes}d", f"aten.replication_pad{_axes}d"
    decomposes(f"{_reflection}.default", fixed={"fold": _mirrored, "axes": _axes})(pad)
    decomposes(f"{_replication}.default", fixed={"fold": _clamped, "axes": _axes})(pad)
