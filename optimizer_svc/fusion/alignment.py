"""A common domain for two groups, with each group's axes as expressions of it.

Two domains are compared through a tensor that both address, or axis by axis in order. Axes that
differ only by a reshape are split into common factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.ir.algebra.atoms import Symbol
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of, symbol
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.group import DomainAxis

Axes = list[DomainAxis]
"""Axes from the innermost to the outermost."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The common domain, and the axes of each side that are expressions of it."""

    axes: tuple[DomainAxis, ...]
    left: Mapping[str, Expr]
    right: Mapping[str, Expr]


def chain_of(position: Expr, axes: Sequence[DomainAxis]) -> Axes | None:
    """The axes whose row-major position an expression is; None if it is no such position."""
    by_name = {axis.name: axis for axis in axes}
    steps = _steps(position, by_name)
    if steps is None:
        return None
    found: Axes = []
    expected = ONE
    while steps:
        axis = steps.pop(expected, None)
        if axis is None:
            return None
        found.append(axis)
        expected = expected * axis.extent
    return found


def _steps(position: Expr, axes: Mapping[str, DomainAxis]) -> dict[Expr, DomainAxis] | None:
    """Each axis by its coefficient; None if the position is no sum of axes times sizes."""
    if position.constant:
        return None
    coefficients: dict[str, Expr] = {}
    for monomial, coefficient in position.terms:
        step, name = as_expr(coefficient), None
        for atom in monomial:
            if not isinstance(atom, Symbol):
                return None
            if name is None and atom.name in axes:
                name = atom.name
            else:
                step = step * symbol(atom.name)
        if name is None:
            return None
        coefficients[name] = coefficients.get(name, ZERO) + step
    steps = {step: axes[name] for name, step in coefficients.items()}
    return steps if len(steps) == len(coefficients) else None


def aligned(
    left: Sequence[DomainAxis],
    right: Sequence[DomainAxis],
    matches: Sequence[tuple[Axes, Axes]],
) -> Alignment | Refused:
    """The common domain in which matched axes are the same.

    Axes without a match stay as they are; the caller has checked that they may.
    """
    has_reduction = any(a.is_reduction for a in left), any(a.is_reduction for a in right)
    parts: dict[str, list[DomainAxis]] = {}
    values: tuple[dict[str, Expr], dict[str, Expr]] = ({}, {})
    matched_right: set[str] = set()
    for mine, theirs in matches:
        refusal = _refine(mine, theirs, has_reduction, parts, values)
        if refusal is not None:
            return refusal
        matched_right |= {axis.name for axis in theirs}
    axes = [part for axis in left for part in parts.get(axis.name, [axis])]
    axes += [axis for axis in right if axis.name not in matched_right]
    return Alignment(tuple(axes), *values)


def _refine(
    mine: Axes,
    theirs: Axes,
    has_reduction: tuple[bool, bool],
    parts: dict[str, list[DomainAxis]],
    values: tuple[dict[str, Expr], dict[str, Expr]],
) -> Refused | None:
    """Splits two sequences of axes into common factors; fills in `parts` and `values`."""
    a, b = _Cursor(mine), _Cursor(theirs)
    while not (a.is_done or b.is_done):
        step = _common_factor(a.rest, b.rest)
        if step is None:
            return Refused(f"extents {a.rest} and {b.rest} have no common factor")
        label = _label(a.axis, b.axis, has_reduction)
        if label is None:
            return Refused("an axis is reduced in one and kept in the other")
        is_whole = a.passed is ONE and step is a.axis.extent
        name = a.axis.name if is_whole else f"{a.axis.name}.{len(parts.get(a.axis.name, ()))}"
        part = DomainAxis(name, step, label)
        parts.setdefault(a.axis.name, []).insert(0, part)
        if not is_whole:
            _grow(values[0], a, name)
        _grow(values[1], b, name)
        a.advance(step)
        b.advance(step)
    if not (a.is_done and b.is_done):
        return Refused("the domains differ in size")
    return None


class _Cursor:
    """A position within a sequence of axes, from the innermost outwards."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._number = 0
        self.passed = ONE
        self.rest = axes[0].extent if axes else ONE

    @property
    def is_done(self) -> bool:
        return self._number == len(self._axes)

    @property
    def axis(self) -> DomainAxis:
        return self._axes[self._number]

    def advance(self, step: Expr) -> None:
        self.passed = self.passed * step
        self.rest = ONE if step is self.rest else self.rest // step
        if self.rest is ONE:
            self._number += 1
            self.passed = ONE
            self.rest = ONE if self.is_done else self.axis.extent


def _grow(values: dict[str, Expr], cursor: _Cursor, part: str) -> None:
    name = cursor.axis.name
    values[name] = values.get(name, ZERO) + symbol(part) * cursor.passed


def _common_factor(a: Expr, b: Expr) -> Expr | None:
    if a is b:
        return a
    if (a % b) is ZERO:
        return b
    return a if (b % a) is ZERO else None


def _label(a: DomainAxis, b: DomainAxis, has_reduction: tuple[bool, bool]) -> bool | None:
    """Whether the common axis is reduced; None if the sides disagree."""
    match has_reduction:
        case (True, True):
            return a.is_reduction if a.is_reduction == b.is_reduction else None
        case (True, False):
            return a.is_reduction
        case _:
            return b.is_reduction


def matched_by_order(
    left: Sequence[DomainAxis], right: Sequence[DomainAxis]
) -> list[tuple[Axes, Axes]] | Refused:
    """Axes matched in their order: outer with outer, reduced with reduced.

    A group without a reduction may match only the rows of the other group.
    """
    if _size(left) is not _size(right):
        if _has_reduction(left) is not _has_reduction(right):
            rows = _outer(left), _outer(right)
            if _size(rows[0]) is _size(rows[1]):
                return [(_inner_first(rows[0]), _inner_first(rows[1]))]
        return Refused(f"domains of {_size(left)} and {_size(right)} points")
    if not (_has_reduction(left) and _has_reduction(right)):
        return [(_inner_first(left), _inner_first(right))]
    return [
        (
            _inner_first([a for a in left if a.is_reduction is label]),
            _inner_first([a for a in right if a.is_reduction is label]),
        )
        for label in (False, True)
    ]


def _has_reduction(axes: Sequence[DomainAxis]) -> bool:
    return any(axis.is_reduction for axis in axes)


def _outer(axes: Sequence[DomainAxis]) -> list[DomainAxis]:
    return [axis for axis in axes if not axis.is_reduction]


def _inner_first(axes: Sequence[DomainAxis]) -> Axes:
    """The axes from the innermost to the outermost; reduced axes are innermost."""
    return [a for a in reversed(axes) if a.is_reduction] + [
        a for a in reversed(axes) if not a.is_reduction
    ]


def _size(axes: Sequence[DomainAxis]) -> Expr:
    return product_of([axis.extent for axis in axes])
