"""Turns the chosen products into sums, which become kernels.

    extern mm(x, permute(w))  ->  cat(sum(x[0] * w; k), sum(x[1] * w; k), ...)

The sums of all rows of x have one domain, so one loop over a row of the weight computes them, and
the weight is read once. Products in tiles have one sum:

    extern mm(x, permute(w))  ->  sum(x over (m, -, k) * w over (-, n, k); k)

Sums in slices are added by a second sum, which another kernel computes, in order:

    extern mm(x, permute(w))  ->  sum(sum(x over (s, m, -, k/s) * w over (s, -, n, k/s); k/s); s)

If x has one row or results are computed in tiles, what reads the product is fused with it. Products
of 16 bits and their biases are summed in f32 and rounded once, as in the library.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import graph_facts
from optimizer_svc.ir.prims_writer import PrimsWriter
from optimizer_svc.ir.products import Product, Products


def compute_products(graph: Graph, products: Products) -> Graph:
    """The graph with the chosen products as prims."""
    if not products.by_result:
        return graph
    writer = _Writer(graph_facts(graph))
    for node in graph.nodes:
        product = products.by_result.get(node.results[0]) if node.results else None
        if product is None:
            writer.nodes.append(node)
        elif product.is_tiled:
            writer.compute_tiled(node, product)
        else:
            writer.compute(node, product)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """A computed product ends in a node with the old result."""

    def compute(self, node: Node, product: Product) -> None:
        """Appends a product as one sum for each of its rows."""
        (result,) = node.types
        rows, n = result.shape[0].constant, result.shape[1]
        spend(8 * rows)
        x = self._converted(node, product.x, DType.F32)
        weight = self._converted(node, product.weight, DType.F32)
        if product.has_columns:
            weight = self.add(node, "permute", weight, dims=(1, 0))
        totals = [self._row(node, x, row, weight) for row in range(rows)]
        if product.bias is not None:
            bias = self._converted(node, product.bias, DType.F32)
            totals = [self.add(node, "add", total, bias) for total in totals]
        totals = [self._converted(node, total, result.dtype) for total in totals]
        if rows == 1:
            self.finish(node, "reshape", totals[0], shape=(ONE, n))
            return
        shaped = [self.add(node, "reshape", total, shape=(ONE, n)) for total in totals]
        self.finish(node, "cat", *shaped, dim=0)

    def compute_tiled(self, node: Node, product: Product) -> None:
        """Appends a product as one sum over rows and columns, or as a sum of its slices."""
        (result,) = node.types
        spend(8)
        x = self._converted(node, product.x, DType.F32)
        weight = self._converted(node, product.weight, DType.F32)
        if product.has_columns:
            weight = self.add(node, "permute", weight, dims=(1, 0))
        slices = () if product.slices == 1 else (as_expr(product.slices),)
        if slices:
            x, weight = (self._sliced(node, value, product.slices) for value in (x, weight))
        at, k = len(slices), self.types[weight].shape[-1]
        terms = [
            self.add(
                node,
                "broadcast_in_dim",
                value,
                shape=(*slices, *result.shape, k),
                dims=(*range(at), axis, at + 2),
            )
            for value, axis in ((x, at), (weight, at + 1))
        ]
        total = self.add(node, "sum", self.add(node, "mul", *terms), dims=(at + 2,))
        if slices:
            total = self.add(node, "sum", total, dims=(0,))
        if product.bias is not None:
            bias = self._converted(node, product.bias, DType.F32)
            spread = self.add(node, "broadcast_in_dim", bias, shape=result.shape, dims=(1,))
            total = self.add(node, "add", total, spread)
        self.finish(node, "convert", total, dtype=result.dtype)

    def _sliced(self, node: Node, value: int, slices: int) -> int:
        """A matrix (m, k) as (slices, m, k / slices)."""
        rows, k = self.types[value].shape
        shape = (rows, as_expr(slices), as_expr(k.constant // slices))
        parted = self.add(node, "reshape", value, shape=shape)
        return self.add(node, "permute", parted, dims=(1, 0, 2))

    def _row(self, node: Node, x: int, row: int, weight: int) -> int:
        """One row (n) of a product, without its bias."""
        n, k = self.types[weight].shape
        starts, limits = (as_expr(row), ZERO), (as_expr(row + 1), k)
        alone = self.add(node, "slice", x, starts=starts, limits=limits, steps=(ONE, ONE))
        spread = self.add(node, "broadcast_in_dim", alone, shape=(n, k), dims=(0, 1))
        terms = self.add(node, "mul", spread, weight)
        return self.add(node, "sum", terms, dims=(1,))

    def _converted(self, like: Node, value: int, dtype: DType) -> int:
        if self.types[value].dtype is dtype:
            return value
        return self.add(like, "convert", value, dtype=dtype)
