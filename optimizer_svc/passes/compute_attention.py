"""Turns chosen attention into prims: the scores, their softmax, and the sum of values.

    extern attention(q, k, v, mask)  ->  sum(exp(s - max(s)) * v; keys) / sum(exp(s - max(s)); keys)
    with s = sum(q * k; width) * scale + mask

in f32. With one query for each head and a mask, kernels read no keys that it hides, where it is
-inf, and no values whose shares are 0: these count as zeros. Memory limits such attention, and a
cache is longer than what it holds.

Queries of the heads that share keys are an axis of their own, so that kernels read keys and
values as they are. As in the framework, a query that may see no key has a result of zeros, and
with a causal mask, query number i sees the keys up to number i.

If a template kernel divides the keys in parts, prims join what it gives for each part: the largest
score, the sum of weights, and the weighted sum of values. Template kernels may also compute
attention of several queries alone, and its gradients: those of queries are sums in f32, which prims
scale and round. Both forward kernels may read keys and values in pages of a cache, by the numbers
of a table, instead of the copies that the graph gathers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, ceil_div
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType, contiguous_strides
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.analysis.page_tables import PagedOperands
from optimizer_svc.analysis.templates import (
    ATTENTION_BACKWARD,
    ATTENTION_PARTS,
    FLASH_ATTENTION,
    FLASH_GRADIENTS,
    FLASH_MASK_GRADIENT,
    PAGED_ATTENTION_PARTS,
    PAGED_FLASH_ATTENTION,
)
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.contraction_writer import (
    ContractionWriter,
    one_result,
    with_contractions,
)
from optimizer_svc.kernels.flash_gradients import STATISTICS_BLOCK

_Shape = tuple[Expr, ...]


def compute_attention(graph: Graph, attention: ContractionChoice) -> Graph:
    """The graph with the chosen attention as prims."""
    return with_contractions(graph, attention, _Writer)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Extents: `rows` are those of the queries, (b, g, h), or (b, g, h, q) with several for a head.

    b: batch, g: heads of keys, h: heads of a group, q: queries, s: keys, d: width of a head
    """

    rows: _Shape
    heads: Expr
    queries: Expr
    keys: Expr

    @property
    def scores(self) -> _Shape:
        """The extents of the scores: a row for each query."""
        return (*self.rows, self.keys)

    @property
    def row_dims(self) -> tuple[int, ...]:
        """The axes of the queries."""
        return tuple(range(len(self.rows)))


