"""Loads of a product's factors that are one for all points of a step: scales of groups of terms.

A weight with scales of 128 terms has a scale at each point. If a step of the loop is within a
group, it loads the scale once for each column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.index import kernel_bounds
from kernelfarm.ir.algebra.expr import ZERO, as_expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.loop_ir import Axis, Indirect, Kernel, Load, needed_statements

STEP_START = "koffset"
"""The name of the first point of a step in the text."""
_NUMBER, _POINT = "step", "point"
_LEAST_POINTS = 64
"""Judgement: shorter steps have too few bytes on their way."""


def grouped_loads(kernel: Kernel, points: int, factors: Iterable[int]) -> frozenset[int]:
    """The loads that are one for each step of so many points, and differ between steps.

    A factor has another load, which gives its block the points of a step.
    """
    if len(kernel.reduction) != 1:
        return frozenset()
    (axis,) = kernel.reduction
    if not axis.extent.is_constant or axis.extent.constant % points:
        return frozenset()
    bounds = kernel_bounds(kernel)
    steps = as_expr(axis.extent.constant // points - 1)
    bounds.add_range(_NUMBER, Range(ZERO, steps))
    bounds.add_range(_POINT, Range(ZERO, as_expr(points - 1)))
    at = symbol(_NUMBER) * points + symbol(_POINT)
    indirect = {s.symbol for s in kernel.body if isinstance(s, Indirect)}
    loads = {
        n: s.index
        for n, s in enumerate(kernel.body)
        if isinstance(s, Load) and s.mask is None and axis.name in s.index.symbols
    }
    found = {
        n
        for n, index in loads.items()
        if index.symbols.isdisjoint(indirect)
        and _POINT not in simplify(index.substitute({axis.name: at}), bounds).symbols
    }
    for factor in factors:
        read = loads.keys() & set(needed_statements(kernel, [factor]))
        if found.issuperset(read):
            found -= read
    return frozenset(found)


def points_of_groups(kernel: Kernel, most: int, factors: Iterable[int]) -> int:
    """The most points of a step that has such loads, up to `most`; `most` if there are none."""
    stated, points = tuple(factors), most
    while points >= _LEAST_POINTS:
        if grouped_loads(kernel, points, stated):
            return points
        points //= 2
    return most


def at_step_start(block: Block, loads: frozenset[int], axis: Axis) -> Block:
    """The block of a side in which loads read what they need at the first point of a step.

    `axis` is that of the points of the sums, which are rows or columns of the block.
    """
    start = {axis.name: symbol(STEP_START)}
    body = tuple(
        replace(s, index=s.index.substitute(start)) if n in loads and isinstance(s, Load) else s
        for n, s in enumerate(block.kernel.body)
    )
    bounds = Bounds(block.writer.bounds.ranges)
    bounds.add_range(STEP_START, Range(ZERO, axis.extent - 1))
    is_row = axis in block.kernel.outer
    return replace(
        block,
        kernel=replace(block.kernel, body=body),
        writer=replace(block.writer, bounds=bounds, _cache={}),
        across_x=block.across_x - loads if is_row else block.across_x,
        varying=block.varying if is_row else block.varying - loads,
    )
