"""Gives every scatter a base without other readers, so that its memory can be updated in place.

A base that a kernel makes only for the scatter is used as it is, as is an input that the scatter
updates. Any other base is copied (`convert` to the same type).
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands, outputs_read
from optimizer_svc.analysis.updates import scatter_chain, updated_inputs


def copy_scatter_bases(graph: Graph) -> Graph:
    """The graph with copies, so that the first operand of every scatter has no other use."""
    if not any(node.op == "scatter" for node in graph.nodes):
        return graph
    facts = graph_facts(graph)
    returned = frozenset(outputs_read(graph))
    in_place = _in_place(facts, returned)
    fresh = 1 + max([*facts.types, *(i.value for i in graph.inputs)], default=0)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        is_ready = position in in_place or node.op != "scatter"
        if not (is_ready or _is_own(facts, node, returned)):
            base = operands(node)[0]
            nodes.append(_copy(node, base, facts.types[base], fresh))
            nodes.append(replace(node, args=(Ref(fresh), *node.args[1:])))
            fresh += 1
        else:
            nodes.append(node)
    if len(nodes) == len(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(nodes))


def _in_place(facts: GraphFacts, returned: frozenset[int]) -> frozenset[int]:
    """Positions of the scatters that lead from an input to the value that is stored in it."""
    found: set[int] = set()
    for value, source in updated_inputs(facts.graph).items():
        found.update(scatter_chain(facts, value, source, returned) or ())
    return frozenset(found)


def _is_own(facts: GraphFacts, node: Node, returned: frozenset[int]) -> bool:
    base, *others = operands(node)
    is_ours = not facts.is_storage(base) and not facts.is_view(base)
    is_alone = len(facts.consumers[base]) == 1 and base not in others and base not in returned
    return is_ours and is_alone


def _copy(node: Node, base: int, tensor: TensorType, value: int) -> Node:
    kind = TensorType(tensor.dtype, tensor.shape)
    attrs = (("dtype", tensor.dtype),)
    return Node("convert", (Ref(base),), attrs, (value,), (kind,), node.origins, node.location)
