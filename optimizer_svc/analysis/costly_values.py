"""Which values of a graph are stored because it costs less than to compute them again.

Reductions, scans and sorts are stored, and what several readers would compute at a high price. Of
an f32 that is a value of 16 bits in a wider type, the value of 16 bits is stored.

A sum of many large results of the framework, such as the gradients of a weight that each step of a
recurrent network uses, is computed in parts, which are stored: one kernel for the whole sum would
keep the memory of all of them until the last one exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.prims import CLIENT_OPS, FUNCTION_OPS
from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.cat_pieces import is_many_pieces
from optimizer_svc.analysis.extents import is_single, likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import (
    GATHER_OPS,
    REDUCE_OPS,
    SCAN_OPS,
    SORT_OPS,
    VIEW_OPS,
    GraphFacts,
    operands,
)
from optimizer_svc.analysis.index_complexity import IndexComplexity
from optimizer_svc.analysis.sole_readers import has_sole_reader
from optimizer_svc.analysis.storages import Storage, temporary_storage

MAX_OPS_RECOMPUTED = 30
"""The most operations that several readers repeat instead of reading a result."""
MAX_READS_RECOMPUTED = 2
"""The most tensors that several readers read again: with three, a store and two loads cost less."""
MIN_READ_FOR_STORED = 1.5
"""The fewest bytes that are read for each byte of such a value. With two readers, both ways move
the same if it is 2. Caches hold what is much smaller than the value, as a channel's mean."""
MAX_OPS_OF_FEW_BYTES = 8
"""The most operations that are repeated because this reads few bytes: those of a normalized value
whose mean and inverse deviation are known, but not of one that computes these, too."""
MAX_OPS_INLINE = 64
"""The most operations of one expression; also limits the recursion that lowers it."""
MIN_ELEMS_EXPANDED = 1 << 14
"""With fewer elements, recomputing an expanded value costs less than another launch."""
MAX_OPS_EXPANDED = 8
MIN_BYTES_ROUNDED = 1 << 20
"""The fewest bytes of a reduction's result that is stored in 16 bits instead of f32."""
NARROW_BYTES = 2
MAX_ADDED = 4
"""The most results of the framework that one kernel adds: more of them would be alive together."""
MIN_ADDED_BYTES = 1 << 16
"""Results of fewer bytes are added by one kernel: a launch costs more than their memory."""

WHOLE_ROWS = REDUCE_OPS | SCAN_OPS | SORT_OPS
"""Prims for which one element needs many elements of the operand."""
_EXPANDING = GATHER_OPS | {"broadcast_in_dim", "window"}


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of one element: operations, tensors read, and transcendental operations.

    `index_ops` of the operations compute from positions alone where a gather reads.
    """

    ops: int
    reads: frozenset[int]
    heavy: int
    index_ops: int = 0


def store_costly(
    facts: GraphFacts, storages: dict[int, Storage], computed: frozenset[int]
) -> frozenset[int]:
    """Adds storages of reductions, scans, sorts, and values that are too costly to recompute.

    `computed` are never stored. It returns the parts of sums that are stored.
    """
    uses = _uses_through_views(facts)
    sizes = likely_sizes(facts.graph.symbols)
    costs: dict[int, _Cost] = {}
    complexity = IndexComplexity(facts, storages)
    sums = _Sums(facts, storages, uses, sizes)
    for node in facts.graph.nodes:
        if node.op in CLIENT_OPS:
            continue
        value = node.results[0]
        if value in computed:
            costs[value] = _cost(node, costs, storages, facts)
            continue
        if complexity.is_too_complex(node):
            _materialize_operands(facts, storages, node)
        part = sums.part_of(node, costs)
        if part is not None:
            storages[part] = temporary_storage(facts, part)
        costs[value] = cost = _cost(node, costs, storages, facts)
        if node.op in _EXPANDING:
            _materialize_expanded(facts, storages, node, costs, sizes)
        if value in storages or node.op in VIEW_OPS:
            continue
        is_forced = node.op in WHOLE_ROWS or cost.ops > MAX_OPS_INLINE
        is_forced |= _rounds_large_reduction(facts, node, uses, sizes)
        stored = _narrowest(facts, node)
        is_repeated = uses[value] > 1 and _is_costly(cost, facts, stored, sizes)
        if is_forced or (is_repeated and not has_sole_reader(facts, value, storages)):
            storages[stored] = temporary_storage(facts, stored)
            if stored != value:
                costs[value] = _cost(node, costs, storages, facts)
    return frozenset(sums.parts)


def _rounds_large_reduction(
    facts: GraphFacts, node: Node, uses: Mapping[int, int], sizes: Mapping[str, int]
) -> bool:
    """True for a large reduction's result in 16 bits, if nothing reads more of its bits.

    Otherwise other kernels would read the result in f32. Products are left to their own passes.
    """
    if node.op != "convert" or node.types[0].dtype.itemsize_bytes != NARROW_BYTES:
        return False
    (reduced,) = operands(node)
    reduction = facts.producers.get(reduced)
    if reduction is None or reduction.op not in REDUCE_OPS or uses[reduced] > 1:
        return False
    term = facts.producers.get(operands(reduction)[0])
    if term is not None and term.op == "mul":
        return False
    elems = likely_elems(node.types[0].shape, sizes)
    return elems * NARROW_BYTES >= MIN_BYTES_ROUNDED


def _narrowest(facts: GraphFacts, node: Node) -> int:
    """The value that is stored for a node's result: what it widens, if it is f32 of 16 bits."""
    (value,), tensor = node.results, node.types[0]
    if node.op != "convert" or tensor.dtype is not DType.F32:
        return value
    (source,) = operands(node)
    return source if facts.types[source].dtype in (DType.F16, DType.BF16) else value


