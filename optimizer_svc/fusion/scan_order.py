"""The order of a domain's reduction axes, on which scans, sorts and arg-reductions depend."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.ir.algebra.simplify import Bounds, simplify
from optimizer_svc.analysis.index_maps import ravel
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.fusion.alignment import chain_of
from optimizer_svc.ir.group import DomainAxis, Member


def in_scan_order(
    members: Sequence[Member], axes: tuple[DomainAxis, ...], bounds: Bounds
) -> tuple[DomainAxis, ...] | Refused:
    """The axes with the reduced ones last, in the order that all ordered members need."""
    reduced = [axis for axis in axes if axis.is_reduction]
    ordered = [member for member in members if member.nest.is_ordered]
    if len(reduced) < 2 or not ordered:
        return axes
    found: list[DomainAxis] | None = None
    for member in ordered:
        own = member.nest.reduction
        position = ravel(
            tuple(member.axis_map[axis.name] for axis in own), tuple(axis.extent for axis in own)
        )
        chain = chain_of(simplify(position, bounds), reduced)
        if chain is None or len(chain) != len(reduced) or found not in (None, chain):
            return Refused("a scan, sort or arg-reduction counts the reduced axes in another order")
        found = chain
    outer = [axis for axis in axes if not axis.is_reduction]
    return (*outer, *reversed(found or reduced))
