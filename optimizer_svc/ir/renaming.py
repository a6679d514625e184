"""Replaces values in nodes, for passes that rewrite a graph."""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Arg, Node, Ref
from optimizer_svc.analysis.graph_facts import operands


def with_values(node: Node, same: dict[int, int]) -> Node:
    """The node with operands replaced; the same object if none changes."""
    if not any(value in same for value in operands(node)):
        return node
    return replace(node, args=tuple(renamed(arg, same) for arg in node.args))


def renamed(arg: Arg, same: dict[int, int]) -> Arg:
    """The argument with values replaced."""
    return Ref(same.get(arg.value, arg.value)) if isinstance(arg, Ref) else arg
