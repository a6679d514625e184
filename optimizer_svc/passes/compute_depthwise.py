"""Turns chosen depthwise convolutions and their gradients into steps that template kernels compute.

    extern convolution(x, w, b)            ->  extern template(x, w as (down, across, c), b)
    extern convolution_backward(g, x, w)   ->  extern template(g, w as (down, across, c)),
                                               sum(extern template(g, x); programs), sum(g; pixels)

Memory holds the weight in the templates' order: a kernel turns it in each call. An image that is
another one with zeros around it is not stored: a template reads no pixel outside of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ZERO, as_expr
from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType, contiguous_strides
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.depthwise import GRADIENTS
from optimizer_svc.analysis.depthwise_operands import has_last_channels, has_window_order
from optimizer_svc.analysis.graph_facts import GraphFacts, exprs_attr, graph_facts, operands
from optimizer_svc.analysis.templates import DEPTHWISE, DEPTHWISE_IMAGE, DEPTHWISE_WEIGHT
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.depthwise_prims import with_prims
from optimizer_svc.ir.prims_writer import PrimsWriter


def compute_depthwise(graph: Graph, depthwise: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as steps of templates, or as prims."""
    if depthwise.weights:
        return with_prims(graph, depthwise)
    if not depthwise.results:
        return graph
    facts = graph_facts(graph)
    writer = _Writer(facts)
    for node in graph.nodes:
        if depthwise.results.isdisjoint(node.results):
            writer.nodes.append(node)
        elif node.attr("op") == GRADIENTS:
            writer.compute_gradients(node, depthwise.parts[node.results[0]])
        else:
            writer.compute(node, _padding(facts, operands(node)[0]))
    return replace(graph, nodes=tuple(writer.nodes))


@dataclass(frozen=True, slots=True)
class _Padding:
    """The image within zeros, and the pixels (down, across) that it begins behind them."""

    image: int
    low: tuple[int, int]


def _padding(facts: GraphFacts, value: int) -> _Padding | None:
    """The image that a value is with zeros around it; None if it is none that templates read."""
    node = facts.producers.get(value)
    if node is None or node.op != "pad" or node.attr("value") != 0:
        return None
    (image,) = operands(node)
    low, high = (exprs_attr(node, name) for name in ("low", "high"))
    is_of_pixels = all(extent is ZERO for extent in (*low[:2], *high[:2]))
    if not is_of_pixels or not all(extent.is_constant for extent in low):
        return None
    if not has_last_channels(facts.types[image]):
        return None
    return _Padding(image, (low[2].constant, low[3].constant))


class _Writer(PrimsWriter):
    """A computed convolution keeps its result, and where that lies in memory."""

    def __init__(self, facts: GraphFacts) -> None:
        super().__init__(facts)
        self._facts = facts

    def compute(self, node: Node, padding: _Padding | None) -> None:
        """Appends a convolution of an image, or of the one within its `padding`."""
        spend(16)
        image, weight, *biases = operands(node)
        stored = self._turned(node, weight)
        made = node
        if padding is not None:
            image, made = padding.image, _with_padding(node, padding.low)
        self._by_template(made, DEPTHWISE, (image, stored, *biases), node.results, node.types)

    def compute_gradients(self, node: Node, programs: int) -> None:
        """Appends the gradients of an image, a weight, and a bias if there is one."""
        spend(48)
        gradient, image, weight = operands(node)
        outs = zip(node.results, node.types, strict=True)
        of_image, of_weight, of_bias = (
            replace(node, results=(result,), types=(kind,)) for result, kind in outs
        )
        stored = self._turned(node, weight)
        self._by_template(
            of_image, DEPTHWISE_IMAGE, (gradient, stored), of_image.results, of_image.types
        )
        channels, _, *sides = self.types[weight].shape
        shape = (as_expr(programs), *sides, channels)
        sums = self.fresh(TensorType(DType.F32, shape, contiguous_strides(shape)))
        kinds = (self.types[sums],)
        self._by_template(of_weight, DEPTHWISE_WEIGHT, (gradient, image), (sums,), kinds)
        found = self.add(node, "sum", sums, dims=(0,))
        found = self.add(node, "permute", found, dims=(2, 0, 1))
        found = self.add(node, "reshape", found, shape=of_weight.types[0].shape)
        self.finish(of_weight, "convert", found, dtype=of_weight.types[0].dtype)
        if of_bias.types[0].shape != (channels,):
            return
        wide = gradient
        if self.types[gradient].dtype is not DType.F32:
            wide = self.add(node, "convert", gradient, dtype=DType.F32)
        found = self.add(node, "sum", wide, dims=(0, 2, 3))
        self.finish(of_bias, "convert", found, dtype=of_bias.types[0].dtype)

    def _turned(self, node: Node, weight: int) -> int:
        """Appends a weight in memory as (down, across, channels); a frozen one may be there so."""
        channels, _, *sides = self.types[weight].shape
        turned = self.add(node, "reshape", weight, shape=(channels, *sides))
        turned = self.add(node, "permute", turned, dims=(1, 2, 0))
        if has_window_order(self._facts, weight):
            return turned
        return self.add(node, "convert", turned, dtype=self.types[weight].dtype)

    def _by_template(
        self,
        node: Node,
        template: str,
        values: tuple[int, ...],
        results: tuple[int, ...],
        types: tuple[TensorType, ...],
    ) -> None:
        attrs = {
            "is_contraction": False,
            "node": node.attr("node"),
            "op": template,
            "window": node.attr("window"),
        }
        made = replace(
            node,
            args=tuple(map(Ref, values)),
            attrs=normal_attrs(attrs),
            results=results,
            types=types,
        )
        self.nodes.append(made)


def _with_padding(node: Node, low: tuple[int, int]) -> Node:
    """A convolution whose windows begin so many pixels further outside."""
    window = node.attr("window")
    assert isinstance(window, tuple)  # it was chosen
    strides, padding, rest = window[:2], window[2:4], window[4:]
    moved = tuple(int(str(own)) + more for own, more in zip(padding, low, strict=True))
    attrs = {**dict(node.attrs), "window": (*strides, *moved, *rest)}
    return replace(node, attrs=normal_attrs(attrs))
