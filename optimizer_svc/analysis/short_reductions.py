"""Which reductions over few elements become pointwise operations on slices of their operand.

On a GPU, a program of a kernel that reduces across the contiguous axis of memory has few results.
If each is made of few elements, the kernel has very many programs with little to do. Pointwise code
has fewer programs for the same loads.

A reduction stays where its loop is shared, or where slices would read more:

    its elements are adjacent in memory, so that rows are read whole
    other pointwise operators of its operand, or reductions over as few elements, join its kernel
    its result is spread again, as in a softmax, whose kernel keeps the operand
    its operand has functions, which memory would hold for the slices, or reads several tensors
    no tensor that is read has as many elements as the operand, as in products of matrices
    its result would be computed again by another kernel, or by each loop of a long row
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, product_of
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.prims import CLIENT_OPS, FUNCTION_OPS, SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.costly_values import (
    MAX_OPS_INLINE,
    MAX_READS_RECOMPUTED,
    WHOLE_ROWS,
)
from optimizer_svc.analysis.extents import likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import (
    GATHER_OPS,
    REDUCE_OPS,
    VIEW_OPS,
    GraphFacts,
    int_attr,
    ints_attr,
    operands,
    outputs_read,
)
from optimizer_svc.analysis.storages import temporary_storage
from optimizer_svc.analysis.strided_views import view_between
from optimizer_svc.analysis.verdicts import Refused

COMBINED_BY = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}
"""The reductions that become pointwise operations, each with the operation on two elements."""
_LEAST_ELEMS = 2
_MAX_VISITED = 64
_MAX_ROUNDS = 8
_STORED_OPS = CLIENT_OPS | WHOLE_ROWS | {"scatter"}
_SPREADING = GATHER_OPS | {"broadcast_in_dim", "window"}
_CHEAP_OPS = (SCALAR_OPS - FUNCTION_OPS) | VIEW_OPS | {"full", "iota"}


def short_reductions(facts: GraphFacts, target: TargetFacts) -> frozenset[int]:
    """The results of the reductions that become pointwise operations."""
    most = target.memory.most_unrolled_elems
    if most is None:
        return frozenset()
    finder = _Finder(facts, target, most)
    return finder.found() if finder.chosen else frozenset()


def reduced_elems(facts: GraphFacts, node: Node) -> int | None:
    """The number of elements that a reduction reduces to one; None if it varies."""
    shape = facts.types[operands(node)[0]].shape
    count = product_of([shape[dim] for dim in ints_attr(node, "dims")])
    return count.constant if count.is_constant else None


@dataclass(frozen=True, slots=True)
class _Sources:
    """What an operand is computed from.

    `computed` are the results of pointwise prims, with the operand if it is one; `stored` are
    values in memory, and `full` those of them that have as many elements as the operand.
    """

    computed: frozenset[int]
    stored: frozenset[int]
    full: frozenset[int]


class _Finder:
    """The reductions of one graph that may be chosen, each with what its operand is made from."""

    def __init__(self, facts: GraphFacts, target: TargetFacts, most: int) -> None:
        self._facts = facts
        self._most = most
        self._longest_row = 0 if target.gpu is None else target.gpu.max_persistent_elems
        self._sizes = likely_sizes(facts.graph.symbols)
        self._returned = frozenset(outputs_read(facts.graph))
        self._ops: dict[int, int] = {}
        self.chosen: dict[int, tuple[Node, _Sources]] = {}
        for node in facts.graph.nodes:
            self._add(node)

    def _add(self, node: Node) -> None:
        """Counts the operations of a node's elements; chooses it if it may be."""
        spend(2)
        ops = sum(self._ops.get(value, 0) for value in operands(node))
        if node.op in COMBINED_BY and self._is_short(node) and self._is_across(node):
            ops = self._unrolled_ops(node, ops)
            sources = None if ops > MAX_OPS_INLINE else self._sources(node)
            if sources is not None and self._is_read_once(node.results[0]):
                self.chosen[node.results[0]] = (node, sources)
                self._ops[node.results[0]] = ops
        elif node.op in SCALAR_OPS or node.op in VIEW_OPS:
            is_point = node.op in SCALAR_OPS
            self._ops[node.results[0]] = min(ops, MAX_OPS_INLINE) + is_point

    def _unrolled_ops(self, node: Node, ops: int) -> int:
        """The operations of an element of a result; one of the operand has `ops`."""
        count = reduced_elems(self._facts, node) or 1
        dtype = node.types[0].dtype
        conversions = count + 1 if dtype.compute_dtype is not dtype else 0
        has_zero = node.op == "sum" and dtype.is_float
        return count * (ops + 1) - 1 + has_zero + conversions

    def found(self) -> frozenset[int]:
        """The results of the reductions that share no kernel with what stays."""
        for _ in range(_MAX_ROUNDS):
            inner = self._inner()
            kept = {
                result: (node, sources)
                for result, (node, sources) in self.chosen.items()
                if self._is_apart(node, sources, inner)
            }
            if len(kept) == len(self.chosen):
                return frozenset(kept)
            self.chosen = kept
        return frozenset()

    def _is_short(self, node: Node) -> bool:
        count = reduced_elems(self._facts, node)
        return count is not None and _LEAST_ELEMS <= count <= self._most

    def _is_across(self, node: Node) -> bool:
        """True if an operand of numbers is not reduced along the last of its axes."""
        tensor = self._facts.types[operands(node)[0]]
        last = max((n for n, extent in enumerate(tensor.shape) if extent is not ONE), default=-1)
        return tensor.dtype is not DType.BOOL and last not in ints_attr(node, "dims")

    def _sources(self, node: Node) -> _Sources | None:
        """The sources of a reduction's operand; None if slices of it would cost more."""
        facts, (operand,) = self._facts, operands(node)
        size = self._elems(operand)
        computed, stored, pending = set[int](), set[int](), [operand]
        read = {operand: size}
        while pending:
            value = pending.pop()
            spend()
            made = facts.producers.get(value)
            if made is None or made.op in _STORED_OPS:
                stored.add(value)
                continue
            if made.op not in _CHEAP_OPS:
                return None
            if made.op in SCALAR_OPS:
                computed.add(value)
            for source in operands(made):
                if source not in read:
                    read[source] = min(read[value], self._elems(source))
                    pending.append(source)
            if len(read) > _MAX_VISITED:
                return None
        full = frozenset(value for value in stored if read[value] == size)
        if not full or sum(read[value] > 1 for value in stored) > MAX_READS_RECOMPUTED:
            return None
        viewed = {operand, *(v for value in computed for v in operands(facts.producers[value]))}
        if any(self._is_along(value, node) for value in viewed - computed):
            return None
        return _Sources(frozenset(computed), frozenset(stored), full)

    def _is_along(self, value: int, node: Node) -> bool:
        """True if elements that are reduced are adjacent in the memory that a value views.

        The value has the operand's shape, or is computed for a view of another one.
        """
        facts, base = self._facts, value
        if facts.types[value].shape != facts.types[operands(node)[0]].shape:
            return False
        while facts.is_view(base):
            spend(4)
            (base,) = operands(facts.producers[base])
        view = view_between(facts, value, temporary_storage(facts, base).whole())
        if isinstance(view, Refused):
            return False
        steps = [s for s, extent in zip(view.strides, view.shape, strict=True) if extent is not ONE]
        dims = (dim for dim in ints_attr(node, "dims") if view.shape[dim] is not ONE)
        return ZERO not in steps and any(view.strides[dim] is ONE for dim in dims)

    def _is_read_once(self, result: int) -> bool:
        """True if no loop reads elements of a result that another one has read."""
        seen, pending = {result}, [result]
        has_columns = False
        while pending and len(seen) <= _MAX_VISITED:
            value = pending.pop()
            for reader in self._readers(value):
                spend()
                if reader.op in WHOLE_ROWS:
                    if self._is_long_row(reader):
                        return False
                    has_columns |= not self._is_row(reader)
                if reader.op in _SPREADING and self._elems(reader.results[0]) > self._elems(value):
                    return False
                if (reader.op in SCALAR_OPS or reader.op in VIEW_OPS) and (
                    reader.results[0] not in seen
                ):
                    seen.add(reader.results[0])
                    pending.append(reader.results[0])
        return not has_columns or self._ends_in_one(result)

    def _is_row(self, node: Node) -> bool:
        """True if a reduction, scan or sort runs along the last axis."""
        rank = self._facts.types[operands(node)[0]].rank
        dims = ints_attr(node, "dims") if node.op in REDUCE_OPS else (int_attr(node, "dim"),)
        return rank - 1 in dims

    def _is_long_row(self, node: Node) -> bool:
        """True for a reduction along the last axis that one program may not hold."""
        if node.op not in REDUCE_OPS or not self._is_row(node):
            return False
        count = reduced_elems(self._facts, node)
        return count is None or count > self._longest_row

    def _ends_in_one(self, value: int) -> bool:
        """True if one node reads a value in the end, or memory holds it for several."""
        for _ in range(_MAX_VISITED):
            spend()
            readers = list(self._readers(value))
            is_stored = value in self._returned or any(r.op in CLIENT_OPS for r in readers)
            if is_stored or not readers:
                return True
            if len(readers) > 1:
                return False
            if readers[0].op not in SCALAR_OPS and readers[0].op not in VIEW_OPS:
                return True
            value = readers[0].results[0]
        return False

    def _inner(self) -> frozenset[int]:
        """The values that nothing reads but reductions that are chosen or have other lengths."""
        found: set[int] = set()
        for node in reversed(self._facts.graph.nodes):
            spend()
            for value in node.results:
                readers = self._readers(value)
                if value not in self._returned and all(self._is_inner(r, found) for r in readers):
                    found.add(value)
        return frozenset(found)

    def _is_inner(self, reader: Node, inner: Collection[int]) -> bool:
        spend()
        if reader.op in REDUCE_OPS:
            return reader.results[0] in self.chosen or not self._is_short(reader)
        is_point = reader.op in SCALAR_OPS or reader.op in VIEW_OPS
        return is_point and reader.results[0] in inner

    def _is_apart(self, node: Node, sources: _Sources, inner: frozenset[int]) -> bool:
        """True if no kernel that stays shares the loop of a reduction."""
        if not sources.computed <= inner:
            return False
        if any(self._stays_as_short(value) for value in sources.stored):
            return False
        size = self._elems(operands(node)[0])
        return all(self._is_read_apart(value, size, inner) for value in sources.full)

    def _stays_as_short(self, value: int) -> bool:
        made = self._facts.producers.get(value)
        if made is None or made.op not in REDUCE_OPS or value in self.chosen:
            return False
        return self._is_short(made)

    def _is_read_apart(self, stored: int, size: int, inner: frozenset[int]) -> bool:
        """True if no other loop over `size` elements reads a value in memory."""
        pending, visited = [stored], 0
        while pending:
            for reader in self._readers(pending.pop()):
                spend()
                visited += 1
                if visited > _MAX_VISITED:
                    return False
                if reader.op in CLIENT_OPS or self._is_inner(reader, inner):
                    continue
                value = reader.results[0]
                if reader.op in VIEW_OPS:
                    pending.append(value)
                elif self._elems(value) >= size or reader.op in REDUCE_OPS:
                    return False
        return True

    def _readers(self, value: int) -> Iterator[Node]:
        return (self._facts.graph.nodes[at] for at in self._facts.consumers.get(value, ()))

    def _elems(self, value: int) -> int:
        return likely_elems(self._facts.types[value].shape, self._sizes)
