"""Turns the chosen products into sums, which become kernels.

    extern mm(x, permute(w))  ->  cat(sum(x[0] * w; k), sum(x[1] * w; k), ...)

The sums of all rows of x have one domain, so one loop over a row of the weight computes them, and
the weight is read once. Products in tiles have one sum:

    extern mm(x, permute(w))  ->  sum(x over (m, -, k) * w over (-, n, k); k)

Sums in slices are added by a second sum, which another kernel computes, in order:

    extern mm(x, permute(w))  ->  sum(sum(x over (s, m, -, k/s) * w over (s, -, n, k/s); k/s); s)

Products of 8-bit integers are such sums in i32.

Words of integers of four bits may be multiplied by a template kernel:

    extern mm(x, (words >> 4 * i & 15 - zero) * scale)  ->  extern template(x, words, scale, zero)

Another weight that the model computes from integers becomes part of the sums, which then have
parts:

    extern mm(x, integers * scale)  ->  sum(x over part 0 * integers over part 0 + ...; t) * scale

If x has one row or results are computed in tiles, what reads the product is fused with it. Products
of 16 bits and their biases are summed in f32 and rounded once, as in the library.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr
from kernelfarm.ir.graph_ir import Graph, Node, Ref, contiguous_strides
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.prims import PRIMS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import VIEW_OPS, GraphFacts, graph_facts, operands
from optimizer_svc.analysis.grouped_nibbles import GroupedNibbles
from optimizer_svc.analysis.integer_weights import IntegerWeight, PartOrder
from optimizer_svc.analysis.product_operands import Product
from optimizer_svc.analysis.templates import NIBBLE_PRODUCT
from optimizer_svc.ir.prims_writer import PrimsWriter
from optimizer_svc.ir.products import Products

LINE_ELEMENTS = 16
"""Elements of f32 in a cache line of a processor."""
_EXACT = (DType.I8, DType.U8, DType.BOOL, DType.F8E4M3FN, DType.F8E5M2)
"""Types whose values f16 and bf16 hold."""


def compute_products(graph: Graph, products: Products) -> Graph:
    """The graph with the chosen products as prims."""
    if not products.by_result:
        return graph
    ordered = [p.ordered_x for p in products.by_result.values() if p.ordered_x is not None]
    writer = _Writer(graph_facts(graph), ordered)
    for node in graph.nodes:
        product = products.by_result.get(node.results[0]) if node.results else None
        if product is None:
            writer.nodes.append(node)
        elif product.nibbles is not None:
            writer.compute_by_template(node, product, product.nibbles)
        elif product.is_tiled or product.integers is not None:
            writer.compute_at_once(node, product)
        else:
            writer.compute(node, product)
    return replace(graph, nodes=tuple(writer.nodes))


class _Writer(PrimsWriter):
    """A computed product ends in a node with the old result."""

    def __init__(self, facts: GraphFacts, reserved: Collection[int] = ()) -> None:
        super().__init__(facts, reserved)
        self._producers = facts.producers

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

    def compute_at_once(self, node: Node, product: Product) -> None:
        """Appends a product as sums over rows and columns: one, slices, or parts."""
        (result,) = node.types
        spend(8)
        if product.integers is None:
            total = self._tiled_sum(node, product, product.x, product.weight)
        else:
            total = self._integer_sum(node, product, product.integers)
        if product.bias is not None:
            bias = self._converted(node, product.bias, DType.F32)
            spread = self.add(node, "broadcast_in_dim", bias, shape=result.shape, dims=(1,))
            total = self.add(node, "add", total, spread)
        self.finish(node, "convert", total, dtype=result.dtype)

    def compute_by_template(self, node: Node, product: Product, nibbles: GroupedNibbles) -> None:
        """Appends the template kernel of a product, with its bias."""
        values = (product.x, nibbles.words, nibbles.scale, nibbles.zero, product.bias)
        attrs = {
            "centre": nibbles.centre,
            "has_zero": nibbles.zero is not None,
            "is_contraction": False,
            "node": node.attr("node"),
            "op": NIBBLE_PRODUCT,
        }
        args = tuple(Ref(value) for value in values if value is not None)
        (result,) = node.types
        types = (replace(result, strides=contiguous_strides(result.shape)),)
        made = replace(node, args=args, attrs=normal_attrs(attrs), types=types)
        self.types[node.results[0]] = types[0]
        self.nodes.append(made)

    def _tiled_sum(self, node: Node, product: Product, x: int, weight: int) -> int:
        """The sums (m, n) in f32 or i32 of x (m, k) and a weight, perhaps in slices."""
        (result,) = node.types
        dtype = DType.I32 if product.has_bytes else DType.F32
        x = self._converted(node, x, dtype)
        weight = self._converted(node, weight, dtype)
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
        return self.add(node, "sum", total, dims=(0,)) if slices else total

    def _integer_sum(self, node: Node, product: Product, integers: IntegerWeight) -> int:
        """The sums (m, n) in f32 by a weight that is computed: of each part, or of all at once.

        The weight's value is made (n, k), however it lies in memory.
        """
        order, scale = integers.order, integers.scale
        spend(8 * order.count)
        self._order_x(node, product, order)
        weight, factor = product.weight, None
        if not product.is_tiled:
            weight = self._exact(node, weight)
        if scale is not None and (scale.is_of_row or not product.is_tiled):
            weight, factor = (
                self._viewed(node, v, scale.views) for v in (scale.rest, scale.factor)
            )
        if product.has_columns:
            product = replace(product, has_columns=False)
            weight = self.add(node, "permute", weight, dims=(1, 0))
            if factor is not None:
                factor = self.add(node, "permute", factor, dims=(1, 0))
        if product.is_tiled:  # instructions for matrices take 16 bits
            dtype = self.types[product.weight].dtype
            weight = self.add(node, "convert", weight, dtype=dtype, is_cast=True)
            sums = [
                self._tiled_sum(node, product, x, part)
                for x, part in self._parts(node, product, integers, weight)
            ]
            total = self._added(node, sums)
        else:
            total = self._row_sums(node, product, integers, weight, factor)
        if factor is None or scale is None or not scale.is_of_row:
            return total
        alone = self._every(node, factor, 1, 0, 1, 1)
        row = self.add(node, "reshape", alone, shape=(ONE, self.types[total].shape[1]))
        spread = self.add(node, "broadcast_in_dim", row, shape=self.types[total].shape, dims=(0, 1))
        return self.add(node, "mul", total, spread)

    def _row_sums(
        self, node: Node, product: Product, integers: IntegerWeight, weight: int, factor: int | None
    ) -> int:
        """The sums (m, n): for each row, the terms of all parts are added, scaled and summed."""
        parts = [
            (self._converted(node, x, DType.F32), self._converted(node, part, DType.F32))
            for x, part in self._parts(node, product, integers, weight)
        ]
        scale = None
        if factor is not None and integers.scale is not None and not integers.scale.is_of_row:
            (_, terms) = self.types[parts[0][1]].shape
            start, step = integers.order.start_and_step(0, self.types[factor].shape[1].constant)
            scale = self._every(node, factor, 1, start, step, terms.constant)
        rows = self.types[product.x].shape[0].constant
        spend(8 * rows)
        sums = [self._row_sum(node, parts, row, scale) for row in range(rows)]
        return sums[0] if rows == 1 else self.add(node, "cat", *sums, dim=0)

    def _row_sum(
        self, node: Node, parts: list[tuple[int, int]], row: int, scale: int | None
    ) -> int:
        """The sums (1, n) of one row."""
        terms = []
        for x, weight in parts:
            shape = self.types[weight].shape
            alone = self._every(node, x, 0, row, 1, 1)
            spread = self.add(node, "broadcast_in_dim", alone, shape=shape, dims=(0, 1))
            terms.append(self.add(node, "mul", spread, weight))
        total = self._added(node, terms)
        if scale is not None:
            total = self.add(node, "mul", total, scale)
        total = self.add(node, "sum", total, dims=(1,))
        return self.add(node, "reshape", total, shape=(ONE, *self.types[total].shape))

    def _exact(self, node: Node, weight: int) -> int:
        """A weight in f32 instead of its rounding to 16 bits, if that changes no value."""
        views: list[int] = []
        value = weight
        while (made := self._producers.get(value)) is not None and made.op in VIEW_OPS:
            views.append(value)
            (value,) = operands(made)
        if made is None or made.op != "convert":
            return weight
        (source,) = operands(made)
        if self.types[source].dtype not in _EXACT:
            return weight
        return self._viewed(node, self._converted(node, source, DType.F32), tuple(views))

    def _parts(
        self, node: Node, product: Product, integers: IntegerWeight, weight: int
    ) -> Iterator[tuple[int, int]]:
        """The factors (m, terms) of x and (n, terms) of the weight, part by part."""
        order = integers.order
        rows, k = self.types[product.x].shape
        terms = k.constant // order.count
        for part in range(order.count):
            start, step = order.start_and_step(part, k.constant)
            chosen = self._every(node, weight, 1, start, step, terms)
            if product.ordered_x is None:
                yield self._every(node, product.x, 1, start, step, terms), chosen
                continue
            x = product.ordered_x
            for axis, number in enumerate(divmod(part, order.step), start=1):
                x = self._every(node, x, axis, number, 1, 1)
            blocks, *_, elements = self.types[x].shape
            x = self.add(node, "reshape", x, shape=(blocks, rows, elements))
            x = self.add(node, "permute", x, dims=(1, 0, 2))
            yield self.add(node, "reshape", x, shape=(rows, as_expr(terms))), chosen

    def _order_x(self, node: Node, product: Product, order: PartOrder) -> None:
        """Appends x in the order of parts, once for all products that read it so."""
        if product.ordered_x is None or product.ordered_x in self.types:
            return
        rows, k = self.types[product.x].shape
        terms = k.constant // order.count
        elements = LINE_ELEMENTS if product.has_wide_x and not terms % LINE_ELEMENTS else terms
        x = self._converted(node, product.x, DType.F32) if product.has_wide_x else product.x
        sides = (order.spans, terms // elements, elements, order.step)
        divided = self.add(node, "reshape", x, shape=(rows, *map(as_expr, sides)))
        self.add_as(product.ordered_x, node, "permute", divided, dims=(2, 1, 4, 0, 3))

    def _viewed(self, node: Node, value: int, views: tuple[int, ...]) -> int:
        """A value as the views of another one show it, the last one first."""
        for view in reversed(views):
            like = self._producers[view]
            attrs = {name: attr for name, attr in like.attrs if name in PRIMS[like.op].attrs}
            value = self.add(node, like.op, value, **attrs)
        return value

    def _added(self, node: Node, values: list[int]) -> int:
        first, *others = values
        for value in others:
            first = self.add(node, "add", first, value)
        return first

    def _every(self, node: Node, value: int, axis: int, start: int, step: int, count: int) -> int:
        """`count` elements of an axis, each `step` after the one before."""
        shape = self.types[value].shape
        if count == shape[axis].constant:
            return value
        starts = [ZERO for _ in shape]
        limits, steps = list(shape), [ONE for _ in shape]
        starts[axis], limits[axis] = as_expr(start), as_expr(start + (count - 1) * step + 1)
        steps[axis] = as_expr(step)
        attrs = {"starts": tuple(starts), "limits": tuple(limits), "steps": tuple(steps)}
        return self.add(node, "slice", value, **attrs)

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
