"""Writes the extern nodes of chosen contractions anew, as prims."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Graph, Node
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.prims_writer import PrimsWriter


class ContractionWriter(PrimsWriter):
    """A subclass says how prims compute a node; they end in one with its first result."""

    def __init__(self, facts: GraphFacts, choice: ContractionChoice) -> None:
        by_result = (choice.transformed, choice.gradients, choice.scores)
        tuples = [each for made in by_result for each in made.values()]
        made = [number for each in tuples for number in each]
        named = (choice.weights, choice.rows, choice.masked)
        made += [number for each in named for number in each.values()]
        super().__init__(facts, made)
        self.choice = choice

    @abstractmethod
    def compute(self, node: Node) -> None:
        """Appends the prims that compute a chosen node."""

    def wide(self, node: Node, value: int) -> int:
        """A value as f32."""
        if self.types[value].dtype is DType.F32:
            return value
        return self.add(node, "convert", value, dtype=DType.F32)

    def filled(self, node: Node, number: object, shape: tuple[Expr, ...]) -> int:
        """A value of this shape, f32, that is a number everywhere."""
        assert isinstance(number, float)  # the chooser asks for a scale
        return self.add(node, "full", dtype=DType.F32, shape=shape, value=number)


def one_result(node: Node, number: int) -> Node:
    """The node with one of its results alone."""
    own = slice(number, number + 1)
    return replace(node, results=node.results[own], types=node.types[own])


def with_contractions(
    graph: Graph, choice: ContractionChoice, writer: type[ContractionWriter]
) -> Graph:
    """The graph with the chosen contractions as prims.

    Only the first result of each is read, but for those `with_all_results`.
    """
    if not choice.results:
        return graph
    written = writer(graph_facts(graph), choice)
    for node in graph.nodes:
        if choice.results.isdisjoint(node.results):
            written.nodes.append(node)
        elif choice.with_all_results.isdisjoint(node.results):
            written.compute(replace(node, results=node.results[:1], types=node.types[:1]))
        else:
            written.compute(node)
    return replace(graph, nodes=tuple(written.nodes))
