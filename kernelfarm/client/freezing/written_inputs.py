"""Which arguments of a functional graph it writes: caches that a model updates do change."""

from __future__ import annotations

from typing import Any

from torch import fx

from kernelfarm.client.freezing.values import is_view
from kernelfarm.client.pytorch.private import OpOverload
from kernelfarm.client.pytorch.private.operators import schema_of


def written_arguments(graph: fx.Graph) -> frozenset[int]:
    """The positions of the arguments that operators of the graph write, also through views."""
    arguments = {node: at for at, node in enumerate(graph.find_nodes(op="placeholder"))}
    written: set[int] = set()
    for node in graph.nodes:
        bases = map(_base_of, _written_values(node))
        written.update(arguments[base] for base in bases if base in arguments)
    return frozenset(written)


def _base_of(value: fx.Node) -> fx.Node:
    """The value that a chain of views starts from."""
    while is_view(value) and value.all_input_nodes:
        value = value.all_input_nodes[0]
    return value


def _written_values(node: fx.Node) -> list[fx.Node]:
    """The operands that a node writes."""
    if not isinstance(node.target, OpOverload) or not schema_of(node.target).is_mutable:
        return []
    found: list[fx.Node] = []
    for number, parameter in enumerate(schema_of(node.target).arguments):
        if parameter.alias_info is None or not parameter.alias_info.is_write:
            continue
        given: Any = node.args[number] if number < len(node.args) else None
        given = node.kwargs.get(parameter.name, given)
        items = given if isinstance(given, list | tuple) else [given]
        found += [item for item in items if isinstance(item, fx.Node)]
    return found
