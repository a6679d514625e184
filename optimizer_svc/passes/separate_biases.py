"""Takes the biases of convolutions out of extern nodes, so that kernels add them.

    extern convolution(x, w, b)  ->  extern convolution(x, w) + b

The libraries of GPUs add a bias by a kernel of its own, which reads and writes the whole result.
As a prim, the addition is fused with what reads the result. So a convolution that only extern nodes
and outputs read keeps its bias. As in eager, the convolution is rounded before the sum.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.prim_rules import infer
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts, graph_facts, operands

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


class _Writer:
    """Appends nodes; a separated bias ends in a node with the old result."""

    def __init__(self, facts: GraphFacts) -> None:
        self.nodes: list[Node] = []
        self.is_changed = False
        self._types = dict(facts.types)
        inputs = (source.value for source in facts.graph.inputs)
        self._next = 1 + max([*self._types, *inputs], default=0)

    def separate(self, node: Node) -> None:
        """Appends the convolution without its bias, and the addition."""
        self.is_changed = True
        image, weight, bias = operands(node)
        (result,) = node.types
        alone = self._fresh(result)
        self.nodes.append(replace(node, args=(Ref(image), Ref(weight)), results=(alone,)))
        wide = result.dtype if result.dtype is DType.F64 else DType.F32
        summand = self._widened(node, bias, wide)
        dims = (_CHANNELS,)
        spread = self._add(node, "broadcast_in_dim", summand, shape=result.shape, dims=dims)
        total = self._add(node, "add", self._widened(node, alone, wide), spread)
        last = self._made(node, "convert", (total,), {"dtype": result.dtype})
        self.nodes.append(replace(last, results=node.results))
        self._types[node.results[0]] = last.types[0]

    def _widened(self, like: Node, value: int, wide: DType) -> int:
        if self._types[value].dtype is wide:
            return value
        return self._add(like, "convert", value, dtype=wide)

    def _fresh(self, tensor: TensorType) -> int:
        self._next += 1
        self._types[self._next - 1] = tensor
        return self._next - 1

    def _add(self, like: Node, op: str, *values: int, **attrs: Arg) -> int:
        made = self._made(like, op, values, attrs)
        value = self._fresh(made.types[0])
        self.nodes.append(replace(made, results=(value,)))
        return value

    def _made(self, like: Node, op: str, values: tuple[int, ...], attrs: dict[str, Arg]) -> Node:
        args = tuple(Ref(value) for value in values)
        draft = Node(op, args, normal_attrs(attrs), (), (), like.origins, like.location)
        return replace(draft, types=infer(draft, tuple(self._types[v] for v in values)))
