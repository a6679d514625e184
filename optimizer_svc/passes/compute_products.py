"""Turns the chosen products into sums, which become kernels.

    extern mm(x, permute(w))  ->  cat(sum(x[0] * w; k), sum(x[1] * w; k), ...)

The sums of all rows of x have one domain, so one loop over a row of the weight computes them, and
the weight is read once. If the target computes products in tiles, several rows have one sum:

    extern mm(x, permute(w))  ->  sum(x over (m, -, k) * w over (-, n, k); k)

If x has one row or results are computed in tiles, what reads the product is fused with it. Products
of 16 bits are summed in f32 and rounded once, as in the library.
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.ir.prims_writer import PrimsWriter
from optimizer_svc.ir.products import Products


def compute_products(graph: Graph, products: Products) -> Graph:
    """The graph with the chosen products as prims."""
    if not products.weights:
        return graph
    writer = _Writer(graph_facts(graph))
    for node in graph.nodes:
        weight = products.weights.get(node.results[0]) if node.results else None
        if weight is None:
            writer.nodes.append(node)
        elif products.are_tiled and node.types[0].shape[0] is not ONE:
            writer.compute_tiled(node, weight)
        else:
            writer.compute(node, weight)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """A computed product ends in a node with the old result."""

    def compute(self, node: Node, weight: int) -> None:
        """Appends a product as one sum for each of its rows."""
        (result,) = node.types
        rows, n = result.shape[0].constant, result.shape[1]
        spend(8 * rows)
        x = self._converted(node, operands(node)[0], DType.F32)
        wide = self._converted(node, weight, DType.F32)
        totals = [self._row(node, x, row, wide) for row in range(rows)]
        totals = [self._converted(node, total, result.dtype) for total in totals]
        if rows == 1:
            self.finish(node, "reshape", totals[0], shape=(ONE, n))
            return
        shaped = [self.add(node, "reshape", total, shape=(ONE, n)) for total in totals]
        self.finish(node, "cat", *shaped, dim=0)

    def compute_tiled(self, node: Node, weight: int) -> None:
        """Appends a product as one sum over rows and columns."""
        (result,) = node.types
        n, k = self.types[weight].shape
        spend(8)
        terms = [
            self.add(
                node,
                "broadcast_in_dim",
                self._converted(node, value, DType.F32),
                shape=(result.shape[0], n, k),
                dims=dims,
            )
            for value, dims in ((operands(node)[0], (0, 2)), (weight, (1, 2)))
        ]
        total = self.add(node, "sum", self.add(node, "mul", *terms), dims=(2,))
        self.finish(node, "convert", total, dtype=result.dtype)

    def _row(self, node: Node, x: int, row: int, weight: int) -> int:
        """One row (n) of a product."""
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