def _stated(node: Node, *names: str) -> dict[str, Arg]:
    """The attributes of these names that a node has."""
    found = {name: node.attr(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


class _Writer(ContractionWriter):
    """Computed attention ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends attention."""
        spend(32)
        if node.results[0] in self.choice.parts:
            self._join_parts(node, self.choice.parts[node.results[0]])
            return
        if node.results[0] in self.choice.whole:
            is_backward = node.attr("op") == ATTENTION_BACKWARD
            (self._compute_gradients if is_backward else self._compute_whole)(node)
            return
        query, key, value, *masks = operands(node)
        (batch, heads, queries, width), groups = self.types[query].shape, self.types[key].shape[1]
        keys = self.types[value].shape[2]
        rows = (batch, groups, as_expr(heads.constant // groups.constant))
        sizes = _Sizes(rows if queries is ONE else (*rows, queries), heads, queries, keys)
        found = self.add(node, "reshape", self.wide(node, query), shape=(*sizes.rows, width))
        scores = self._scores(node, found, self.wide(node, key), sizes)
        for mask in masks:
            scores = self._mask(node, scores, self._spread_mask(node, mask, sizes), sizes)
        if node.attr("is_causal") is True:
            scores = self._hide_later(node, scores, sizes)
        if node.results[0] in self.choice.scores:
            scores = self.name_last(self.choice.scores[node.results[0]].scores)
        shares, total, top = self._softmax(node, scores, sizes)
        wide, first = self.wide(node, value), one_result(node, 0)
        if queries is ONE:
            self._finish_one(first, shares, total, wide)
        else:
            self._finish_several(first, shares, total, wide)
        if node.results[0] in self.choice.saving:
            sums = self.add(node, "add", top, self.add(node, "log", total))
            self.finish(one_result(node, 1), "reshape", sums, shape=node.types[1].shape)

    def _compute_whole(self, node: Node) -> None:
        """Appends attention by one template kernel, whose result has the heads of a query together.

        The product behind attention reads it so. If log-sum-exps are read, the kernel gives them.
        """
        batch, heads, queries, depth = node.types[0].shape
        shape = (batch, queries, heads, depth)
        found = self.fresh(TensorType(node.types[0].dtype, shape, contiguous_strides(shape)))
        attrs = _stated(node, "is_causal", "node", "scale")
        attrs |= {"is_contraction": False, "op": FLASH_ATTENTION}
        if (pages := self.choice.pages.get(node.results[0])) is not None:
            keys = self.types[operands(node)[1]].shape[2]
            attrs |= {"op": PAGED_FLASH_ATTENTION, "length": keys}
            node = replace(node, args=tuple(map(Ref, self._in_pages(node, pages))))
        # A second result that nothing reads has no shape.
        count = 2 if any(t.shape == (batch, heads, queries) for t in node.types[1:]) else 1
        results = (found, *node.results[1:count])
        types = (self.types[found], *node.types[1:count])
        self.nodes.append(replace(node, attrs=normal_attrs(attrs), results=results, types=types))
        self.finish(one_result(node, 0), "permute", found, dims=(0, 2, 1, 3))

    def _compute_gradients(self, node: Node) -> None:
        """Appends gradients by template kernels, whose results have the heads of a row together."""
        grad, output, sums, *given = operands(node)
        attrs = _stated(node, "is_causal", "node", "scale")
        attrs |= {"is_contraction": False, "op": FLASH_GRADIENTS}
        types = []
        query = self.types[given[0]]
        is_by_heads = node.results[0] in self.choice.by_heads
        for number, tensor in enumerate(node.types[:3]):
            batch, heads, rows, width = tensor.shape
            shape = (batch, rows, query.shape[1] if is_by_heads else heads, width)
            dtype = tensor.dtype if number else DType.F32
            types.append(TensorType(dtype, shape, contiguous_strides(shape)))
        batch, heads, queries, _ = self.types[output].shape
        # Statistics of queries, which only the step's kernels read.
        filled = ceil_div(queries, STATISTICS_BLOCK) * STATISTICS_BLOCK
        shape = (batch, heads, as_expr(2), filled)
        types.append(TensorType(DType.F32, shape, contiguous_strides(shape)))
        results = tuple(map(self.fresh, types))
        read = (*given[:3], output, grad, sums, *given[3:])
        self.nodes.append(
            replace(
                node,
                args=tuple(map(Ref, read)),
                attrs=normal_attrs(attrs),
                results=results,
                types=tuple(types),
            )
        )
        factor = self.filled(node, node.attr("scale"), types[0].shape)
        scaled = self.add(node, "mul", results[0], factor)
        scaled = self.add(node, "convert", scaled, dtype=node.types[0].dtype)
        for number, made in enumerate((scaled, *results[1:3])):
            one = one_result(node, number)
            found = self._summed(one, made) if number and is_by_heads else made
            self.finish(one, "permute", found, dims=(0, 2, 1, 3))
        if node.results[0] in self.choice.mask_parts:
            self._compute_mask_gradient(node, results[3])

    def _compute_mask_gradient(self, node: Node, statistics: int) -> None:
        """Appends the gradient of the mask by a template kernel, and the sum of its parts."""
        grad, _, _, query, key, value, mask = operands(node)
        parts, own = self.choice.mask_parts[node.results[0]], one_result(node, 3)
        dtype = own.types[0].dtype if parts == 1 else DType.F32
        shape = (as_expr(parts), *own.types[0].shape)
        made = TensorType(dtype, shape, contiguous_strides(shape))
        attrs = _stated(node, "node", "scale")
        attrs |= {"is_contraction": False, "op": FLASH_MASK_GRADIENT}
        read, found = (query, key, value, grad, statistics, mask), self.fresh(made)
        self.nodes.append(
            replace(
                node,
                args=tuple(map(Ref, read)),
                attrs=normal_attrs(attrs),
                results=(found,),
                types=(made,),
            )
        )
        if parts > 1:
            found = self.add(node, "sum", found, dims=(0,))
            found = self.add(node, "convert", found, dtype=own.types[0].dtype)
        self.finish(own, "reshape", found, shape=own.types[0].shape)

    def _summed(self, node: Node, made: int) -> int:
        """Gradients (batch, keys, heads of keys, width): sums over the queries' heads of each."""
        batch, rows, heads, width = self.types[made].shape
        groups = node.types[0].shape[1]
        shape = (batch, rows, groups, as_expr(heads.as_int() // groups.as_int()), width)
        found = self.add(node, "reshape", self.wide(node, made), shape=shape)
        found = self.add(node, "sum", found, dims=(3,))
        return self.add(node, "convert", found, dtype=node.types[0].dtype)

    def _join_parts(self, node: Node, parts: int) -> None:
        """Appends attention whose keys a template kernel divides in parts.

        Statistics are spread over the elements of a value first, so that one kernel joins all.
        """
        query, key, value = operands(node)[:3]
        (batch, groups), depth = self.types[key].shape[:2], self.types[value].shape[3]
        if node.results[0] in self.choice.pages:
            groups = as_expr(self.choice.pages[node.results[0]].keys.heads)
        heads, queries = self.types[query].shape[1:3]
        rows = (batch, groups, queries * (heads.constant // groups.constant), depth)
        statistics = (*rows[:2], as_expr(parts), rows[2])
        sums, *found = self._parts(node, statistics, depth)
        shape = self.types[sums].shape
        tops, totals = (self._spread(node, statistic, shape) for statistic in found)
        top = self.add(node, "amax", tops, dims=(2,))
        sees_nothing = self.add(node, "eq", top, self.filled(node, -math.inf, rows))
        top = self.add(node, "where", sees_nothing, self.filled(node, 0.0, rows), top)
        base = self.add(node, "broadcast_in_dim", top, shape=shape, dims=(0, 1, 3, 4))
        weights = self.add(node, "exp", self.add(node, "sub", tops, base))
        total = self.add(node, "sum", self.add(node, "mul", totals, weights), dims=(2,))
        total = self.add(node, "where", sees_nothing, self.filled(node, 1.0, rows), total)
        joined = self.add(node, "sum", self.add(node, "mul", sums, weights), dims=(2,))
        joined = self.add(node, "div", joined, total)
        joined = self.add(node, "reshape", joined, shape=node.types[0].shape)
        self.finish(node, "convert", joined, dtype=node.types[0].dtype)

    def _parts(self, node: Node, statistics: _Shape, depth: Expr) -> tuple[int, int, int]:
        """Appends the template kernel: weighted sums, largest scores, sums of weights."""
        attrs = {"is_contraction": False, "node": node.attr("node"), "op": ATTENTION_PARTS}
        attrs["scale"] = node.attr("scale")
        if (pages := self.choice.pages.get(node.results[0])) is not None:
            keys = self.types[operands(node)[1]].shape[2]
            attrs |= {"op": PAGED_ATTENTION_PARTS, "length": keys}
            node = replace(node, args=tuple(map(Ref, self._in_pages(node, pages))))
        types = tuple(
            TensorType(DType.F32, shape, contiguous_strides(shape))
            for shape in ((*statistics, depth), statistics, statistics)
        )
        results = tuple(self.fresh(tensor) for tensor in types)
        self.nodes.append(replace(node, attrs=normal_attrs(attrs), results=results, types=types))
        sums, tops, totals = results
        return sums, tops, totals

    def _in_pages(self, node: Node, pages: PagedOperands) -> tuple[int, ...]:
        """The operands of a template kernel that reads keys and values through tables of pages."""
        query, _, _, *masks = operands(node)
        both = (pages.keys, pages.values)
        caches = [self._shaped(node, rows.cache, rows.shape) for rows in both]
        turned = (
            self.add(node, "permute", cache, dims=rows.dims)
            for cache, rows in zip(caches, both, strict=True)
        )
        tables = (self._shaped(node, rows.table, rows.table_shape) for rows in both)
        return (query, *turned, *tables, *masks)

    def _shaped(self, node: Node, value: int, shape: _Shape) -> int:
        if self.types[value].shape == shape:
            return value
        return self.add(node, "reshape", value, shape=shape)

    def _scores(self, node: Node, rows: int, keys: int, sizes: _Sizes) -> int:
        """The products of queries and keys, scaled."""
        shape = (*sizes.scores, self.types[keys].shape[3])
        last = len(shape) - 1
        left = self.add(node, "broadcast_in_dim", rows, shape=shape, dims=(*sizes.row_dims, last))
        right = self.add(node, "broadcast_in_dim", keys, shape=shape, dims=(0, 1, last - 1, last))
        found = self.add(node, "sum", self.add(node, "mul", left, right), dims=(last,))
        if node.results[0] in self.choice.scores:
            found = self.name_last(self.choice.scores[node.results[0]].products)
        if node.attr("scale") == 1.0:
            return found
        return self.add(node, "mul", found, self.filled(node, node.attr("scale"), sizes.scores))

    def _mask(self, node: Node, scores: int, mask: int, sizes: _Sizes) -> int:
        """Scores with a mask added; with one query, -inf where it is, whatever the keys are."""
        found = self.add(node, "add", scores, mask)
        masked = self.choice.masked.get(node.results[0])
        if masked is None:
            return found
        hidden = self.filled(node, -math.inf, sizes.scores)
        self.add_as(masked, node, "where", self.add(node, "ne", mask, hidden), found, hidden)
        return masked

    def _hide_later(self, node: Node, scores: int, sizes: _Sizes) -> int:
        """The scores of a causal mask: -inf for keys behind a query's own number."""
        shape, last = (sizes.queries, sizes.keys), len(sizes.rows)
        numbers = []
        for axis, length in enumerate(shape):
            numbered = self.add(node, "iota", dtype=DType.I64, length=length)
            numbers.append(self.add(node, "broadcast_in_dim", numbered, shape=shape, dims=(axis,)))
        is_seen = self.add(node, "ge", *numbers)
        if sizes.queries is ONE:
            is_seen = self.add(node, "reshape", is_seen, shape=(sizes.keys,))
        dims = (last,) if sizes.queries is ONE else (last - 1, last)
        is_seen = self.add(node, "broadcast_in_dim", is_seen, shape=sizes.scores, dims=dims)
        return self.add(node, "where", is_seen, scores, self.filled(node, -math.inf, sizes.scores))

    def _softmax(self, node: Node, scores: int, sizes: _Sizes) -> tuple[int, int, int]:
        """The exponentials relative to the largest score of a query, their sums (rows), and that.

        For a query that sees no key, the sum is 1 and the largest score 0, as in the framework.
        """
        last = (len(sizes.rows),)
        top = self.add(node, "amax", scores, dims=last)
        least = self.filled(node, -math.inf, sizes.rows)
        sees_nothing = self.add(node, "eq", top, least)
        top = self.add(node, "where", sees_nothing, self.filled(node, 0.0, sizes.rows), top)
        apart = self.add(node, "sub", scores, self._spread(node, top, sizes.scores))
        shares = self.add(node, "exp", apart)
        if node.results[0] in self.choice.rounded:
            shares = self.add(node, "convert", shares, dtype=node.types[0].dtype, is_cast=True)
        if node.results[0] in self.choice.scores:
            shares = self.name_last(self.choice.scores[node.results[0]].shares)
        shares = self.wide(node, shares)
        total = self.add(node, "sum", shares, dims=last)
        one = self.filled(node, 1.0, sizes.rows)
        return shares, self.add(node, "where", sees_nothing, one, total), top

    def _finish_one(self, node: Node, shares: int, total: int, values: int) -> None:
        """Appends the result from shares (b, g, h, s), their sums and values (b, g, s, d)."""
        found = self._means(node, (shares, total, values), (0, 1, 3, 4))
        found = self.add(node, "reshape", found, shape=node.types[0].shape)
        self.finish(node, "convert", found, dtype=node.types[0].dtype)

    def _finish_several(self, node: Node, shares: int, total: int, values: int) -> None:
        """Appends the result from shares (b, g, h, q, s), their sums and values (b, g, s, d).

        In memory, the heads of a query are beside each other, as the product behind reads them.
        """
        shares = self.add(node, "permute", shares, dims=(0, 3, 1, 2, 4))
        total = self.add(node, "permute", total, dims=(0, 3, 1, 2))
        found = self._means(node, (shares, total, values), (0, 2, 4, 5))
        batch, heads, queries, depth = node.types[0].shape
        found = self.add(node, "reshape", found, shape=(batch, queries, heads, depth))
        found = self.add(node, "convert", found, dtype=node.types[0].dtype)
        self.finish(node, "permute", found, dims=(0, 2, 1, 3))

    def _means(self, node: Node, found: tuple[int, int, int], dims: tuple[int, ...]) -> int:
        """The sums of shares times values, divided by the sums of shares.

        `dims` are the axes of values among those of the shares, (rows, s), and d.
        """
        shares, total, values = found
        shape = (*self.types[shares].shape, self.types[values].shape[3])
        last = len(shape) - 1
        left = self.add(node, "broadcast_in_dim", shares, shape=shape, dims=tuple(range(last)))
        right = self.add(node, "broadcast_in_dim", values, shape=shape, dims=dims)
        terms = self.add(node, "mul", left, right)
        if node.results[0] in self.choice.masked:
            none = self.filled(node, 0.0, shape)
            terms = self.add(node, "where", self.add(node, "ne", left, none), terms, none)
        found_sum = self.add(node, "sum", terms, dims=(last - 1,))
        spread = self._spread(node, total, self.types[found_sum].shape)
        return self.add(node, "div", found_sum, spread)

    def _spread_mask(self, node: Node, mask: int, sizes: _Sizes) -> int:
        """What is added to scores; a mask has up to four axes (b, heads, q, s), each or 1."""
        extents = self.types[mask].shape
        batch, own_heads, queries, keys = (*(ONE,) * (4 - len(extents)), *extents)
        has_heads = own_heads is sizes.heads and sizes.heads is not ONE
        divided = sizes.rows[1:3] if has_heads else (ONE, ONE)
        own_queries = () if sizes.queries is ONE else (queries,)
        viewed = self.add(
            node, "reshape", self.wide(node, mask), shape=(batch, *divided, *own_queries, keys)
        )
        dims = (*sizes.row_dims, len(sizes.rows))
        return self.add(node, "broadcast_in_dim", viewed, shape=sizes.scores, dims=dims)

    def _spread(self, node: Node, value: int, shape: _Shape) -> int:
        dims = tuple(range(self.types[value].rank))
        return self.add(node, "broadcast_in_dim", value, shape=shape, dims=dims)
