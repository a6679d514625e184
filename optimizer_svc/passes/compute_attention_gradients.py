"""Turns chosen gradients of attention into prims: five products of matrices for each head.

    p  = exp(k @ q.T * scale + mask - log-sum-exps)
    ds = p * (v @ grad.T - sum(grad * output; width))
    gradients: of v: p @ grad, of k: ds @ q * scale, of q: ds.T @ k * scale,
               of a mask: ds, summed over the axes along which the mask repeats

Scores are (keys, queries) here, so that the terms of both sums over queries are adjacent in memory.
If p and ds are rounded for instructions that multiply pairs of adjacent terms, the third product is
computed as k.T @ ds, with a copy of the keys as rows of terms.

A query that sees no key has shares of 0: its log-sum-exp is 0 or inf, its scores are -inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.ir.contraction_choice import ContractionChoice, GradientValues
from optimizer_svc.ir.contraction_writer import (
    ContractionWriter,
    one_result,
    with_contractions,
)

_Shape = tuple[Expr, ...]


def compute_attention_gradients(graph: Graph, gradients: ContractionChoice) -> Graph:
    """The graph with the chosen gradients of attention as prims."""
    return with_contractions(graph, gradients, _Writer)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Extents of attention, and its operands with the queries' heads in groups.

    Shapes: grad and output (b, g, h, q, e), query (b, g, h, q, d), sums (b, g, h, q)
    """

    scores: _Shape
    grad: int
    output: int
    query: int
    sums: int

    @property
    def queries(self) -> _Shape:
        """The extents (b, g, h, q)."""
        return (*self.scores[:3], self.scores[4])


