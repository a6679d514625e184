"""Turns chosen depthwise convolutions into steps that a template kernel computes.

    extern convolution(x, w, b)  ->  extern template(x, w as (down, across, c), b)

Memory holds the weight in the template's order: a kernel turns it in each call.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.ir.graph_ir import Graph, Node, Ref
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.analysis.templates import DEPTHWISE
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.prims_writer import PrimsWriter


def compute_depthwise(graph: Graph, depthwise: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as steps of the template."""
    if not depthwise.results:
        return graph
    writer = _Writer(graph_facts(graph))
    for node in graph.nodes:
        if depthwise.results.isdisjoint(node.results):
            writer.nodes.append(node)
        else:
            writer.compute(node)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """A computed convolution keeps its result, and where that lies in memory."""

    def compute(self, node: Node) -> None:
        """Appends a convolution."""
        spend(16)
        image, weight, *biases = operands(node)
        channels, _, *sides = self.types[weight].shape
        turned = self.add(node, "reshape", weight, shape=(channels, *sides))
        turned = self.add(node, "permute", turned, dims=(1, 2, 0))
        stored = self.add(node, "convert", turned, dtype=self.types[weight].dtype)
        attrs = {
            "is_contraction": False,
            "node": node.attr("node"),
            "op": DEPTHWISE,
            "window": node.attr("window"),
        }
        args = tuple(Ref(value) for value in (image, stored, *biases))
        self.nodes.append(replace(node, args=args, attrs=normal_attrs(attrs)))
