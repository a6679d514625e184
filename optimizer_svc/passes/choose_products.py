"""Decides which products of matrices kernels compute instead of the framework's library.

A product of x (m, k) by a weight of n x k elements with few rows takes about as long as memory
takes to deliver the weight. The target's facts have measured times of the library and of kernels
for some m, also for weights that a model computes from integers of 8 or fewer bits. Between those,
a kernel is expected to take as long as for the next larger m, the library as long as for the next
smaller one. If only pointwise prims read the product, its kernel computes them, too, and the
library's time includes another launch.

On a GPU, more rows take the library about as long as a kernel. A kernel is taken if it saves more
than it may lose: another kernel for the points that follow, which reads the product again.

Processors compute products of more rows in register tiles, of f32 and, if they have instructions
for it, of bf16, and products of 8-bit integers of any number of rows. Their facts have the
library's time in times of a kernel, from some m on. A product whose number of rows varies is judged
by the m that is worst for kernels.

A request may choose for all products, and for those of single captured nodes that clients measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kernelfarm.ir.algebra.expr import ONE, Expr, product_of
from kernelfarm.ir.graph_ir import Graph, Node, TensorType
from kernelfarm.ir.prims import CLIENT_OPS, FUNCTION_OPS
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.factor_types import factor_types
from optimizer_svc.analysis.following_points import are_rows_reduced, following_points
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands, outputs_read
from optimizer_svc.analysis.grouped_nibbles import GroupedNibbles, grouped_nibbles
from optimizer_svc.analysis.integer_weights import IntegerWeight, PartOrder
from optimizer_svc.analysis.product_kernels import (
    bytes_refuse,
    kernels_refuse,
    panels_refuse,
    tiles_refuse,
)
from optimizer_svc.analysis.product_operands import (
    MAX_FEW_ROWS,
    PRODUCTS,
    Product,
    product_of_node,
)
from optimizer_svc.analysis.product_slices import product_slices
from optimizer_svc.analysis.product_times import (
    ExpectedTimes,
    expected_in_tiles,
    expected_of_few_rows,
    many_rows_refuse,
    times_text,
)
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.products import NO_PRODUCTS, Products
from optimizer_svc.kernels.nibble_product import MAX_ROWS, MAX_WEIGHT_SIZE, TYPES

_MAX_VISITED = 64
_MEASURED = "clients measured it as faster"


def choose_products(
    graph: Graph,
    target: TargetFacts,
    choice: ProductChoice = ProductChoice.AUTO,
    by_node: Sequence[NodeChoice] = (),
) -> Products:
    """The products of a graph that kernels compute, with a reason for each product.

    `by_node` has the choices for single captured nodes. Without any product, a processor multiplies
    in tiles what other passes wrote as sums of products.
    """
    nodes = [n for n in graph.nodes if n.attr("op") in PRODUCTS]
    was_measured = target.few_rows is not None or target.tiles is not None
    if not nodes and target.tiles is not None:
        return Products({}, factor_types(target))
    if not nodes or not (was_measured or by_node or choice is not ProductChoice.AUTO):
        return NO_PRODUCTS
    chooser = _Chooser(graph_facts(graph), target, choice, by_node)
    for node in nodes:
        spend(8)
        chooser.add(node)
    return chooser.result()


class _Chooser:
    """The products so far, and the reasons for them and against the others."""

    def __init__(
        self,
        facts: GraphFacts,
        target: TargetFacts,
        choice: ProductChoice,
        by_node: Sequence[NodeChoice],
    ) -> None:
        self._facts = facts
        self._target = target
        self._choice = choice
        self._by_node = {stated.node: stated.choice for stated in by_node}
        self._returned = frozenset(outputs_read(facts.graph))
        self._found: dict[int, Product] = {}
        self._notes: dict[str, None] = {}
        self._refused: Counter[str] = Counter()
        self._computed: set[int] = set()
        self._first_new = 1 + max(self._facts.types, default=0)
        self._ordered_x: dict[tuple[int, PartOrder], int] = {}

    def add(self, node: Node) -> None:
        """Decides about a product."""
        is_measured = node.attr("node") in self._by_node
        choice = self._choice_of(node)
        if is_measured and choice is ProductChoice.LIBRARY:
            self._note(node, "the framework", _MEASURED)
            return
        found = self._candidate(node, choice)
        if isinstance(found, Refused):
            self._refused[found.reason] += 1
            return
        if choice is ProductChoice.OWN:
            reason = _MEASURED if is_measured else "the request asks for kernels"
            self._take(node, found, reason)
            return
        if found.order is not None:
            self._take(node, found, "its weight is in panels, which the framework would copy")
            return
        expected = self._expected(node, found)
        if isinstance(expected, Refused):
            self._refused[expected.reason] += 1
        elif expected.is_kernel_faster:
            self._take(node, found, times_text(expected))
        else:
            stored = "" if found.integers is None else ", by a weight that a kernel stores"
            self._note(node, f"the framework{stored}", times_text(expected))

    def result(self) -> Products:
        """The choice, with its reasons."""
        refused = (
            f"products by the framework: {count} {reason}"
            for reason, count in self._refused.items()
        )
        notes = (*self._notes, *refused)
        return Products(self._found, factor_types(self._target), notes)

    def _choice_of(self, node: Node) -> ProductChoice:
        """What the request states for a product."""
        number = node.attr("node")
        return self._by_node.get(number, self._choice) if isinstance(number, int) else self._choice

    def _candidate(self, node: Node, choice: ProductChoice) -> Product | Refused:
        """The product, if kernels of the target can compute it."""
        if choice is ProductChoice.LIBRARY:
            return Refused("because the request asks for the library")
        found = product_of_node(self._facts, node, self._returned)
        if isinstance(found, Refused):
            return found
        kind, rows = self._facts.types[found.weight], node.types[0].shape[0]
        if found.has_bytes or found.order is not None:
            refuse = bytes_refuse if found.has_bytes else panels_refuse
            return refuse(found, rows, kind, self._target) or replace(found, is_tiled=True)
        nibbles = self._nibbles(found, rows, kind)
        if nibbles is not None:
            return replace(found, integers=None, nibbles=nibbles)
        refused = kernels_refuse(found, rows, kind, self._target, choice)
        if found.integers is None and not self._target.has_matrix_units:
            return self._by_processor(node, found, refused)
        return refused or self._in_kernels(found, rows, kind)

    def _nibbles(self, found: Product, rows: Expr, kind: TensorType) -> GroupedNibbles | None:
        """The form of a weight of integers by which a template kernel multiplies few rows."""
        known = self._target.few_rows
        if known is None or known.grouped_nibbles is None or found.integers is None:
            return None
        is_few = rows.is_constant and 0 < rows.constant <= MAX_ROWS
        if not is_few or kind.dtype not in TYPES:
            return None
        if not self._facts.numel(found.weight).constant <= MAX_WEIGHT_SIZE:
            return None
        form = grouped_nibbles(
            self._facts, found.weight, found.integers, has_columns=found.has_columns
        )
        return None if isinstance(form, Refused) else form

    def _in_kernels(self, found: Product, rows: Expr, kind: TensorType) -> Product:
        """How kernels compute a product: on a processor, by a weight of integers."""
        n, k = reversed(kind.shape) if found.has_columns else kind.shape
        if found.integers is not None:
            has_units = self._target.has_matrix_units
            is_tiled = has_units and (rows is not ONE or not found.integers.has_rows)
            is_ordered = found.integers.order.step > 1 or not has_units
            ordered = self._ordered(found.x, found.integers) if is_ordered else None
            return replace(found, is_tiled=is_tiled, ordered_x=ordered, has_wide_x=not has_units)
        if rows.constant > MAX_FEW_ROWS:
            return replace(found, is_tiled=True)
        slices = product_slices(rows.constant, n.constant, k.constant, self._target.memory)
        return replace(found, slices=slices, is_tiled=rows is not ONE)

    def _ordered(self, x: int, integers: IntegerWeight) -> int:
        """The number of the value that has x in the order of the parts of a weight of integers."""
        number = self._first_new + len(self._ordered_x)
        return self._ordered_x.setdefault((x, integers.order), number)

    def _by_processor(
        self, node: Node, found: Product, by_rows: Refused | None
    ) -> Product | Refused:
        """The product in tiles if their times are known, else in sums of its rows, if those exist.

        `by_rows` is why there are no sums of rows.
        """
        kind, rows = self._facts.types[found.weight], node.types[0].shape[0]
        refused = tiles_refuse(found, rows, kind, self._target)
        unknown = refused or _refused(self._expected_in_tiles(node, found))
        tiled = replace(found, is_tiled=True)
        if unknown is None:
            return tiled
        if by_rows is None:
            return found
        if self._choice_of(node) is ProductChoice.OWN:
            return refused or tiled
        return by_rows if self._target.tiles is None else unknown

    def _expected(self, node: Node, product: Product) -> ExpectedTimes | Refused:
        """The times of a product, or why nothing is known about it."""
        kind = self._facts.types[product.weight]
        rows = node.types[0].shape[0]
        has_units = self._target.has_matrix_units
        if product.is_tiled and not has_units:
            return self._expected_in_tiles(node, product)
        if has_units and rows.constant > MAX_FEW_ROWS:
            return self._expected_of_many_rows(node, product)
        expected = expected_of_few_rows(rows.constant, kind, product, self._target)
        if isinstance(expected, Refused) or not has_units or product.nibbles is not None:
            return expected
        launch_bytes = self._target.memory.launch_bytes
        launch = launch_bytes / (product_of(list(kind.shape)).constant * kind.dtype.itemsize_bytes)
        points = following_points(self._facts, node.results[0])
        saves = bool(points) and points.isdisjoint(self._computed)
        self._computed |= points
        return replace(expected, after=saves * launch)

    def _expected_of_many_rows(self, node: Node, product: Product) -> ExpectedTimes | Refused:
        """The times of a product of many rows with the points that follow it, on a GPU."""
        known = self._target.many_rows
        if known is None:
            return Refused(f"of more than {MAX_FEW_ROWS} rows, for which kernels were not timed")
        x, weight = self._facts.types[product.x], self._facts.types[product.weight]
        if (refused := many_rows_refuse(x, weight, node.types[0], known)) is not None:
            return refused
        view = self._facts.producers.get(product.x)
        if view is not None and view.op == "permute":
            return Refused("of a transposed matrix, for which kernels were not timed")
        points = following_points(self._facts, node.results[0])
        if (refused := self._points_refuse(node, points)) is not None:
            return refused
        self._computed |= points
        size = product_of(list(node.types[0].shape)).constant
        product_bytes = size * x.shape[1].constant / known.multiply_adds_per_byte
        saved = self._target.memory.launch_bytes + 2 * size * weight.dtype.itemsize_bytes
        return ExpectedTimes(
            known.kernel, 1.0, saved / product_bytes, "in times of the framework's"
        )

    def _points_refuse(self, node: Node, points: frozenset[int]) -> Refused | None:
        """Why a kernel should not compute what follows a product of many rows, or None."""
        if not points or not points.isdisjoint(self._computed):
            return Refused(f"of more than {MAX_FEW_ROWS} rows with nothing to compute behind them")
        if self._are_functions_of_two(points, node.results[0]):
            return Refused("before functions of another tensor, too, which fill the registers")
        if self._is_stored(node):
            # On an H200, a product of 4,096 x 4,096 results of 1,024 terms and its GELU take 66
            # microseconds by one kernel that stores both, 49 by the library and a second kernel.
            return Refused("that is read again, so that a kernel would store it, too")
        return None

    def _are_functions_of_two(self, points: frozenset[int], product: int) -> bool:
        """True if points compute functions, and read another tensor as large as the product."""
        facts = self._facts
        pending, seen = [*points], {*points, product}
        has_functions = reads_another = False
        while pending and len(seen) <= _MAX_VISITED:
            node = facts.producers[pending.pop()]
            spend()
            has_functions |= node.op in FUNCTION_OPS
            for value in {*operands(node)} - seen:
                seen.add(value)
                if not facts.is_storage(value):
                    pending.append(value)
                else:
                    reads_another |= facts.numel(value) is facts.numel(product)
        return has_functions and reads_another

    def _is_stored(self, node: Node) -> bool:
        """True if a product is in memory even if a kernel computes what follows it."""
        result = node.results[0]
        readers = self._facts.consumers.get(result, ())
        is_read = any(self._facts.graph.nodes[at].op in CLIENT_OPS for at in readers)
        return is_read or result in self._returned

    def _expected_in_tiles(self, node: Node, product: Product) -> ExpectedTimes | Refused:
        """The times of a product in tiles on a processor: of rows that lie in memory as such.

        A gradient whose rows are summed for a bias is read twice if its product has a kernel.
        """
        view = self._facts.producers.get(product.x)
        if view is not None and view.op == "permute":
            return Refused("of a transposed matrix, for which kernels were not timed")
        if are_rows_reduced(self._facts, node.results[0]):
            return Refused("whose rows are summed, which needs another kernel")
        kind, rows = self._facts.types[product.weight], node.types[0].shape[0]
        return expected_in_tiles(rows, kind, product, self._target)

    def _take(self, node: Node, found: Product, reason: str) -> None:
        self._found[node.results[0]] = found
        by = "a kernel" if found.slices == 1 else f"kernels, in {found.slices} slices"
        by += " in tiles" if found.is_tiled and not self._target.has_matrix_units else ""
        if found.integers is not None:
            by += f" that computes its weight from {found.integers.dtype.value}"
        self._note(node, by, reason)

    def _note(self, node: Node, by: str, reason: str) -> None:
        rows, columns = node.types[0].shape
        text = f"product: {rows} x {columns} (node {node.attr('node')}) by {by}: {reason}"
        self._notes[text] = None


def _refused(found: ExpectedTimes | Refused) -> Refused | None:
    return found if isinstance(found, Refused) else None
