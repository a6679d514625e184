"""Pads the rows of matrices whose length keeps a library's products from its fast kernels.

A product over a vocabulary of 50,257 words has rows that begin at odd addresses. Libraries copy
tiles in units of 16 bytes, so they then take kernels that are several times slower. Where the
program itself makes such a matrix, its rows are stored with a gap, at no cost. What comes from
outside, or is returned, is copied if the products save more than the copies cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Node, Ref, TensorType, contiguous_strides
from kernelfarm.ir.prims import CLIENT_OPS
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import ProductFacts, TargetFacts
from optimizer_svc.analysis.extents import is_empty, likely_elems, likely_sizes
from optimizer_svc.analysis.extern_layouts import PRODUCT_FACTORS, takes_any_strides
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.strided_views import StridedView, view_between
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.layouts import Layouts

_COPY = 2
"""Bytes that a copy moves for each byte: a read and a write."""
_MOST_GROWTH = 1.25
"""Judgement: shorter rows would take too much memory, and their products are small."""
_NARROW_BYTES = 2
"""Elements for which the slow kernels were measured."""


def align_rows(graph: Graph, layouts: Layouts, target: TargetFacts) -> Layouts:
    """The layouts, with padded rows where products need them."""
    if target.products is None:
        return layouts
    rows = _Rows(graph_facts(graph), layouts, target.products)
    for position, node in enumerate(graph.nodes):
        if node.op == "extern" and node.attr("op") in PRODUCT_FACTORS:
            rows.visit(position, node)
    return rows.layouts


@dataclass(frozen=True, slots=True)
class _Padded:
    """Strides that a value needs, and the bytes that this moves; `operand` is None for a result.

    With `is_copied`, a copy of the operand has the strides, else the value itself.
    """

    value: int
    strides: Index
    moved_bytes: int
    operand: int | None = None
    is_copied: bool = False


class _Rows:
    """The rows of one graph's products."""

    def __init__(self, facts: GraphFacts, layouts: Layouts, wanted: ProductFacts) -> None:
        self.layouts = layouts
        self._facts = facts
        self._wanted = wanted
        self._sizes = likely_sizes(facts.graph.symbols)
        self._returned = frozenset(
            facts.base_of(arg.value) for arg in facts.graph.outputs if isinstance(arg, Ref)
        )

    def visit(self, position: int, node: Node) -> None:
        """Pads the operands and the result of a product, if that saves time."""
        found = list(self._needed(node))
        if not found or any(isinstance(padded, Refused) for padded in found):
            return
        padded = [entry for entry in found if isinstance(entry, _Padded)]
        moved = sum(entry.moved_bytes for entry in padded)
        saved = round(self._operations(node) * self._wanted.bytes_per_operation)
        strides, copies = dict(self.layouts.strides), dict(self.layouts.copies)
        is_padded = moved <= saved
        if is_padded:
            for entry in padded:
                if entry.operand is not None and entry.is_copied:
                    copies[position, entry.operand] = entry.strides
                else:
                    strides[entry.value] = entry.strides
        verdict = "padded" if is_padded else "as they are"
        note = (
            f"rows of {node.attr('op')} (node {node.attr('node')}): {verdict}; aligned rows save as"
            f" much as {saved} bytes from memory in the framework; copies move {moved}"
        )
        self.layouts = Layouts(strides, copies, (*self.layouts.notes, note))

    def _needed(self, node: Node) -> Iterator[_Padded | Refused]:
        values = operands(node)
        for number in PRODUCT_FACTORS[str(node.attr("op"))]:
            needed = self._for_operand(number, values[number])
            if needed is not None:
                yield needed
        result = node.results[0]
        tensor = self._facts.types[result]
        strides = self._stated(result)
        if self._is_aligned(tensor, strides):
            return
        if result in self.layouts.strides or not self._is_free_to_readers(result):
            yield Refused("the result has a layout that a reader needs")
            return
        yield self._padded_value(result, self._copy_bytes(result, is_made=result in self._returned))

    def _for_operand(self, number: int, value: int) -> _Padded | Refused | None:
        """What an operand needs; None if its rows are aligned."""
        facts, tensor = self._facts, self._facts.types[value]
        base = facts.base_of(value)
        whole = StridedView(base, facts.types[base].shape, self._stated(base))
        view = view_between(facts, value, whole)
        if isinstance(view, Refused) or self._is_aligned(tensor, view.strides):
            return view if isinstance(view, Refused) else None
        if self._is_free(base):
            padded = self._padded_value(base, 0)
            if isinstance(padded, Refused):
                return padded
            within = view_between(facts, value, replace(whole, strides=padded.strides))
            if not isinstance(within, Refused) and self._is_aligned(tensor, within.strides):
                return padded
        strides = self._padded(tensor, _order(view))
        if isinstance(strides, Refused):
            return strides
        moved = self._copy_bytes(value, is_made=True)
        return _Padded(value, strides, moved, number, is_copied=True)

    def _padded_value(self, value: int, moved_bytes: int) -> _Padded | Refused:
        tensor = self._facts.types[value]
        strides = self._padded(tensor, range(tensor.rank))
        return strides if isinstance(strides, Refused) else _Padded(value, strides, moved_bytes)

    def _padded(self, tensor: TensorType, order: Iterator[int] | range) -> Index | Refused:
        """Strides for axes in this order, outermost first, with rows of whole units."""
        unit = self._wanted.row_bytes // tensor.dtype.itemsize_bytes
        axes = list(order)
        strides = [ONE] * tensor.rank
        step: Expr = ONE
        for axis in reversed(axes):
            strides[axis] = step
            step = step * tensor.shape[axis]
            if axis == axes[-1]:
                if not step.is_constant:
                    return Refused("the length of a row varies")
                length = -(-step.constant // unit) * unit
                if length > _MOST_GROWTH * step.constant:
                    return Refused("the rows are short")
                step = as_expr(length)
        return tuple(strides)

    def _is_aligned(self, tensor: TensorType, strides: Index) -> bool:
        """False if rows are known to begin within a unit."""
        size = tensor.dtype.itemsize_bytes
        if not tensor.dtype.is_float or size != _NARROW_BYTES or is_empty(tensor.shape):
            return True
        steps = [s for extent, s in zip(tensor.shape, strides, strict=True) if extent is not ONE]
        if ONE not in steps:
            return True  # the library copies it anyway
        return not any(
            step.is_constant and step is not ONE and step.constant * size % self._wanted.row_bytes
            for step in steps
        )

    def _is_free(self, base: int) -> bool:
        """True if the program may choose the strides of a value."""
        facts = self._facts
        producer = facts.producers.get(base)
        if producer is None or producer.op == "scatter" or base in self.layouts.strides:
            return False
        if producer.op in CLIENT_OPS and producer.attr("op") not in PRODUCT_FACTORS:
            return False
        return base not in self._returned and self._is_free_to_readers(base)

    def _is_free_to_readers(self, value: int) -> bool:
        """True if no reader of a value or of its views needs other strides."""
        pending = [value]
        while pending:
            for position in self._facts.consumers.get(pending.pop(), ()):
                spend(1)
                node = self._facts.graph.nodes[position]
                if node.op in CLIENT_OPS and not takes_any_strides(node):
                    return False
                pending += [result for result in node.results if self._facts.is_view(result)]
        return True

    def _stated(self, value: int) -> Index:
        tensor = self._facts.types[value]
        return self.layouts.strides.get(value) or tensor.strides or contiguous_strides(tensor.shape)

    def _copy_bytes(self, value: int, *, is_made: bool) -> int:
        tensor = self._facts.types[value]
        elems = likely_elems(tensor.shape, self._sizes)
        return _COPY * elems * tensor.dtype.itemsize_bytes if is_made else 0

    def _operations(self, node: Node) -> int:
        """The multiplications of a product under assumed sizes."""
        first = operands(node)[PRODUCT_FACTORS[str(node.attr("op"))][0]]
        shared = self._facts.types[first].shape[-1]
        return likely_elems((*node.types[0].shape, shared), self._sizes)


def _order(view: StridedView) -> Iterator[int]:
    """The axes of a view, the one with stride 1 last."""
    innermost = view.strides.index(ONE)
    yield from (axis for axis in range(len(view.shape)) if axis != innermost)
    yield innermost
