"""Removes nodes whose results are not used, except extern nodes.

The frontend has removed extern nodes without effects already; the others draw random numbers or may
have other effects.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, uses_of
from optimizer_svc.analysis.graph_facts import outputs_read


def eliminate_dead_nodes(graph: Graph) -> Graph:
    """The graph without unused nodes."""
    live = set(outputs_read(graph))
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op == "extern" or not live.isdisjoint(node.results):
            kept.append(node)
            live.update(uses_of(node))
    if len(kept) == len(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)))
