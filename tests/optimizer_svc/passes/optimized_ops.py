"""The operators that are left of a graph."""

from __future__ import annotations

from kernelfarm.ir.graph_ir import Graph
from optimizer_svc.passes.eliminate_dead_nodes import eliminate_dead_nodes
from optimizer_svc.passes.simplify_algebra import simplify_algebra


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in eliminate_dead_nodes(simplify_algebra(graph)).nodes]
