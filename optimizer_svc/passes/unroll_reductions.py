"""Writes reductions over few elements across memory as pointwise operations on slices.

    sum(x[n, 4, c]; 1)  ->  (x[:, 0] + x[:, 1]) + (x[:, 2] + x[:, 3]) + 0

Neighbours are combined first, in a fixed order, so a sum of 2^k elements rounds k times. Elements
of 16 bits are combined in f32. A sum of zeros is 0.0, also if all of them are -0.0, as in the
framework. `optimizer_svc/analysis/short_reductions.py` decides which reductions are written so.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.graph_facts import graph_facts, ints_attr, operands
from optimizer_svc.analysis.short_reductions import COMBINED_BY, short_reductions
from optimizer_svc.ir.prims_writer import PrimsWriter
from optimizer_svc.ir.products import Products


def unroll_reductions(graph: Graph, target: TargetFacts, products: Products) -> Graph:
    """The graph with short reductions as operations on slices.

    `products` are not in the graph yet, but the numbers of their values are taken.
    """
    if target.memory.most_unrolled_elems is None:
        return graph
    if not any(node.op in COMBINED_BY for node in graph.nodes):
        return graph
    facts = graph_facts(graph)
    chosen = short_reductions(facts, target)
    if not chosen:
        return graph
    writer = _Writer(facts, products.ordered)
    for node in graph.nodes:
        if node.results and node.results[0] in chosen:
            writer.unroll(node)
        else:
            writer.nodes.append(node)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """A reduction that is unrolled ends in a node with the old result."""

    def unroll(self, node: Node) -> None:
        """Appends a reduction as operations on slices."""
        op, dtype = COMBINED_BY[node.op], node.types[0].dtype
        wide = dtype.compute_dtype
        values = self._slices(node)
        spend(8 * len(values))
        if wide is not dtype:
            values = [self.add(node, "convert", value, dtype=wide) for value in values]
        is_float_sum = node.op == "sum" and dtype.is_float
        while len(values) > (1 if is_float_sum or wide is not dtype else 2):
            pairs = [values[at : at + 2] for at in range(0, len(values), 2)]
            values = [self.add(node, op, *pair) if len(pair) > 1 else pair[0] for pair in pairs]
        if is_float_sum:
            shape = node.types[0].shape
            values.append(self.add(node, "full", dtype=wide, shape=shape, value=0.0))
        if wide is dtype:
            self.finish(node, op, *values)
            return
        total = self.add(node, op, *values) if is_float_sum else values[0]
        self.finish(node, "convert", total, dtype=dtype)

    def _slices(self, node: Node) -> list[int]:
        """The slices of the operand that are combined, in row-major order, without their axes."""
        (value,), dims = operands(node), ints_attr(node, "dims")
        shape = self.types[value].shape
        found = []
        for places in product(*(range(shape[dim].constant) for dim in dims)):
            starts, limits = [ZERO for _ in shape], list(shape)
            for dim, place in zip(dims, places, strict=True):
                starts[dim], limits[dim] = as_expr(place), as_expr(place + 1)
            attrs = {"starts": tuple(starts), "limits": tuple(limits)}
            alone = self.add(node, "slice", value, steps=(ONE,) * len(shape), **attrs)
            found.append(self.add(node, "reshape", alone, shape=node.types[0].shape))
        return found
