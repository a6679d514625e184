"""Split points of a loop over a cat of many pieces, so that each part reads one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.loop_ir import Axis
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.nest import Nest
from optimizer_svc.lowering.lower_value import Selection

MAX_SPLITS_PER_PIECE = 2
"""The most parts for each piece, on average, that equal parts may take."""


@dataclass(frozen=True, slots=True)
class SplitPoints:
    """An axis of a value, and its split points: ascending, within its extent."""

    dim: int
    offsets: tuple[Expr, ...]


def split_points_for(nest: Nest, selection: Selection, bounds: Bounds) -> SplitPoints | Refused:
    """The split points of one of the nest's axes at which the pieces of a cat begin."""
    dims = {part: dim for dim, part in enumerate(nest.index)}
    for axis in nest.axes:
        found = _split_offsets(selection, axis, bounds)
        if found is not None:
            return SplitPoints(dims[symbol(axis.name)], found)
    return Refused("no axis of the loops counts along its pieces")


def merged_split_points(a: SplitPoints, b: SplitPoints) -> SplitPoints | Refused:
    """The split points at which a piece of either cat begins."""
    if a.dim != b.dim:
        return Refused("other pieces are cut along another axis")
    if a.offsets == b.offsets:
        return a
    offsets = {*a.offsets, *b.offsets}
    if not all(offset.is_constant for offset in offsets):
        return Refused("the sizes of other pieces are not known to be equal")
    return SplitPoints(a.dim, tuple(sorted(offsets, key=lambda offset: offset.constant)))


def equal_split_points(cuts: SplitPoints, extent: Expr) -> SplitPoints:
    """Split points for parts of one size, which one kernel computes, if that takes few parts."""
    ends = (*cuts.offsets, extent)
    if not all(end.is_constant for end in ends):
        return cuts
    lengths = [after.constant - before.constant for before, after in pairwise((ZERO, *ends))]
    step = gcd(*lengths)
    if not step or extent.constant > MAX_SPLITS_PER_PIECE * step * len(lengths):
        return cuts
    return SplitPoints(cuts.dim, tuple(as_expr(k) for k in range(step, extent.constant, step)))


def _split_offsets(selection: Selection, axis: Axis, bounds: Bounds) -> tuple[Expr, ...] | None:
    """The values of an axis at which pieces begin; None if a piece begins between two values.

    The index along the cat is `step * axis + rest`; the rest is fixed or less than a step.
    """
    line = selection.axis_index.linear_in(axis.name)
    if line is None or line[0] is ZERO:
        return None
    step, rest = line
    if step is not ONE and not bounds.is_within(rest, step):
        return None
    if step is ONE and _is_moving(rest, bounds):
        return None
    shift = rest if step is ONE else ZERO
    starts = [simplify(piece.start - shift, bounds) for piece in selection.pieces[1:]]
    if any(simplify(start % step, bounds) is not ZERO for start in starts):
        return None
    offsets = tuple(simplify(start // step, bounds) for start in starts)
    return offsets if _is_ascending((ZERO, *offsets, axis.extent), bounds) else None


def _is_moving(rest: Expr, bounds: Bounds) -> bool:
    """True if an expression varies while the loops run."""
    return any(name.startswith(("x", "r", "%")) for name in rest.symbols)


def _is_ascending(offsets: Sequence[Expr], bounds: Bounds) -> bool:
    return all(bounds.is_nonnegative(after - before) for before, after in pairwise(offsets))
