"""Merges nodes with the same prim, operands and attributes."""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Arg, Graph, Node
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.ir.renaming import renamed, with_values


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """The graph with equal nodes merged, except extern nodes, which may draw random numbers."""
    same: dict[int, int] = {}
    known: dict[object, Node] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        moved = with_values(node, same)
        if node.op == "extern":
            kept.append(moved)
            continue
        key = (node.op, operands(moved), exact(tuple(value for _, value in node.attrs)))
        first = known.setdefault(key, moved)
        if first is moved:
            kept.append(moved)
        else:
            same.update(zip(node.results, first.results, strict=True))
    if not same:
        return graph
    outputs = tuple(renamed(arg, same) for arg in graph.outputs)
    return replace(graph, nodes=tuple(kept), outputs=outputs)


def exact(arg: Arg) -> object:
    """A key that distinguishes 0.0, -0.0, 0 and False, and in which NaN equals itself."""
    if isinstance(arg, tuple):
        return tuple(exact(item) for item in arg)
    if isinstance(arg, float):
        return ("float", arg.hex())
    return (type(arg), arg)
