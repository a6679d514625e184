"""Gives every output a value of its own that a kernel or an extern node makes.

Inputs that are returned, values that are returned twice, and views of extern results with other
strides become explicit copies (`convert` to the same type).
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType
from optimizer_svc.analysis.graph_facts import graph_facts
from optimizer_svc.analysis.storages import existing_storages, output_aliases


def separate_outputs(graph: Graph) -> Graph:
    """The graph with copies, so that all outputs are distinct values and none is an input."""
    facts = graph_facts(graph)
    aliases = output_aliases(facts, existing_storages(facts))
    fresh = 1 + max([*facts.types, *(i.value for i in graph.inputs)], default=0)
    copies: list[Node] = []
    outputs: list[Arg] = []
    seen: set[int] = set()
    for position, arg in enumerate(graph.outputs):
        if not isinstance(arg, Ref) or arg.value not in facts.types or position in aliases:
            outputs.append(arg)
            continue
        if arg.value not in seen and not facts.is_storage(arg.value):
            seen.add(arg.value)
            outputs.append(arg)
            continue
        copies.append(_copy(arg, facts.types[arg.value], fresh))
        outputs.append(Ref(fresh))
        fresh += 1
    if not copies:
        return graph
    return replace(graph, nodes=(*graph.nodes, *copies), outputs=tuple(outputs))


def _copy(source: Ref, tensor: TensorType, value: int) -> Node:
    kind = TensorType(tensor.dtype, tensor.shape)
    return Node("convert", (source,), (("dtype", tensor.dtype),), (value,), (kind,))
