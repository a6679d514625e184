"""Turns chosen batched products into sums, which become kernels.

    extern bmm(x, y)  ->  sum(x over (b, m, -, k) * permute(y) over (b, -, n, k); k)

What reads the result is fused with it. Products of 16 bits are summed in f32 and rounded once.
"""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.contraction_writer import ContractionWriter, with_contractions


def compute_batched_products(graph: Graph, batched: ContractionChoice) -> Graph:
    """The graph with the chosen batched products as prims."""
    return with_contractions(graph, batched, _Writer)


class _Writer(ContractionWriter):
    """A computed product ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends a batched product.

        Shapes: x: (b, m, k), y: (b, k, n)
        """
        spend(16)
        x, y = (self.wide(node, value) for value in operands(node))
        batches, rows, terms = self.types[x].shape
        shape = (batches, rows, self.types[y].shape[2], terms)
        turned = self.add(node, "permute", y, dims=(0, 2, 1))
        left = self.add(node, "broadcast_in_dim", x, shape=shape, dims=(0, 1, 3))
        right = self.add(node, "broadcast_in_dim", turned, shape=shape, dims=(0, 2, 3))
        products = self.add(node, "mul", left, right)
        if node.types[0].dtype is DType.F32:
            self.finish(node, "sum", products, dims=(3,))
            return
        found = self.add(node, "sum", products, dims=(3,))
        self.finish(node, "convert", found, dtype=node.types[0].dtype)
