"""Pads matrices whose odd extents keep a library's products from its fast kernels.

A product over a vocabulary of 50,257 words has rows that begin at odd addresses, or an odd number
of terms. Libraries copy tiles in units of 16 bytes, so they then take kernels that are several
times slower. Zeros at the end of an axis change no result that is read. Kernels store what they
make with its zeros at no cost; other operands, and results that are returned, are copied if the
product saves more than the copies cost. Products of few rows by weights of integers, which kernels
compute without storing them, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Node, Ref, contiguous_strides
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import ProductFacts, TargetFacts
from optimizer_svc.analysis.extents import is_empty, likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import GraphFacts, graph_facts, ints_attr, operands
from optimizer_svc.analysis.product_operands import (
    BIASED_PRODUCT,
    MAX_FEW_ROWS,
    PRODUCT,
    product_of_node,
)
from optimizer_svc.analysis.strided_views import StridedView, view_between
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.prims_writer import PrimsWriter

_FACTORS: Mapping[str, tuple[int, int]] = {
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.addmm.default": (1, 2),
}
"""Matrix products by name, with the numbers of the two operands that are multiplied."""

_COPY = 2
"""Bytes that a copy moves for each byte: a read and a write."""
_MOST_GROWTH = 1.25
"""Judgement: shorter axes would take too much memory, and their products are small."""
_NARROW_BYTES = 2
"""Elements for which the slow kernels were measured."""
_ROWS, _COLUMNS = -2, -1


def pad_products(graph: Graph, target: TargetFacts) -> Graph:
    """The graph with padded products where they save time."""
    if target.products is None:
        return graph
    products = _Products(graph_facts(graph), target.products)
    for node in graph.nodes:
        spend(1)
        products.add(node)
    return products.result()


@dataclass(frozen=True, slots=True)
class _Zeros:
    """How many zeros follow each extent of a product of (m, k) by (k, n)."""

    m: int = 0
    k: int = 0
    n: int = 0


class _Products:
    """The nodes of one graph, as they are written anew."""

    def __init__(self, facts: GraphFacts, wanted: ProductFacts) -> None:
        self._facts = facts
        self._wanted = wanted
        self._writer = PrimsWriter(facts)
        self._padded: dict[tuple[int, tuple[int, ...]], int] = {}
        self._sizes = likely_sizes(facts.graph.symbols)
        self._returned = frozenset(
            facts.base_of(arg.value) for arg in facts.graph.outputs if isinstance(arg, Ref)
        )

    def add(self, node: Node) -> None:
        """Appends a node of the graph, or its padded form."""
        factors = _FACTORS.get(str(node.attr("op"))) if node.op == "extern" else None
        zeros = _Zeros() if factors is None else self._zeros(node, factors)
        is_kept = factors is None or zeros == _Zeros() or not self._saves(node, factors, zeros)
        if factors is None or is_kept or self._is_by_integers(node):
            self._writer.nodes.append(node)
        else:
            self._pad(node, factors, zeros)

    def _is_by_integers(self, node: Node) -> bool:
        """True for a product of few rows by a weight that is computed from integers."""
        rows = node.types[0].shape[_ROWS]
        if node.attr("op") not in (PRODUCT, BIASED_PRODUCT) or not rows.is_constant:
            return False
        if rows.constant > MAX_FEW_ROWS:
            return False
        found = product_of_node(self._facts, node, self._returned)
        return not isinstance(found, Refused) and found.integers is not None

    def result(self) -> Graph:
        """The graph of the nodes so far; the same one if no product was padded."""
        if not self._padded:
            return self._facts.graph
        return replace(self._facts.graph, nodes=tuple(self._writer.nodes))

    def _zeros(self, node: Node, factors: tuple[int, int]) -> _Zeros:
        """The zeros that a product needs; none if it must stay as it is."""
        types, values = self._facts.types, operands(node)
        first, second = (values[number] for number in factors)
        dtype = types[first].dtype
        if not dtype.is_float or dtype.itemsize_bytes != _NARROW_BYTES or len(node.types) != 1:
            return _Zeros()
        if is_empty((*types[first].shape, *types[second].shape)):
            return _Zeros()
        if factors[0] and types[values[0]].rank != 1:
            return _Zeros()  # an addend of two axes would have to be padded like the result
        inner = self._unit_axis(first), self._unit_axis(second)
        if None in inner:
            return _Zeros()  # the library copies it anyway
        m, k = types[first].shape[-2:]
        n = types[second].shape[_COLUMNS]
        needs_k = inner[0] == _COLUMNS or inner[1] == _ROWS
        found = (
            self._missing(m) if inner[0] == _ROWS else 0,
            self._missing(k) if needs_k else 0,
            self._missing(n),
        )
        return _Zeros() if None in found else _Zeros(*(count or 0 for count in found))

    def _missing(self, extent: Expr) -> int | None:
        """The elements up to the next whole unit; 0 for varying extents, None for short ones."""
        if not extent.is_constant:
            return 0
        unit = self._wanted.row_bytes // _NARROW_BYTES
        count = -extent.constant % unit
        return count if extent.constant + count <= _MOST_GROWTH * extent.constant else None

    def _unit_axis(self, value: int) -> int | None:
        """The axis of a matrix whose elements are adjacent in memory."""
        facts = self._facts
        base = facts.base_of(value)
        tensor = facts.types[base]
        strides = tensor.strides or contiguous_strides(tensor.shape)
        view = view_between(facts, value, StridedView(base, tensor.shape, strides))
        if isinstance(view, Refused):
            return _COLUMNS  # a kernel makes it
        return next((axis for axis in (_COLUMNS, _ROWS) if view.strides[axis] is ONE), None)

    def _saves(self, node: Node, factors: tuple[int, int], zeros: _Zeros) -> bool:
        """True if the faster product saves more than the copies cost."""
        values = operands(node)
        first, second = (values[number] for number in factors)
        moved = 0
        if zeros.m or zeros.k:
            moved += self._copy_bytes(first)
        if zeros.k or zeros.n:
            moved += self._copy_bytes(second)
        result = node.results[0]
        if zeros.n and result in self._returned:
            moved += self._bytes(result)
        shared = self._facts.types[first].shape[_COLUMNS]
        operations = likely_elems((*node.types[0].shape, shared), self._sizes)
        return moved <= operations * self._wanted.bytes_per_operation

    def _copy_bytes(self, value: int) -> int:
        """What a padded copy of an operand moves; kernels store their results padded."""
        is_made = not self._facts.is_storage(self._facts.base_of(value))
        return 0 if is_made else self._bytes(value)

    def _bytes(self, value: int) -> int:
        elems = likely_elems(self._facts.types[value].shape, self._sizes)
        return _COPY * elems * _NARROW_BYTES

    def _pad(self, node: Node, factors: tuple[int, int], zeros: _Zeros) -> None:
        args, writer = list(node.args), self._writer
        for number, ends in zip(factors, ((zeros.m, zeros.k), (zeros.k, zeros.n)), strict=True):
            value = operands(node)[number]
            batch = (0,) * (self._facts.types[value].rank - len(ends))
            args[number] = Ref(self._with_zeros(node, value, (*batch, *ends)))
        if factors[0]:
            args[0] = Ref(self._with_zeros(node, operands(node)[0], (zeros.n,)))
        (tensor,) = node.types
        *batch_shape, m, n = tensor.shape
        shape = (*batch_shape, m + as_expr(zeros.m), n + as_expr(zeros.n))
        wide = replace(tensor, shape=shape, strides=contiguous_strides(shape))
        if wide == tensor:
            writer.nodes.append(replace(node, args=tuple(args)))
            return
        made = writer.fresh(wide)
        writer.nodes.append(replace(node, args=tuple(args), results=(made,), types=(wide,)))
        starts, steps = (ZERO,) * tensor.rank, (ONE,) * tensor.rank
        writer.finish(node, "slice", made, starts=starts, limits=tensor.shape, steps=steps)

    def _with_zeros(self, reader: Node, value: int, counts: tuple[int, ...]) -> int:
        """A value with zeros at the ends of its axes; made once for all products that read it."""
        if not any(counts):
            return value
        if (value, counts) not in self._padded:
            producer = self._facts.producers.get(value)
            if producer is not None and producer.op == "permute":
                dims = ints_attr(producer, "dims")
                turned = tuple(counts[dims.index(axis)] for axis in range(len(dims)))
                source = self._with_zeros(reader, operands(producer)[0], turned)
                made = self._writer.add(producer, "permute", source, dims=dims)
            else:
                high = tuple(as_expr(count) for count in counts)
                made = self._writer.add(
                    reader, "pad", value, high=high, low=(ZERO,) * len(high), value=0.0
                )
            self._padded[value, counts] = made
        return self._padded[value, counts]
