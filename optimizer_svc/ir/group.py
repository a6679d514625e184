"""Groups of nests that share one iteration domain; each group becomes a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, product_of, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.ir.nest import Nest, substituted


@dataclass(frozen=True, slots=True)
class DomainAxis:
    """An axis of a group's domain; its name is unique among all groups."""

    name: str
    extent: Expr
    is_reduction: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A nest, its loop variables as expressions of the group's domain, and its graph position."""

    nest: Nest
    axis_map: Mapping[str, Expr]
    position: int


@dataclass(frozen=True, slots=True)
class Group:
    """Nests over one domain.

    `reads` lists (value, index) of every read, `positions` has the index at which each member's
    value is computed, both over the domain's axes. `position` is the graph position of the last
    member.
    """

    axes: tuple[DomainAxis, ...]
    members: tuple[Member, ...]
    reads: tuple[tuple[int, Index], ...]
    positions: Mapping[int, Index]
    statements: int
    position: int

    @property
    def outer(self) -> tuple[DomainAxis, ...]:
        """The axes that are not reduced."""
        return tuple(axis for axis in self.axes if not axis.is_reduction)

    @property
    def reduction(self) -> tuple[DomainAxis, ...]:
        """The axes that are reduced."""
        return tuple(axis for axis in self.axes if axis.is_reduction)

    @property
    def is_scatter(self) -> bool:
        """True if a member updates memory at indices that are read."""
        return any(member.nest.scatter is not None for member in self.members)

    def size(self) -> Expr:
        """The number of points of the domain."""
        return product_of([axis.extent for axis in self.axes])


def seed_group(nest: Nest, position: int) -> Group:
    """The group of one nest; its axes get names that no other group has."""
    axis_map: dict[str, Expr] = {}
    axes: list[DomainAxis] = []
    for axis in (*nest.axes, *nest.reduction):
        name = f"v{nest.value}.{axis.name}"
        axis_map[axis.name] = symbol(name)
        axes.append(DomainAxis(name, axis.extent, axis in nest.reduction))
    return Group(
        axes=tuple(axes),
        members=(Member(nest, axis_map, position),),
        reads=tuple(
            (read.value, tuple(part.substitute(axis_map) for part in read.index))
            for read in nest.reads
        ),
        positions={nest.value: tuple(part.substitute(axis_map) for part in nest.index)},
        statements=len(nest.body),
        position=position,
    )


def domain_bounds(sizes: Bounds, axes: tuple[DomainAxis, ...]) -> Bounds:
    """Ranges of the sizes and of a domain's axes."""
    ranges = dict(sizes.ranges)
    for axis in axes:
        ranges[axis.name] = Range(ZERO, axis.extent - ONE)
    return Bounds(ranges)


def moved(group: Group, values: Mapping[str, Expr], bounds: Bounds) -> Group:
    """The group with its axes replaced by expressions of another domain; `axes` stays unchanged."""
    if not values:
        return group
    return Group(
        axes=group.axes,
        members=tuple(
            Member(m.nest, {k: p.substitute(values) for k, p in m.axis_map.items()}, m.position)
            for m in group.members
        ),
        reads=tuple((v, substituted(index, values, bounds)) for v, index in group.reads),
        positions={v: substituted(index, values, bounds) for v, index in group.positions.items()},
        statements=group.statements,
        position=group.position,
    )


def joined(a: Group, b: Group, axes: tuple[DomainAxis, ...]) -> Group:
    """Both groups as one, over a domain in which their indices are expressed already."""
    # By graph position, not by value id, because passes give new nodes new ids.
    members = sorted((*a.members, *b.members), key=lambda m: m.position)
    return Group(
        axes=axes,
        members=tuple(members),
        reads=(*a.reads, *b.reads),
        positions={**a.positions, **b.positions},
        statements=a.statements + b.statements,
        position=max(a.position, b.position),
    )
