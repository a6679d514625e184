"""Turns chosen convolutions into sums over the channels, which become kernels.

    extern convolution(x, w, b)  ->  sum(x over (n, -, c, h, w) * w over (-, k, c, -, -); c) + b

in f32. What reads the result is fused with it. On GPUs, it is a product of the matrix of pixels,
which instructions for matrices take:

    extern convolution(x, w, b)  ->  sum(x over (n h w, -, c) * w over (-, k, c); c) + b

Others may stay extern, but in f32:

    extern convolution(x, w)  ->  convert(extern convolution(convert(x), convert(w)))
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import product_of
from kernelfarm.ir.graph_ir import Graph, Node, Ref
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.contraction_writer import ContractionWriter, with_contractions
from optimizer_svc.ir.prims_writer import PrimsWriter


def compute_convolutions(graph: Graph, convolutions: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as prims, and others in f32."""
    computed = with_contractions(graph, convolutions, _Writer)
    return _with_wide_externs(computed, convolutions)


def _with_wide_externs(graph: Graph, convolutions: ContractionChoice) -> Graph:
    if not convolutions.widened:
        return graph
    writer = PrimsWriter(graph_facts(graph))
    for node in graph.nodes:
        if convolutions.widened.isdisjoint(node.results):
            writer.nodes.append(node)
        else:
            _widen(writer, node)
    return replace(graph, nodes=tuple(writer.nodes))


def _widen(writer: PrimsWriter, node: Node) -> None:
    """Appends an extern node in f32, between conversions."""
    spend(16)
    args = tuple(Ref(writer.add(node, "convert", v, dtype=DType.F32)) for v in operands(node))
    types = tuple(replace(tensor, dtype=DType.F32) for tensor in node.types)
    results = tuple(writer.fresh(tensor) for tensor in types)
    writer.nodes.append(replace(node, args=args, results=results, types=types))
    for found, result, tensor in zip(results, node.results, node.types, strict=True):
        own = replace(node, results=(result,), types=(tensor,))
        writer.finish(own, "convert", found, dtype=tensor.dtype)


class _Writer(ContractionWriter):
    """A computed convolution ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends a convolution with a window of one pixel.

        Shapes: n: images, k: channels of the result, c: channels, h: height, w: width
        """
        spend(16)
        if node.results[0] in self.choice.rows:
            self._multiply(node, self.choice.rows[node.results[0]])
            return
        image, weight, *biases = operands(node)
        images, channels, height, width = self.types[image].shape
        results = self.types[weight].shape[0]
        shape = (images, results, channels, height, width)
        wide = self.wide(node, image)
        left = self.add(node, "broadcast_in_dim", wide, shape=shape, dims=(0, 2, 3, 4))
        wide = self.wide(node, weight)
        matrix = self.add(node, "reshape", wide, shape=(results, channels))
        right = self.add(node, "broadcast_in_dim", matrix, shape=shape, dims=(1, 2))
        terms = self.add(node, "mul", left, right)
        is_narrow = node.types[0].dtype is not DType.F32
        if not biases and not is_narrow:
            self.finish(node, "sum", terms, dims=(2,))
            return
        found = self.add(node, "sum", terms, dims=(2,))
        for bias in biases:
            wide = self.wide(node, bias)
            extents = self.types[found].shape
            spread = self.add(node, "broadcast_in_dim", wide, shape=extents, dims=(1,))
            if not is_narrow:
                self.finish(node, "add", found, spread)
                return
            found = self.add(node, "add", found, spread)
        self.finish(node, "convert", found, dtype=node.types[0].dtype)

    def _multiply(self, node: Node, rows: int) -> None:
        """Appends a convolution as a product by the value `rows`: pixels, with their channels.

        Shapes: p: pixels of all images, k: channels of the result, c: channels
        """
        image, weight, *biases = operands(node)
        images, channels, *sides = self.types[image].shape
        results = self.types[weight].shape[0]
        pixels = product_of([images, *sides])
        turned = self.add(node, "permute", image, dims=(0, 2, 3, 1))
        self.add_as(rows, node, "reshape", turned, shape=(pixels, channels))
        matrix = self.add(node, "reshape", weight, shape=(results, channels))
        shape = (pixels, results, channels)
        terms = (
            self.add(node, "broadcast_in_dim", self.wide(node, value), shape=shape, dims=dims)
            for value, dims in ((rows, (0, 2)), (matrix, (1, 2)))
        )
        found = self.add(node, "sum", self.add(node, "mul", *terms), dims=(2,))
        for bias in biases:
            extents = self.types[found].shape
            spread = self.add(
                node, "broadcast_in_dim", self.wide(node, bias), shape=extents, dims=(1,)
            )
            found = self.add(node, "add", found, spread)
        found = self.add(node, "convert", found, dtype=node.types[0].dtype)
        found = self.add(node, "reshape", found, shape=(images, *sides, results))
        self.finish(node, "permute", found, dims=(0, 3, 1, 2))