class _Sums:
    """Sums of large results of the framework that nothing else reads."""

    def __init__(
        self,
        facts: GraphFacts,
        storages: Mapping[int, Storage],
        uses: Mapping[int, int],
        sizes: Mapping[str, int],
    ) -> None:
        self.parts: list[int] = []
        self._facts = facts
        self._storages = storages
        self._uses = uses
        self._sizes = sizes

    def part_of(self, node: Node, costs: Mapping[int, _Cost]) -> int | None:
        """The operand of a sum of too many results that must be stored; None if there is none."""
        if node.op != "add" or len(operands(node)) != 2:
            return None
        added = {value: self._added(value, costs) for value in operands(node)}
        if len(frozenset().union(*added.values())) <= MAX_ADDED:
            return None
        part = max(added, key=lambda value: len(added[value]))
        if part in self._storages or self._facts.producers[part].op != "add":
            return None
        self.parts.append(part)
        return part

    def _added(self, value: int, costs: Mapping[int, _Cost]) -> frozenset[int]:
        """The large results of the framework that an operand reads last."""
        reads = frozenset([value]) if value in self._storages else costs[value].reads
        spend(len(reads))
        return frozenset(filter(self._is_added, reads))

    def _is_added(self, value: int) -> bool:
        if self._storages[value].kind is not BufferKind.EXTERN or self._uses[value] > 1:
            return False
        tensor = self._facts.types[value]
        return likely_elems(tensor.shape, self._sizes) * tensor.dtype.itemsize_bytes >= (
            MIN_ADDED_BYTES
        )


def _materialize_operands(facts: GraphFacts, storages: dict[int, Storage], node: Node) -> None:
    for value in operands(node):
        if value not in storages:
            storages[value] = temporary_storage(facts, value)


def _is_costly(cost: _Cost, facts: GraphFacts, stored: int, sizes: Mapping[str, int]) -> bool:
    """True if several readers should read `stored`, instead of computing the value again."""
    if cost.ops > MAX_OPS_RECOMPUTED or cost.heavy > 0:
        return True
    if len(cost.reads) <= MAX_READS_RECOMPUTED:
        return False
    if cost.ops > MAX_OPS_OF_FEW_BYTES:
        return True
    spend(len(cost.reads))
    elems = likely_elems(facts.types[stored].shape, sizes)
    read_bytes = sum(_bytes_of(facts, read, elems, sizes) for read in cost.reads)
    return read_bytes >= MIN_READ_FOR_STORED * _bytes_of(facts, stored, elems, sizes)


def _bytes_of(facts: GraphFacts, value: int, most_elems: int, sizes: Mapping[str, int]) -> int:
    """The bytes of up to `most_elems` elements of a value."""
    tensor = facts.types[value]
    return min(likely_elems(tensor.shape, sizes), most_elems) * tensor.dtype.itemsize_bytes


def _cost(
    node: Node, costs: Mapping[int, _Cost], storages: Mapping[int, Storage], facts: GraphFacts
) -> _Cost:
    reads: set[int] = set()
    found = [_Cost(0, frozenset(), 0)]
    for value in operands(node):
        if value not in storages:
            found.append(costs[value])
            reads |= costs[value].reads
        elif not is_single(facts.types[value].shape):
            reads.add(value)
    spend(4 + len(found) + len(reads))
    # An element of a cat that is stored piece by piece costs an element of one piece.
    total = max if is_many_pieces(facts, node) else sum
    indices = operands(node)[1:] if node.op in GATHER_OPS else ()
    of_indices = [costs[value] for value in indices if value not in storages]
    positions = sum(cost.ops - cost.index_ops for cost in of_indices if not cost.reads)
    return _Cost(
        ops=total(cost.ops for cost in found) + int(node.op not in VIEW_OPS),
        reads=frozenset(reads),
        heavy=total(cost.heavy for cost in found) + int(node.op in FUNCTION_OPS),
        index_ops=total(cost.index_ops for cost in found) + positions,
    )


def _materialize_expanded(
    facts: GraphFacts,
    storages: dict[int, Storage],
    node: Node,
    costs: Mapping[int, _Cost],
    sizes: Mapping[str, int],
) -> None:
    """Materializes an operand whose elements would be computed again for many elements."""
    base = facts.base_of(operands(node)[0])
    if base in storages:
        return
    cost = costs[base]
    after = likely_elems(node.types[0].shape, sizes)
    before = likely_elems(facts.types[base].shape, sizes)
    is_costly = cost.heavy > 0 or cost.ops - cost.index_ops > MAX_OPS_EXPANDED
    if is_costly and after >= MIN_ELEMS_EXPANDED and after >= 2 * before:
        storages[base] = temporary_storage(facts, base)


def _uses_through_views(facts: GraphFacts) -> dict[int, int]:
    """The number of nodes, other than views, that read each value directly or through views."""
    uses = dict.fromkeys(facts.types, 0)
    for node in reversed(facts.graph.nodes):
        for value in dict.fromkeys(operands(node)):
            uses[value] += uses[node.results[0]] if node.op in VIEW_OPS else 1
    return uses
