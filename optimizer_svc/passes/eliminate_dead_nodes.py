"""Drops nodes whose results nobody reads."""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, uses_of
from optimizer_svc.analysis.graph_facts import outputs_read


def eliminate_dead_nodes(graph: Graph) -> Graph:
    """The graph without them; nodes without results are there for their effect and stay."""
    live = set(outputs_read(graph))
    kept = []
    for node in reversed(graph.nodes):
        if not node.results or not live.isdisjoint(node.results):
            kept.append(node)
            live.update(uses_of(node))
    if len(kept) == len(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)))