class _Writer(ContractionWriter):
    """Each gradient ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends the gradients of queries, keys and values."""
        spend(64)
        grad, output, sums, query, key, value, *masks = operands(node)
        batch, heads, queries, _ = self.types[query].shape
        groups, keys = self.types[key].shape[1:3]
        rows = (batch, groups, as_expr(heads.constant // groups.constant))
        own = _Heads(
            (*rows, keys, queries),
            *(self._grouped(node, part, rows) for part in (grad, output, query, sums)),
        )
        made = self.choice.gradients[node.results[0]]
        self._shares(node, own, key, masks)
        self._scores(node, own, value, made)
        self._of_queries(node, own, key, made)
        self._of_keys(node, 1, made.scores, own.query)
        self._of_keys(node, 2, made.shares, own.grad)
        if node.results[0] in self.choice.mask_gradients:
            self._of_mask(one_result(node, 3), made)

    def _shares(self, node: Node, own: _Heads, key: int, masks: list[int]) -> None:
        """Appends the weights of values (b, g, h, s, q)."""
        found = self._product(node, key, own.query, own)
        found = self.add(node, "mul", found, self.filled(node, node.attr("scale"), own.scores))
        for mask in masks:
            found = self.add(node, "add", found, self._spread_mask(node, mask, own))
        if node.attr("is_causal") is True:
            found = self._hide_later(node, found, own)
        sums = self._over_keys(node, own.sums, own)
        apart = self.add(node, "sub", found, sums)
        self._store(self.choice.gradients[node.results[0]].shares, node, "exp", apart)

    def _scores(self, node: Node, own: _Heads, value: int, made: GradientValues) -> None:
        """Appends the gradients of the scores (b, g, h, s, q), before they are scaled."""
        parts = (self.wide(node, part) for part in (own.grad, own.output))
        mean = self.add(node, "sum", self.add(node, "mul", *parts), dims=(4,))
        found = self._product(node, value, own.grad, own)
        found = self.add(node, "sub", found, self._over_keys(node, mean, own))
        self._store(made.scores, node, "mul", self.wide(node, made.shares), found)

    def _product(self, node: Node, keys: int, rows: int, own: _Heads) -> int:
        """Keys or values (b, g, s, d) times rows (b, g, h, q, d): (b, g, h, s, q), f32."""
        shape = (*own.scores, self.types[keys].shape[3])
        left = self._spread(node, self.wide(node, keys), shape, (0, 1, 3, 5))
        right = self._spread(node, self.wide(node, rows), shape, (0, 1, 2, 4, 5))
        return self.add(node, "sum", self.add(node, "mul", left, right), dims=(5,))

    def _of_queries(self, node: Node, own: _Heads, key: int, made: GradientValues) -> None:
        """Appends the gradient of the queries."""
        batch, groups, heads, keys, queries = own.scores
        width = self.types[key].shape[3]
        scores = self.wide(node, made.scores)
        if node.results[0] in self.choice.rounded:
            self.add_as(made.keys, node, "permute", key, dims=(0, 1, 3, 2))
            shape = (batch, groups, heads, width, queries, keys)
            left = self._spread(node, self.wide(node, made.keys), shape, (0, 1, 3, 5))
            scores = self.add(node, "permute", scores, dims=(0, 1, 2, 4, 3))
            right = self._spread(node, scores, shape, (0, 1, 2, 4, 5))
            self.add(node, "sum", self.add(node, "mul", left, right), dims=(5,))
            found = self.name_last(made.queries)
            found = self.add(node, "permute", found, dims=(0, 4, 1, 2, 3))
        else:
            shape = (batch, queries, groups, heads, width, keys)
            scores = self.add(node, "permute", scores, dims=(0, 4, 1, 2, 3))
            left = self._spread(node, scores, shape, (0, 1, 2, 3, 5))
            wide = self.add(node, "permute", self.wide(node, key), dims=(0, 1, 3, 2))
            right = self._spread(node, wide, shape, (0, 2, 4, 5))
            self.add(node, "sum", self.add(node, "mul", left, right), dims=(5,))
            found = self.name_last(made.queries)
        self._finish(node, 0, self._scaled(node, found))

    def _of_keys(self, node: Node, number: int, weights: int, rows: int) -> None:
        """Appends the gradient of keys or values: the sums of rows (b, g, h, q, d) by weights.

        One product has one axis of terms, so each head has sums of its own.
        """
        batch, groups, heads, keys, queries = self.types[weights].shape
        width = self.types[rows].shape[4]
        shape = (batch, keys, groups, heads, width, queries)
        left = self.add(node, "permute", self.wide(node, weights), dims=(0, 3, 1, 2, 4))
        left = self._spread(node, left, shape, (0, 1, 2, 3, 5))
        right = self.add(node, "permute", self.wide(node, rows), dims=(0, 1, 2, 4, 3))
        right = self._spread(node, right, shape, (0, 2, 3, 4, 5))
        found = self.add(node, "sum", self.add(node, "mul", left, right), dims=(5,))
        if number == 1:
            found = self._scaled(node, found)
        if heads.constant > 1:
            found = self.add(node, "sum", found, dims=(3,))
        self._finish(node, number, found)

    def _of_mask(self, node: Node, made: GradientValues) -> None:
        """Appends the gradient of the mask, which is the only result of `node`.

        Scores (b, g, h, s, q) are summed over the axes along which the mask repeats.
        """
        (tensor,), shape = node.types, self.types[made.scores].shape
        extents = (*(ONE,) * (4 - tensor.rank), *tensor.shape)
        axes = ((0,), (1, 2), (4,), (3,))
        repeated = [axis for own, n in zip(axes, extents, strict=True) if n is ONE for axis in own]
        summed = tuple(sorted(axis for axis in repeated if shape[axis] is not ONE))
        found = made.scores
        if summed:
            self.add(node, "sum", self.wide(node, found), dims=summed)
            found = self.name_last(made.mask)
        if self.types[found].dtype is not tensor.dtype:
            found = self.add(node, "convert", found, dtype=tensor.dtype)
        kept = [axis for axis in (0, 1, 2, 4, 3) if axis not in summed]
        found = self.add(
            node, "permute", found, dims=tuple(sorted(kept).index(axis) for axis in kept)
        )
        if made.mask in self.choice.strides:
            found = self.name_last(made.mask)
        self.finish(node, "reshape", found, shape=tensor.shape)

    def _finish(self, node: Node, number: int, found: int) -> None:
        """Appends a gradient with its old result, from (b, length, heads..., width)."""
        tensor = node.types[number]
        one = one_result(node, number)
        batch, heads, length, width = tensor.shape
        found = self.add(node, "reshape", found, shape=(batch, length, heads, width))
        found = self.add(node, "convert", found, dtype=tensor.dtype)
        self.finish(one, "permute", found, dims=(0, 2, 1, 3))

    def _store(self, result: int, node: Node, op: str, *values: int) -> None:
        """Appends what a product reads: the result of `op`, rounded if factors are."""
        if node.results[0] in self.choice.rounded:
            dtype, found = node.types[0].dtype, self.add(node, op, *values)
            self.add_as(result, node, "convert", found, dtype=dtype, is_cast=True)
        else:
            self.add_as(result, node, op, *values)

    def _scaled(self, node: Node, found: int) -> int:
        return self.add(
            node, "mul", found, self.filled(node, node.attr("scale"), self.types[found].shape)
        )

    def _grouped(self, node: Node, value: int, rows: _Shape) -> int:
        """A value (b, heads, ...) as (b, g, h, ...)."""
        shape = (*rows, *self.types[value].shape[2:])
        return self.add(node, "reshape", value, shape=shape)

    def _over_keys(self, node: Node, value: int, own: _Heads) -> int:
        """A number for each query (b, g, h, q) for all keys."""
        return self._spread(node, value, own.scores, (0, 1, 2, 4))

    def _hide_later(self, node: Node, scores: int, own: _Heads) -> int:
        """The scores of a causal mask: -inf for keys behind a query's own number."""
        shape = own.scores[3:]
        numbers = []
        for axis, length in enumerate(shape):
            numbered = self.add(node, "iota", dtype=DType.I64, length=length)
            numbers.append(self._spread(node, numbered, shape, (axis,)))
        key, query = numbers
        is_seen = self._spread(node, self.add(node, "ge", query, key), own.scores, (3, 4))
        hidden = self.filled(node, -math.inf, own.scores)
        return self.add(node, "where", is_seen, scores, hidden)

    def _spread_mask(self, node: Node, mask: int, own: _Heads) -> int:
        """What is added to scores; a mask has up to four axes (b, heads, q, s), each or 1."""
        extents = self.types[mask].shape
        batch, heads, queries, keys = (*(ONE,) * (4 - len(extents)), *extents)
        divided = (ONE, ONE) if heads is ONE else own.scores[1:3]
        shape = (batch, *divided, queries, keys)
        viewed = self.add(node, "reshape", self.wide(node, mask), shape=shape)
        viewed = self.add(node, "permute", viewed, dims=(0, 1, 2, 4, 3))
        return self._spread(node, viewed, own.scores, (0, 1, 2, 3, 4))

    def _spread(self, node: Node, value: int, shape: _Shape, dims: tuple[int, ...]) -> int:
        return self.add(node, "broadcast_in_dim", value, shape=shape, dims=dims)
