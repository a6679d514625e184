"""Decides which updates of inputs are computed in place; the others are copied at the end.

A copy (`convert` to the same type) reads a value in its own memory, so it may run after all readers
of the input's old elements.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType
from optimizer_svc.analysis.graph_facts import graph_facts
from optimizer_svc.analysis.updates import InPlaceWrites, updated_inputs


def update_inputs(graph: Graph) -> Graph:
    """The graph with copies, so that every update of an input may be written to its memory."""
    if not graph.updates:
        return graph
    facts = graph_facts(graph)
    writes = InPlaceWrites(facts)
    fresh = 1 + max([*facts.types, *(i.value for i in graph.inputs)])
    copies: dict[int, Node] = {}
    for value, source in updated_inputs(graph).items():
        if not writes.granted(value, source):
            copies[value] = _copy(value, facts.types[value], fresh)
            fresh += 1
    if not copies:
        return graph
    updated = {update.output for update in graph.updates}
    outputs: list[Arg] = []
    for number, output in enumerate(graph.outputs):
        if number in updated and isinstance(output, Ref) and output.value in copies:
            outputs.append(Ref(copies[output.value].results[0]))
        else:
            outputs.append(output)
    return replace(graph, nodes=(*graph.nodes, *copies.values()), outputs=tuple(outputs))


def _copy(value: int, tensor: TensorType, result: int) -> Node:
    kind = TensorType(tensor.dtype, tensor.shape)
    return Node("convert", (Ref(value),), (("dtype", tensor.dtype),), (result,), (kind,))
