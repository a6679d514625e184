"""Where a loop over a cat of many pieces is cut, so that each part of it reads one piece."""

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

MAX_PARTS_OF_PIECE = 2
"""Parts for each piece, on average, up to which pieces of other sizes are cut to equal parts."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """An axis of a value, and where it is cut: ascending, within its extent."""

    dim: int
    places: tuple[Expr, ...]


def cuts_for(nest: Nest, selection: Selection, bounds: Bounds) -> Cuts | Refused:
    """The cuts of a nest's own axis at which another piece of the cat begins."""
    dims = {part: dim for dim, part in enumerate(nest.index)}
    for axis in nest.axes:
        found = _places(selection, axis, bounds)
        if found is not None:
            return Cuts(dims[symbol(axis.name)], found)
    return Refused("no axis of the loops counts along its pieces")


def united(a: Cuts, b: Cuts) -> Cuts | Refused:
    """Cuts at which another piece of either cat begins."""
    if a.dim != b.dim:
        return Refused("other pieces are cut along another axis")
    if a.places == b.places:
        return a
    places = {*a.places, *b.places}
    if not all(place.is_constant for place in places):
        return Refused("the sizes of other pieces are not known to be equal")
    return Cuts(a.dim, tuple(sorted(places, key=lambda place: place.constant)))


def evened(cuts: Cuts, extent: Expr) -> Cuts:
    """More cuts, so that all parts are of one size, where that takes few: one kernel makes them."""
    ends = (*cuts.places, extent)
    if not all(end.is_constant for end in ends):
        return cuts
    lengths = [after.constant - before.constant for before, after in pairwise((ZERO, *ends))]
    step = gcd(*lengths)
    if not step or extent.constant > MAX_PARTS_OF_PIECE * step * len(lengths):
        return cuts
    return Cuts(cuts.dim, tuple(as_expr(k) for k in range(step, extent.constant, step)))


def _places(selection: Selection, axis: Axis, bounds: Bounds) -> tuple[Expr, ...] | None:
    """Values of an axis at which the next piece begins; None if pieces begin in between.

    The index along the cat is `step * axis + rest`, where the rest is fixed or less than a step.
    """
    line = selection.part.linear_in(axis.name)
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
    places = tuple(simplify(start // step, bounds) for start in starts)
    return places if _is_ascending((ZERO, *places, axis.extent), bounds) else None


def _is_moving(rest: Expr, bounds: Bounds) -> bool:
    """True if an expression varies while the loops run."""
    return any(name.startswith(("x", "r", "%")) for name in rest.symbols)


def _is_ascending(places: Sequence[Expr], bounds: Bounds) -> bool:
    return all(bounds.is_nonnegative(after - before) for before, after in pairwise(places))
