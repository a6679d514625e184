"""Depthwise convolutions as prims, which become one kernel of a processor each.

    extern convolution(x, w, b)  ->  sum(windows of the padded x * w as (down, across, c)) + b

in f32. Kernels compute what follows a sum with it. Memory holds the images, and the weights in this
order: a kernel turns a weight in each call, unless a frozen one has the order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr
from kernelfarm.ir.graph_ir import Arg, Graph, Node, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import DepthwiseFacts
from optimizer_svc.analysis.depthwise import CONVOLUTION, Depthwise, depthwise
from optimizer_svc.analysis.depthwise_operands import depthwise_operands
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.contraction_writer import ContractionWriter, with_contractions

_Step = tuple[str, tuple[int, ...], dict[str, Arg]]
"""A prim: its name, operands besides the step before, and attributes."""


def choose_prims(graph: Graph, known: DepthwiseFacts) -> ContractionChoice:
    """The depthwise convolutions that prims compute, and why the framework computes the others."""
    nodes = [n for n in graph.nodes if n.op == "extern" and n.attr("op") == CONVOLUTION]
    if not nodes:
        return ContractionChoice()
    facts = graph_facts(graph)
    images: dict[int, int] = {}
    weights: dict[int, int] = {}
    strides: dict[int, Index] = {}
    refused: Counter[str] = Counter()
    fresh = 1 + max([*facts.types, *(source.value for source in graph.inputs)])
    for node in nodes:
        spend(8)
        found = depthwise(facts, node)
        if isinstance(found, Refused):
            continue
        verdict = depthwise_operands(facts, node, found, known)
        if isinstance(verdict, Refused):
            refused[verdict.reason] += 1
            continue
        (result,) = node.results
        images[result], weights[result] = verdict.image, fresh
        if not verdict.is_ordered:
            strides[fresh] = contiguous_strides(
                (*map(as_expr, found.sides), node.types[0].shape[1])
            )
        fresh += 1
    notes = [f"convolutions: {len(images)} depthwise by kernels"] if images else []
    notes += [
        f"convolutions: {count} depthwise by the framework: {why}" for why, count in refused.items()
    ]
    return ContractionChoice(
        frozenset(images),
        frozenset(images.values()),
        images,
        tuple(notes),
        weights=weights,
        strides=strides,
    )


def with_prims(graph: Graph, choice: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as prims."""
    return with_contractions(graph, choice, _Writer)


class _Writer(ContractionWriter):
    """A computed convolution keeps its result, and where that lies in memory."""

    def __init__(self, facts: GraphFacts, choice: ContractionChoice) -> None:
        super().__init__(facts, choice)
        self._facts = facts

    def compute(self, node: Node) -> None:
        """Appends a convolution.

        Shapes: n: images, c: channels, h, w: pixels of the result, kh, kw: pixels of the window
        """
        spend(32)
        found = depthwise(self._facts, node)
        if not isinstance(found, Depthwise):
            raise InternalError(f"node {node.results[0]} is no depthwise convolution; it was one")
        (result,), shape = node.results, node.types[0].shape
        windows = self._windows(node, self.choice.images[result], found)
        sides = tuple(map(as_expr, found.sides))
        turned = self.add(node, "reshape", found.weight, shape=(shape[1], *sides))
        ordered = self.choice.weights[result]
        self.add_as(ordered, node, "permute", turned, dims=(1, 2, 0))
        weight = self.add(node, "permute", self.wide(node, ordered), dims=(2, 0, 1))
        spread = self.add(node, "broadcast_in_dim", weight, shape=(*shape, *sides), dims=(1, 4, 5))
        terms = self.add(node, "mul", windows, spread)
        steps: list[_Step] = [("sum", (terms,), {"dims": (4, 5)})]
        if found.bias is not None:
            wide = self.wide(node, found.bias)
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
        return self.wide(node, windows)

    def _append_chain(self, node: Node, steps: Sequence[_Step]) -> None:
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
