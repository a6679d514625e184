"""Shared by all passes: their contract, and rebuilding a graph node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontend_svc.decompose.report import PassNote
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The result of a pass; the graph is the same object if nothing changed."""

    graph: Graph
    notes: tuple[PassNote, ...] = ()


@dataclass(frozen=True, slots=True)
class RewritePass:
    """A named rewrite: (Prims graph, captured graph) -> result."""

    name: str
    rewrite: Callable[[Graph, Graph], RewriteResult]


Rule = Callable[[GraphBuilder, Node, tuple[int, ...]], int | None]
"""(builder, node, its operands in the new graph) -> the new value, or None to keep the node."""


class Rebuild:
    """Rebuilds a graph node by node; equal nodes are merged."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph.symbols, graph.locations)
        self.values: dict[int, int] = {}
        for source in graph.inputs:
            self.values[source.value] = self.builder.add_input(source.kind, source.name)

    def keep(self, node: Node, operands: Sequence[int]) -> tuple[int, ...]:
        """The values of a node, added to the new graph unchanged."""
        if node.op != "extern":
            return (self.builder.add(node.op, *operands, **dict(node.attrs)),)
        number, op = node.attr("node"), node.attr("op")
        assert isinstance(number, int) and isinstance(op, str)  # rules of the dialect
        return self.builder.add_extern(
            op,
            number,
            operands,
            node.types,
            is_contraction=node.attr("is_contraction") is True,
            is_unscaled=node.attr("is_unscaled"),
            kernel=node.attr("kernel"),
            scale=node.attr("scale"),
            is_causal=node.attr("is_causal"),
            window=node.attr("window"),
            adjacent=node.attr("adjacent"),
        )

    def operands_of(self, node: Node) -> tuple[int, ...]:
        """The operands of a node in the new graph."""
        values = self.values
        return tuple(values[arg.value] for arg in node.args if isinstance(arg, Ref))

    def finish(self) -> Graph:
        """The new graph, with the outputs of the old one."""
        outputs: list[Arg] = [
            Ref(self.values[output.value]) if isinstance(output, Ref) else output
            for output in self.graph.outputs
        ]
        return self.builder.build(outputs, self.graph.output_types)


def rebuild(graph: Graph, rule: Rule) -> Graph:
    """The graph with a rule applied to each node in order."""
    work = Rebuild(graph)
    builder, values = work.builder, work.values
    for node in graph.nodes:
        operands = work.operands_of(node)
        with builder.origin(*node.origins, location=node.location):
            replaced = rule(builder, node, operands)
            results = work.keep(node, operands) if replaced is None else (replaced,)
        values.update(zip(node.results, results, strict=True))
    return work.finish()
