"""Turns chosen attention into prims: the scores, their softmax, and the sum of values.

    extern attention(q, k, v, mask)  ->  sum(exp(s - max(s)) * v; keys) / sum(exp(s - max(s)); keys)
    with s = sum(q * k; width) * scale + mask

in f32. Queries of the heads that share keys are an axis of their own, so that kernels read keys and
values as they are. As in the framework, a query that may see no key has a result of zeros.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.ir.attention import AttentionChoice
from optimizer_svc.ir.prims_writer import PrimsWriter


def compute_attention(graph: Graph, attention: AttentionChoice) -> Graph:
    """The graph with the chosen attention as prims."""
    if not attention.results:
        return graph
    writer = _Writer(graph_facts(graph))
    for node in graph.nodes:
        if attention.results.isdisjoint(node.results):
            writer.nodes.append(node)
        else:
            alone = replace(node, results=node.results[:1], types=node.types[:1])
            writer.compute(alone)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """Computed attention ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends attention of one query for each head.

        Shapes: b: batch, g: heads of keys, h: heads of a group, s: keys, d: width of a head
        """
        spend(32)
        query, key, value, *masks = operands(node)
        (batch, heads, _, width), groups = self.types[query].shape, self.types[key].shape[1]
        keys, depth = self.types[value].shape[2:]
        shape = (batch, groups, as_expr(heads.constant // groups.constant))
        rows = self.add(node, "reshape", self._wide(node, query), shape=(*shape, width))
        scores = self._products(node, rows, self._wide(node, key), (*shape, keys, width))
        scores = self.add(node, "sum", scores, dims=(4,))
        scale = self._number(node, node.attr("scale"), (*shape, keys))
        scores = self.add(node, "mul", scores, scale)
        for mask in masks:
            spread = self._spread_mask(node, mask, (*shape, keys), heads)
            scores = self.add(node, "add", scores, spread)
        shares, total = self._softmax(node, scores, (*shape, keys))
        terms = self._weighted(node, shares, self._wide(node, value), (*shape, keys, depth))
        result = self.add(node, "sum", terms, dims=(3,))
        result = self.add(node, "div", result, self._spread(node, total, (*shape, depth)))
        result = self.add(node, "reshape", result, shape=node.types[0].shape)
        self.finish(node, "convert", result, dtype=node.types[0].dtype)

    def _softmax(self, node: Node, scores: int, shape: tuple[Expr, ...]) -> tuple[int, int]:
        """The exponentials (b, g, h, s) relative to the largest, and their sums (b, g, h)."""
        top = self.add(node, "amax", scores, dims=(3,))
        least = self._number(node, -math.inf, shape[:3])
        sees_nothing = self.add(node, "eq", top, least)
        top = self.add(node, "where", sees_nothing, self._number(node, 0.0, shape[:3]), top)
        apart = self.add(node, "sub", scores, self._spread(node, top, shape))
        shares = self.add(node, "exp", apart)
        total = self.add(node, "sum", shares, dims=(3,))
        one = self._number(node, 1.0, shape[:3])
        return shares, self.add(node, "where", sees_nothing, one, total)

    def _products(self, node: Node, rows: int, keys: int, shape: tuple[Expr, ...]) -> int:
        """Queries (b, g, h, d) times keys (b, g, s, d), (b, g, h, s, d)."""
        left = self.add(node, "broadcast_in_dim", rows, shape=shape, dims=(0, 1, 2, 4))
        right = self.add(node, "broadcast_in_dim", keys, shape=shape, dims=(0, 1, 3, 4))
        return self.add(node, "mul", left, right)

    def _weighted(self, node: Node, shares: int, values: int, shape: tuple[Expr, ...]) -> int:
        """Shares (b, g, h, s) times values (b, g, s, d), (b, g, h, s, d)."""
        left = self.add(node, "broadcast_in_dim", shares, shape=shape, dims=(0, 1, 2, 3))
        right = self.add(node, "broadcast_in_dim", values, shape=shape, dims=(0, 1, 3, 4))
        return self.add(node, "mul", left, right)

    def _spread_mask(self, node: Node, mask: int, shape: tuple[Expr, ...], heads: Expr) -> int:
        """What is added to scores, (b, g, h, s); a mask has up to four axes (b, heads, 1, s)."""
        extents = self.types[mask].shape
        batch, own_heads, _, keys = (*(ONE,) * (4 - len(extents)), *extents)
        divided = shape[1:3] if own_heads is heads and heads is not ONE else (ONE, ONE)
        viewed = self.add(node, "reshape", self._wide(node, mask), shape=(batch, *divided, keys))
        return self.add(node, "broadcast_in_dim", viewed, shape=shape, dims=(0, 1, 2, 3))

    def _spread(self, node: Node, value: int, shape: tuple[Expr, ...]) -> int:
        return self.add(node, "broadcast_in_dim", value, shape=shape, dims=(0, 1, 2))

    def _number(self, node: Node, number: object, shape: tuple[Expr, ...]) -> int:
        assert isinstance(number, float)  # the chooser asks for a scale
        return self.add(node, "full", dtype=DType.F32, shape=shape, value=number)

    def _wide(self, node: Node, value: int) -> int:
        if self.types[value].dtype is DType.F32:
            return value
        return self.add(node, "convert", value, dtype=DType.F32)
