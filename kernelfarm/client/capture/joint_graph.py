"""Joint graphs of forward and backward, before they are divided: what reads what, new operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kernelfarm.client.pytorch.private import OpOverload

TargetOf = Callable[[torch.device], str | None]
"""Gives the target of programs for a device; None if it has none."""

_ATEN = torch.ops.aten


def backward_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that depend on a gradient that is passed to the backward graph."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if is_tangent or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def is_pointwise(node: fx.Node) -> bool:
    """True if PyTorch says that each element of the result depends on one of each operand."""
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags


def value_of(node: fx.Node) -> Any:
    """What the trace noted for a node: a fake tensor, or several."""
    return node.meta["val"]


class GraphWriter:
    """Adds operators to a graph, with the values that a trace notes for them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def add(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A node that calls an operator."""
        node = self._graph.call_function(op, args, kwargs)
        node.meta["val"] = op(*fx.node.map_arg(args, value_of), **kwargs)
        return node

    def shape(self, x: fx.Node) -> list[Any]:
        """The extents of a value; those that vary are nodes."""
        return [
            extent if isinstance(extent, int) else self.add(_ATEN.sym_size.int, x, axis)
            for axis, extent in enumerate(value_of(x).shape)
        ]

    def converted(self, x: fx.Node, dtype: torch.dtype) -> fx.Node:
        """A value in another type; the same node if it has this type."""
        if value_of(x).dtype == dtype:
            return x
        return self.add(_ATEN._to_copy.default, x, dtype=dtype)
