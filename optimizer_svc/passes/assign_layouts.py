"""Gives values the strides of their layouts, and extern nodes copies of operands in others.

Strides are part of the types of values from here on: of kernels' results, too. A copy (`convert` to
the same type) is made once for all nodes that take it.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType
from kernelfarm.ir.prims import CLIENT_OPS
from optimizer_svc.analysis.graph_facts import ints_attr, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.ir.layouts import Layouts


def assign_layouts(graph: Graph, layouts: Layouts) -> Graph:
    """The graph with the layouts."""
    copies = _Copies(graph)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        args = list(node.args)
        for number, value in enumerate(operands(node)):
            strides = layouts.copies.get((position, number))
            if strides is not None:
                args[number] = Ref(copies.of(value, strides, node))
        nodes += copies.taken()
        nodes.append(_typed(replace(node, args=tuple(args)), layouts))
    if tuple(nodes) == graph.nodes:
        return graph
    return replace(graph, nodes=tuple(nodes))


class _Copies:
    """The copies of one graph's values, by value and strides."""

    def __init__(self, graph: Graph) -> None:
        self._types = graph.types()
        self._producers = {value: node for node in graph.nodes for value in node.results}
        self._fresh = 1 + max([*self._types, *(i.value for i in graph.inputs)], default=0)
        self._made: dict[tuple[int, Index], int] = {}
        self._nodes: list[Node] = []

    def of(self, value: int, strides: Index, reader: Node) -> int:
        """The copy of a value in these strides, for its first reader.

        A permuted value is the permuted copy, so that both orders of axes share one.
        """
        if (value, strides) not in self._made:
            producer = self._producers.get(value)
            if producer is not None and producer.op == "permute":
                dims = ints_attr(producer, "dims")
                turned = tuple(strides[dims.index(axis)] for axis in range(len(dims)))
                copy = self.of(operands(producer)[0], turned, reader)
                self._add(replace(producer, args=(Ref(copy),), results=(self._fresh,)))
            else:
                tensor = replace(self._types[value], strides=strides)
                self._add(_copy(reader, tensor, value, self._fresh))
            self._made[value, strides] = self._fresh - 1
        return self._made[value, strides]

    def taken(self) -> list[Node]:
        """The nodes of the copies since the last call."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        self._fresh += 1


def _typed(node: Node, layouts: Layouts) -> Node:
    """The node with the strides of its results; kernels' results are row-major without any."""
    is_stated = node.op in CLIENT_OPS
    types = tuple(
        replace(tensor, strides=layouts.strides.get(value, tensor.strides if is_stated else None))
        for value, tensor in zip(node.results, node.types, strict=True)
    )
    return node if types == node.types else replace(node, types=types)


def _copy(node: Node, tensor: TensorType, source: int, value: int) -> Node:
    attrs = (("dtype", tensor.dtype),)
    origins, location = node.origins, node.location
    return Node("convert", (Ref(source),), attrs, (value,), (tensor,), origins, location)
