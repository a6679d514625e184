"""Which lines of a program's `aten` and `prims` texts belong to which captured nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import parse_graph


@dataclass(slots=True)
class GraphLines:
    """The lines of one graph text by captured node, and the user's source line of each node."""

    of_node: dict[int, list[str]] = field(default_factory=dict)
    locations: dict[int, str] = field(default_factory=dict)

    def of(self, nodes: Iterable[int]) -> list[tuple[str, tuple[int, ...]]]:
        """The lines of some captured nodes, each line once, with the nodes that it belongs to."""
        found: dict[str, list[int]] = {}
        for node in nodes:
            for line in self.of_node.get(node, ()):
                found.setdefault(line, []).append(node)
        return [(line, tuple(owners)) for line, owners in found.items()]


def captured_lines(text: str) -> GraphLines:
    """The lines of an `aten` text; the position of a node is its number.

    Raises:
        MalformedMessageError: the text is not a graph.
    """
    graph, lines = parse_graph(text), GraphLines()
    for number, (node, line) in enumerate(zip(graph.nodes, _node_lines(text, graph), strict=True)):
        lines.of_node[number] = [line]
        if 0 < node.location <= len(graph.locations):
            lines.locations[number] = graph.locations[node.location - 1]
    return lines


def prims_lines(text: str) -> GraphLines:
    """The lines of a `prims` text by the captured nodes that they come from.

    Raises:
        MalformedMessageError: the text is not a graph.
    """
    graph, lines = parse_graph(text), GraphLines()
    for node, line in zip(graph.nodes, _node_lines(text, graph), strict=True):
        for origin in dict.fromkeys(node.origins):
            lines.of_node.setdefault(origin, []).append(line)
    return lines


def _node_lines(text: str, graph: Graph) -> list[str]:
    """The lines of the nodes: they stand before the last line, in order."""
    lines = text.rstrip("\n").split("\n")[:-1]
    return lines[len(lines) - len(graph.nodes) :]
