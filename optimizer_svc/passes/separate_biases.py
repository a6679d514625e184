"""Takes the biases of convolutions out of extern nodes, so that kernels add them.

    extern convolution(x, w, b)  ->  extern convolution(x, w) + b

The libraries of GPUs add a bias by a kernel of its own, which reads and writes the whole result.
As a prim, the addition is fused with what reads the result. So a convolution that only extern nodes
and outputs read keeps its bias. As in eager, the convolution is rounded before the sum.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Node, Ref
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts, graph_facts, operands
from optimizer_svc.ir.prims_writer import PrimsWriter

CONVOLUTION = "aten.convolution.default"
_CHANNELS = 1
"""The axis of the channels in the result of a convolution."""


def separate_biases(graph: Graph, target: TargetFacts) -> Graph:
    """The graph with biases as prims, where the target's library adds them apart."""
    if not target.adds_biases_apart:
        return graph
    facts = graph_facts(graph)
    read = _read_by_kernels(facts)
    writer = _Writer(facts)
    for node in graph.nodes:
        if _has_bias(node) and node.results[0] in read:
            writer.separate(node)
        else:
            writer.nodes.append(node)
    return replace(graph, nodes=tuple(writer.nodes)) if writer.is_changed else graph


def _has_bias(node: Node) -> bool:
    is_convolution = node.op == "extern" and node.attr("op") == CONVOLUTION
    return is_convolution and len(node.args) == 3 and node.types[0].dtype.is_float


def _read_by_kernels(facts: GraphFacts) -> set[int]:
    """The values that a prim reads, other than views, directly or through views."""
    found: set[int] = set()
    for node in reversed(facts.graph.nodes):
        is_passed_on = node.op in VIEW_OPS and found.isdisjoint(node.results)
        if node.op != "extern" and not is_passed_on:
            found.update(operands(node))
    return found


class _Writer(PrimsWriter):
    """A separated bias ends in a node with the old result."""

    is_changed = False

    def separate(self, node: Node) -> None:
        """Appends the convolution without its bias, and the addition."""
        self.is_changed = True
        image, weight, bias = operands(node)
        (result,) = node.types
        alone = self.fresh(result)
        self.nodes.append(replace(node, args=(Ref(image), Ref(weight)), results=(alone,)))
        wide = result.dtype if result.dtype is DType.F64 else DType.F32
        summand = self._widened(node, bias, wide)
        dims = (_CHANNELS,)
        spread = self.add(node, "broadcast_in_dim", summand, shape=result.shape, dims=dims)
        total = self.add(node, "add", self._widened(node, alone, wide), spread)
        self.finish(node, "convert", total, dtype=result.dtype)

    def _widened(self, like: Node, value: int, wide: DType) -> int:
        if self.types[value].dtype is wide:
            return value
        return self.add(like, "convert", value, dtype=wide)
