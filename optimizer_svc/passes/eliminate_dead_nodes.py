"""Drops nodes whose results nobody reads, but for steps of the framework.

The frontend has dropped those that do nothing else than give results; what it kept draws random
numbers or may have other effects.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, uses_of
from optimizer_svc.analysis.graph_facts import outputs_read


def eliminate_dead_nodes(graph: Graph) -> Graph:
    """The graph without them."""
    live = set(outputs_read(graph))
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op == "extern" or not live.isdisjoint(node.results):
            kept.append(node)
            live.update(uses_of(node))
    if len(kept) == len(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)))
