"""Gives the gradients of attention the layouts of its operands, where the target's kernels do.

The captured graph states `(batch, length, heads, width)` for all of them. Kernels that allocate a
gradient like its operand would need a copy of each gradient whose operand lies otherwise, as the
keys that a model repeats for groups of heads. If a kernel gives another layout at run time, the
client's step copies the result.

Outputs keep the layouts of eager.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.storages import Storage, existing_storages
from optimizer_svc.analysis.strided_views import is_dense, view_between
from optimizer_svc.analysis.templates import ATTENTION_BACKWARD
from optimizer_svc.analysis.verdicts import Refused

# Those whose gradients are the first results.
_OPERANDS = (3, 4, 5)


def lay_out_gradients(graph: Graph, target: TargetFacts) -> Graph:
    """The graph with the strides of the operands in the types of their gradients."""
    if not target.gradients_like_operands:
        return graph
    facts = graph_facts(graph)
    storages = existing_storages(facts)
    returned = {facts.base_of(arg.value) for arg in graph.outputs if isinstance(arg, Ref)}
    nodes = tuple(
        _laid_out(facts, storages, returned, node)
        if node.op == "extern" and node.attr("op") == ATTENTION_BACKWARD
        else node
        for node in graph.nodes
    )
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _laid_out(
    facts: GraphFacts, storages: dict[int, Storage], returned: set[int], node: Node
) -> Node:
    types = list(node.types)
    for number, operand in enumerate(operands(node)[first] for first in _OPERANDS):
        strides = _strides_in_memory(facts, storages, operand)
        if strides is not None and node.results[number] not in returned:
            types[number] = _with_strides(types[number], facts.types[operand], strides)
    return node if tuple(types) == node.types else replace(node, types=tuple(types))


def _strides_in_memory(facts: GraphFacts, storages: dict[int, Storage], value: int) -> Index | None:
    """The strides of an operand that lies in memory without gaps; None for others."""
    base = facts.base_of(value)
    if base not in storages:
        return None
    view = view_between(facts, value, storages[base].whole())
    if isinstance(view, Refused) or not is_dense(view.shape, view.strides):
        return None
    return view.strides


def _with_strides(gradient: TensorType, operand: TensorType, strides: Index) -> TensorType:
    return replace(gradient, strides=strides) if gradient.shape == operand.shape else gradient
