"""Turns chosen depthwise convolutions into steps that a template kernel computes, or into prims.

    extern convolution(x, w, b)  ->  extern template(x, w as (down, across, c), b)
    extern convolution(x, w, b)  ->  sum(windows of the padded x * w as (down, across, c)) + b

Memory holds the weight in this order: a kernel turns it in each call, unless a frozen one has it.
Prims compute in f32, and kernels compute what follows a sum with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.depthwise import Depthwise, depthwise
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.analysis.templates import DEPTHWISE
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.prims_writer import PrimsWriter

_Steps = Sequence[tuple[str, tuple[int, ...], dict[str, Arg]]]


def compute_depthwise(graph: Graph, depthwise: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as steps of the template."""
    if not depthwise.results:
        return graph
    writer = _Writer(graph_facts(graph), depthwise)
    for node in graph.nodes:
        if depthwise.results.isdisjoint(node.results):
            writer.nodes.append(node)
        elif node.results[0] in depthwise.weights:
            writer.compute_by_prims(node)
        else:
            writer.compute(node)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """A computed convolution keeps its result, and where that lies in memory."""

    def __init__(self, facts: GraphFacts, choice: ContractionChoice) -> None:
        super().__init__(facts, choice.weights.values())
        self._facts = facts
        self._choice = choice

    def compute(self, node: Node) -> None:
        """Appends a step of the template."""
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

    def compute_by_prims(self, node: Node) -> None:
        """Appends prims.

        Shapes: n: images, c: channels, h, w: pixels of the result, kh, kw: pixels of the window
        """
        spend(32)
        found = depthwise(self._facts, node)
        if not isinstance(found, Depthwise):
            raise InternalError(f"node {node.results[0]} is no depthwise convolution; it was one")
        (result,), shape = node.results, node.types[0].shape
        windows = self._windows(node, self._choice.images[result], found)
        sides = tuple(map(as_expr, found.sides))
        turned = self.add(node, "reshape", found.weight, shape=(shape[1], *sides))
        ordered = self._choice.weights[result]
        self.add_as(ordered, node, "permute", turned, dims=(1, 2, 0))
        weight = self.add(node, "permute", self._wide(node, ordered), dims=(2, 0, 1))
        spread = self.add(node, "broadcast_in_dim", weight, shape=(*shape, *sides), dims=(1, 4, 5))
        terms = self.add(node, "mul", windows, spread)
        steps: list[tuple[str, tuple[int, ...], dict[str, Arg]]]
        steps = [("sum", (terms,), {"dims": (4, 5)})]
        if found.bias is not None:
            wide = self._wide(node, found.bias)
            bias = self.add(node, "broadcast_in_dim", wide, shape=shape, dims=(1,))
            steps.append(("add", (bias,), {}))
        if node.types[0].dtype is not DType.F32:
            steps.append(("convert", (), {"dtype": node.types[0].dtype}))
        self._append_chain(node, steps)

    def _windows(self, node: Node, image: int, found: Depthwise) -> int:
        """Appends the windows of an image, in f32.

        Shapes: (n, c, height, width) -> (n, c, h, w, kh, kw)
        """
        around = (ZERO, ZERO, *map(as_expr, found.padding))
        if found.padding != (0, 0):
            image = self.add(node, "pad", image, low=around, high=around, value=0.0)
        windows = self.add(
            node,
            "window",
            image,
            dims=(2, 3),
            sizes=tuple(map(as_expr, found.sides)),
            strides=tuple(map(as_expr, found.strides)),
            dilations=(ONE, ONE),
        )
        return self._wide(node, windows)

    def _wide(self, node: Node, value: int) -> int:
        """A value as f32."""
        if self.types[value].dtype is DType.F32:
            return value
        return self.add(node, "convert", value, dtype=DType.F32)

    def _append_chain(self, node: Node, steps: _Steps) -> None:
        """Appends prims of which each reads the one before, with the strides of the result."""
        before: tuple[int, ...] = ()
        for number, (op, values, attrs) in enumerate(steps):
            is_last = number == len(steps) - 1
            made = self.add(node, op, *before, *values, **attrs)
            strided = replace(self.types[made], strides=node.types[0].strides)
            name = node.results[0] if is_last else made
            self.types[name] = strided
            self.nodes[-1] = replace(self.nodes[-1], results=(name,), types=(strided,))
            before = (name,)
