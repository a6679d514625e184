"""Gives values the strides of their layouts, and extern nodes copies of operands in others.

Strides are part of the types of values from here on: of kernels' results, too. A copy (`convert` to
the same type) is made once for all nodes that take it.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType
from kernelfarm.ir.prims import CLIENT_OPS
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.ir.layouts import Layouts


def assign_layouts(graph: Graph, layouts: Layouts) -> Graph:
    """The graph with the layouts."""
    types = graph.types()
    fresh = 1 + max([*types, *(i.value for i in graph.inputs)], default=0)
    made: dict[tuple[int, Index], int] = {}
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        args = list(node.args)
        for number, value in enumerate(operands(node)):
            strides = layouts.copies.get((position, number))
            if strides is None:
                continue
            if (value, strides) not in made:
                made[value, strides] = fresh
                nodes.append(_copy(node, replace(types[value], strides=strides), value, fresh))
                fresh += 1
            args[number] = Ref(made[value, strides])
        nodes.append(_typed(replace(node, args=tuple(args)), layouts))
    if tuple(nodes) == graph.nodes:
        return graph
    return replace(graph, nodes=tuple(nodes))


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
