"""Replaces sums of rows with at most one element that is not zero by that element.

    sum(where(index == iota, x, 0), axis)  ->  where(0 <= index < extent, x, 0)

if `index` and `x` do not vary along the axis. The gradient of a class loss is such a row, and the
gradient of log-softmax reads its sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import (
    GraphFacts,
    constant_value,
    graph_facts,
    ints_attr,
    operands,
)
from optimizer_svc.ir.prims_writer import PrimsWriter

_POSITIONS = (DType.I32, DType.I64)
"""Types in which the positions of an axis are different numbers."""
_MOST_CONVERSIONS = 4
"""Each sum repeats the conversions of its element; a chain of programs' own is shorter."""


def sum_one_hot(graph: Graph) -> Graph:
    """The graph with sums of such rows computed without a loop."""
    if not any(node.op == "sum" for node in graph.nodes):
        return graph
    facts = graph_facts(graph)
    writer = _Writer(facts)
    for node in graph.nodes:
        spend(1)
        row = _one_hot_row(facts, node) if node.op == "sum" else None
        if row is None or not writer.replaced(node, row):
            writer.nodes.append(node)
    return replace(graph, nodes=tuple(writer.nodes)) if writer.is_changed else graph


@dataclass(frozen=True, slots=True)
class _OneHotRow:
    """The rows that a sum reads; `index` and `element` have the shape of the operand.

    `conversions` are the conversions of the element, from the first to the last.
    """

    axis: int
    extent: Expr
    index: int
    element: int
    conversions: tuple[Node, ...]


def _one_hot_row(facts: GraphFacts, node: Node) -> _OneHotRow | None:
    dims, (value,) = ints_attr(node, "dims"), operands(node)
    if len(dims) != 1 or facts.types[value].dtype is not node.types[0].dtype:
        return None
    conversions: list[Node] = []
    producer = facts.producers.get(value)
    while producer is not None and producer.op == "convert":
        spend(1)
        conversions.append(producer)
        producer = facts.producers.get(operands(producer)[0])
    if producer is None or producer.op != "where" or len(conversions) > _MOST_CONVERSIONS:
        return None
    condition, element, other = operands(producer)
    hits = facts.producers.get(condition)
    if constant_value(facts, other) != 0 or hits is None or hits.op != "eq":
        return None
    first, second = operands(hits)
    for index, positions in ((first, second), (second, first)):
        if _counts(facts, positions, dims[0]):
            extent = facts.types[value].shape[dims[0]]
            return _OneHotRow(dims[0], extent, index, element, tuple(reversed(conversions)))
    return None


def _counts(facts: GraphFacts, value: int, axis: int) -> bool:
    """True if each element of a value is its position on the axis."""
    extent = facts.types[value].shape[axis]
    while True:
        spend(1)
        node = facts.producers.get(value)
        if node is None or node.types[0].shape[axis] is not extent:
            return False
        if node.op == "iota":
            return node.types[0].dtype in _POSITIONS
        if node.op not in ("broadcast_in_dim", "reshape"):
            return False
        (value,) = operands(node)
        source = facts.types[value].shape
        if node.op == "broadcast_in_dim":
            dims = ints_attr(node, "dims")
            if axis not in dims:
                return False
            axis = dims.index(axis)
        else:
            others = [length for at, length in enumerate(node.types[0].shape) if at != axis]
            if len(source) != 1 or any(length is not ONE for length in others):
                return False
            axis = 0


class _Writer(PrimsWriter):
    """A sum that is replaced ends in a node with the old result."""

    is_changed = False

    def __init__(self, facts: GraphFacts) -> None:
        super().__init__(facts)
        self._facts = facts

    def replaced(self, node: Node, row: _OneHotRow) -> bool:
        """True if the element was written instead of the sum."""
        shape = node.types[0].shape
        index, element = (self._along(node, v, row.axis) for v in (row.index, row.element))
        if index is None or element is None:
            return False
        for conversion in row.conversions:
            element = self.add(node, "convert", element, **dict(conversion.attrs))
        kind = self.types[index].dtype
        low, high = (
            self.add(node, "full", dtype=kind, shape=shape, value=bound)
            for bound in (0, row.extent)
        )
        above, below = self.add(node, "ge", index, low), self.add(node, "lt", index, high)
        is_hit = self.add(node, "logical_and", above, below)
        dtype = node.types[0].dtype
        zero = self.add(node, "full", dtype=dtype, shape=shape, value=0.0 if dtype.is_float else 0)
        # A sum that has -0.0 and other zeros is 0.0.
        self.finish(node, "add", self.add(node, "where", is_hit, element, zero), zero)
        self.is_changed = True
        return True

    def _along(self, like: Node, value: int, axis: int) -> int | None:
        """A value without an axis along which it does not vary; None if it may vary."""
        kind, shape = self.types[value], like.types[0].shape
        number = constant_value(self._facts, value)
        if number is not None:
            return self.add(like, "full", dtype=kind.dtype, shape=shape, value=number)
        node = self._facts.producers.get(value)
        if node is None or node.op != "broadcast_in_dim":
            return None
        (source,), dims = operands(node), ints_attr(node, "dims")
        if axis in dims:
            place = dims.index(axis)
            extents = self.types[source].shape
            if extents[place] is not ONE:
                return None
            kept = (*extents[:place], *extents[place + 1 :])
            source = self.add(like, "reshape", source, shape=kept)
            dims = (*dims[:place], *dims[place + 1 :])
        moved = tuple(dim - (dim > axis) for dim in dims)
        return self.add(like, "broadcast_in_dim", source, shape=shape, dims=moved)
