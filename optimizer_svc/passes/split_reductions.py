"""Splits reductions by few programs into slices, and reduces the partial results.

    sum(x[n, c]; 0)  ->  sum(p[S, c]; 0)        p = sum(x[S, n / S, c]; 1)

Pointwise prims before the reduction are fused with the first kernel, those after it with the
second. The slices are ranges of consecutive elements, so the order of the sum is fixed. If their
number does not divide the extent, the operand is padded with elements that change no result. The
first of equal extrema is in the first slice that has one.

A sum of squared deviations from the mean takes each slice's deviations from the slice's own mean,
so that one pass over the slice gives both:

    sum((x - mean x)^2)  ->  sum(q + c * (m - mean x)^2)    m, q, c of each slice: its mean, its
                                                            squared deviations, its elements
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of
from kernelfarm.ir.graph_ir import Arg, Graph, Node
from kernelfarm.ir.scalar_types import INTEGER_RANGES
from optimizer_svc.analysis.deviations import sum_of_deviations
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, ints_attr, operands
from optimizer_svc.analysis.slices import Split, reordered, slice_length
from optimizer_svc.ir.prims_writer import PrimsWriter
from optimizer_svc.ir.splits import Splits

_EXTREMA = {"argmax": "amax", "argmin": "amin"}


def split_reductions(graph: Graph, splits: Splits) -> Graph:
    """The graph with the chosen reductions in slices."""
    if not splits.by_value:
        return graph
    facts = graph_facts(graph)
    writer = _Writer(facts)
    for node in graph.nodes:
        found = splits.by_value.get(node.results[0]) if node.results else None
        if found is None:
            writer.nodes.append(node)
            continue
        moments = sum_of_deviations(facts, node)
        if moments is None or not writer.split_moments(node, found, moments[1]):
            writer.split(node, found)
    return replace(graph, nodes=tuple(writer.nodes))


@dataclass(frozen=True, slots=True)
class _SlicedSum:
    """A sum that was split: its operand in slices, their sums, and the axes that each step sums."""

    split: Split
    sliced: int
    partial: int
    inner: tuple[int, ...]
    axis: int


class _Writer(PrimsWriter):
    """A split reduction ends in a node with the old result."""

    def __init__(self, facts: GraphFacts) -> None:
        super().__init__(facts)
        self._sums: dict[int, _SlicedSum] = {}

    def split(self, node: Node, found: Split) -> None:
        """Appends the prims of a reduction in slices."""
        (value,) = operands(node)
        run = found.run
        if found.order:
            value = self.add(node, "permute", value, dims=found.order)
        sliced = self._sliced(node, value, found)
        dims = reordered(ints_attr(node, "dims"), found.order)
        inner = [dim for dim in dims if dim < run.start] + [run.start + 1]
        inner += [dim + 2 - (run.stop - run.start) for dim in dims if dim >= run.stop]
        # The axis of the slices stands behind those axes before it that are kept.
        axis = run.start - sum(dim < run.start for dim in dims)
        if node.op in _EXTREMA:
            self._extremum(node, sliced, (run.start + 1, axis), found)
            return
        partial = self.add(node, node.op, sliced, dims=tuple(inner))
        self._order(partial, found, inner)
        self._sums[node.results[0]] = _SlicedSum(found, sliced, partial, tuple(inner), axis)
        self.finish(node, node.op, partial, dims=(axis,))

    def _order(self, partial: int, found: Split, reduced: Sequence[int]) -> None:
        """Gives partial results the order of the axes of the memory that they are computed from.

        So the loop over neighbouring elements is the innermost one for loads and stores.
        """
        run, shape = found.run, self.types[partial].shape
        outer = found.strides[run.start]  # that of the slices is larger
        steps = [*found.strides[: run.start], outer, ZERO, *found.strides[run.stop :]]
        kept = [step for axis, step in enumerate(steps) if axis not in reduced]
        if not all(step.is_constant for step in kept):
            return
        axes = sorted(range(len(kept)), key=lambda axis: -kept[axis].constant)
        strides, step = [ONE] * len(kept), ONE
        for axis in reversed(axes):
            strides[axis] = step
            step = step * shape[axis]
        if axes != list(range(len(kept))):
            node = self.nodes[-1]
            self.types[partial] = replace(self.types[partial], strides=tuple(strides))
            self.nodes[-1] = replace(node, types=(self.types[partial],))

    def split_moments(self, node: Node, found: Split, total: int) -> bool:
        """Appends the sum of squared deviations from the mean of elements with this sum.

        False, and nothing is appended, if the elements are in no equal slices of known size.
        """
        whole = self._sums.get(total)
        if whole is None or whole.split != found or not slice_length(found.run, found.slices)[1]:
            return False
        shape, kept = self.types[whole.sliced].shape, self.types[whole.partial].shape
        count = product_of([shape[dim] for dim in whole.inner]).as_int()
        mean = self._divided(node, whole.partial, count)
        axes = tuple(dim for dim in range(len(shape)) if dim not in whole.inner)
        spread = self.add(node, "broadcast_in_dim", mean, shape=shape, dims=axes)
        off = self.add(node, "sub", whole.sliced, spread)
        squares = self.add(node, "mul", off, off)
        inside = self.add(node, "sum", squares, dims=whole.inner)
        self._order(inside, found, whole.inner)
        overall = self._divided(node, total, count * found.slices.as_int())
        others = tuple(dim for dim in range(len(kept)) if dim != whole.axis)
        overall = self.add(node, "broadcast_in_dim", overall, shape=kept, dims=others)
        shift = self.add(node, "sub", mean, overall)
        shift = self.add(node, "mul", shift, shift)
        between = self.add(node, "mul", shift, self._full(node, shift, count))
        partial = self.add(node, "add", inside, between)
        self.finish(node, "sum", partial, dims=(whole.axis,))
        return True

    def _divided(self, node: Node, value: int, count: int) -> int:
        return self.add(node, "div", value, self._full(node, value, count))

    def _full(self, node: Node, like: int, number: int) -> int:
        kind = self.types[like]
        return self.add(node, "full", dtype=kind.dtype, shape=kind.shape, value=float(number))

    def _sliced(self, node: Node, value: int, found: Split) -> int:
        """The operand with its run of axes as an axis of slices and an axis within each."""
        run, slices = found.run, found.slices
        shape = self.types[value].shape
        before, after = shape[: run.start], shape[run.stop :]
        length, is_exact = slice_length(run, slices)
        if not is_exact:
            flat = (*before, run.extent, *after)
            value = self.add(node, "reshape", value, shape=flat) if flat != shape else value
            high = [ZERO] * len(flat)
            high[run.start] = length * slices - run.extent
            fill = neutral(node.op, self.types[value].dtype)
            value = self.add(
                node, "pad", value, low=_exprs([0] * len(flat)), high=tuple(high), value=fill
            )
        return self.add(node, "reshape", value, shape=(*before, slices, length, *after))

    def _extremum(self, node: Node, sliced: int, axes: tuple[int, int], found: Split) -> None:
        """The index of the extremum: that of the first slice which has it, and within the slice."""
        inner, axis = axes
        best = self.add(node, _EXTREMA[node.op], sliced, dims=(inner,))
        within = self.add(node, node.op, sliced, dims=(inner,))
        winner = self.add(node, node.op, best, dims=(axis,))
        kept = self.types[winner].shape
        alone = (*kept[:axis], ONE, *kept[axis:])
        index = self.add(node, "reshape", winner, shape=alone)
        picked = self.add(node, "gather_along", within, index, dim=axis)
        length, _ = slice_length(found.run, found.slices)
        step = self.add(node, "full", dtype=DType.I64, shape=alone, value=_number(length))
        start = self.add(node, "mul", index, step)
        flat = self.add(node, "add", picked, start)
        self.finish(node, "reshape", flat, shape=kept)


def neutral(op: str, dtype: DType) -> float | int | bool:
    """An element that changes no result of a reduction, or that is the last extremum."""
    if dtype.is_float:
        return _FLOATS[op]
    if dtype is DType.BOOL:
        return op in ("all", "prod", "amin", "argmin")
    allowed = INTEGER_RANGES[dtype]
    return _INTEGERS[op](allowed)


_FLOATS: dict[str, float] = {
    "sum": 0.0,
    "prod": 1.0,
    "amax": float("-inf"),
    "argmax": float("-inf"),
    "amin": float("inf"),
    "argmin": float("inf"),
    "any": 0.0,
    "all": 1.0,
}
_INTEGERS: dict[str, Callable[[range], int]] = {
    "sum": lambda allowed: 0,
    "prod": lambda allowed: 1,
    "amax": lambda allowed: allowed.start,
    "argmax": lambda allowed: allowed.start,
    "amin": lambda allowed: allowed.stop - 1,
    "argmin": lambda allowed: allowed.stop - 1,
    "any": lambda allowed: 0,
    "all": lambda allowed: 1,
}


def _number(length: Expr) -> Arg:
    return length.constant if length.is_constant else length


def _exprs(numbers: list[int]) -> tuple[Expr, ...]:
    return tuple(as_expr(number) for number in numbers)
