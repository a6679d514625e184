"""Weights that a model computes from fewer bytes: integers or 8-bit floats, times scales.

Such a weight need not exist in memory: a kernel that multiplies by it computes its elements from
what is stored. Integers of less than 8 bits share a stored integer. So that a loop reads each
stored integer once, the sum over k is divided into parts (`PartOrder`). Whether the parts of an
order share stored integers is read off the indices of the stored elements.

A scale is taken out of the sums where it is one for all of their terms, or for the terms of all
parts: `sum(x * (q * scale))` becomes `sum(x * q) * scale`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, sum_of, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.graph_ir import Node, contiguous_strides
from kernelfarm.ir.prims import SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.cat_pieces import pieces_within
from optimizer_svc.analysis.graph_facts import GraphFacts, int_attr, operands
from optimizer_svc.analysis.index_maps import Index, operand_index
from optimizer_svc.analysis.verdicts import Refused

MAX_VALUES = 64
"""The most values between what is stored and a weight."""
MAX_PARTS = 8
_LEAST_SAVING = 0.75
"""What is stored must have at most this share of the weight's bytes."""
_WORD_BYTES = 4
ROW, TERM = "n", "t"
"""The names of the sizes by which positions of a weight's elements are stated."""
_CREATES = frozenset(("full", "iota"))
_NARROW_FLOATS = (DType.F16, DType.BF16)

_Positions = Mapping[int, frozenset[Expr]]


@dataclass(frozen=True, slots=True)
class PartOrder:
    """How the terms of a sum over k are divided into parts of equally many terms.

    The sum has `spans` of neighbours, in which every `step`-th term is of the same part. So a part
    is a span and a remainder, and its term t is element t * step + remainder of the span.
    """

    spans: int
    step: int

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.spans * self.step

    def start_and_step(self, part: int, k: int) -> tuple[int, int]:
        """The first element of a part, and the distance to the next one."""
        span, remainder = divmod(part, self.step)
        return span * (k // self.spans) + remainder, self.step


@dataclass(frozen=True, slots=True)
class WeightScale:
    """A factor of a weight: `views` of factor * rest, in f32, the last one first, are the weight.

    The factor is one for the terms of all parts, and, if it `is_of_row`, for all terms of a row.
    """

    factor: int
    rest: int
    views: tuple[int, ...]
    is_of_row: bool


@dataclass(frozen=True, slots=True)
class IntegerWeight:
    """A weight that is computed from `stored_bytes` in memory; sums by it are made of parts.

    If it `has_rows`, terms of a part are neighbours in memory; else results are. Most of what is
    stored has type `dtype`: integers, or floats of 8 bits.
    """

    order: PartOrder
    has_rows: bool
    stored_bytes: int
    dtype: DType
    scale: WeightScale | None = None


def integer_weight(
    facts: GraphFacts,
    weight: int,
    readers: frozenset[int],
    returned: frozenset[int],
    *,
    has_columns: bool,
) -> IntegerWeight | Refused:
    """The form of a weight (n, k), or (k, n) if it `has_columns`, that prims compute.

    `readers` are the positions of the nodes that read it for the product, `returned` the values
    that the graph returns.
    """
    sources = _stored_for(facts, weight, readers, returned)
    if isinstance(sources, Refused):
        return sources
    kind = facts.types[weight]
    if not all(extent.is_constant for extent in kind.shape):
        return Refused("by a computed weight of varying sizes")
    size = facts.numel(weight).constant
    stored_bytes = sum(_size_bytes(facts, source) for source in sources)
    if not sources or stored_bytes > _LEAST_SAVING * size * kind.dtype.itemsize_bytes:
        return Refused("by a computed weight that takes no fewer bytes before")
    largest = max(sources, key=lambda source: facts.numel(source).constant)
    if not size or facts.numel(largest) is ZERO:
        return Refused("without terms or results")
    parts, rest = divmod(size, facts.numel(largest).constant)
    indices = WeightIndices(facts, weight, has_columns)
    if not rest and parts <= MAX_PARTS:
        for order in _orders(facts, largest, parts, indices.k):
            has_rows = indices.share_elements(order, largest)
            if has_rows is not None:
                scale = _scale_of(facts, weight, indices, order)
                dtype = facts.types[largest].dtype
                return IntegerWeight(order, has_rows, stored_bytes, dtype, scale)
    return Refused("by a computed weight whose elements are stored in another order")


def _orders(facts: GraphFacts, source: int, parts: int, k: int) -> Iterator[PartOrder]:
    """The orders in which integers may share a stored one; bytes that make words come first."""
    itemsize = facts.types[source].dtype.itemsize_bytes
    in_words = _WORD_BYTES // itemsize if parts > 1 and itemsize < _WORD_BYTES else 1
    for number in dict.fromkeys((in_words, 1)):
        if number * parts <= MAX_PARTS and k % (number * parts) == 0:
            yield PartOrder(1, number * parts)
            if parts > 1:
                yield PartOrder(parts, number)


def _size_bytes(facts: GraphFacts, value: int) -> int:
    return facts.numel(value).constant * facts.types[value].dtype.itemsize_bytes


def _stored_for(
    facts: GraphFacts, weight: int, readers: frozenset[int], returned: frozenset[int]
) -> frozenset[int] | Refused:
    """The stored values that a weight is computed from, if what is computed serves it alone."""
    values: set[int] = set()
    sources: set[int] = set()
    pending = [weight]
    while pending:
        value = pending.pop()
        spend(4)
        if value in values or value in sources:
            continue
        if facts.is_storage(value):
            if not facts.numel(value).is_constant:
                return Refused("by a computed weight of varying sizes")
            sources.add(value)
            if len(sources) > MAX_VALUES:
                return Refused("by a weight that many tensors make")
            continue
        node = facts.producers[value]
        is_known = node.op in SCALAR_OPS or node.op in _CREATES or node.op == "cat"
        if not is_known and not facts.is_view(value):
            return Refused(f"by a weight that {node.op} computes")
        values.add(value)
        if len(values) > MAX_VALUES:
            return Refused("by a weight that many operations compute")
        pending += operands(node)
    if _are_read_elsewhere(facts, weight, values, readers, returned):
        return Refused("by a computed weight that others read")
    return frozenset(sources)


def _are_read_elsewhere(
    facts: GraphFacts,
    weight: int,
    values: set[int],
    readers: frozenset[int],
    returned: frozenset[int],
) -> bool:
    """True if others than `readers` need what is computed for a weight, so that it is stored."""
    inside = {facts.positions[value] for value in values} | readers
    large = [value for value in values if _is_large(facts, value, facts.numel(weight))]
    return any(
        value in returned or not inside.issuperset(_living_readers(facts, value, returned))
        for value in large
    )


def _living_readers(facts: GraphFacts, value: int, returned: frozenset[int]) -> list[int]:
    """The positions of the nodes that read a value, but for those whose results nothing reads."""

    def is_read(result: int) -> bool:
        return result in returned or result in facts.consumers

    readers = facts.consumers.get(value, ())
    spend(len(readers))
    return [at for at in readers if any(map(is_read, facts.graph.nodes[at].results))]


def _is_large(facts: GraphFacts, value: int, weight_size: Expr) -> bool:
    """True for what is worth to be computed once: no constant, and no scale of a row or group."""
    if not operands(facts.producers[value]):
        return False
    size = facts.numel(value)
    if not (size.is_constant and weight_size.is_constant):
        return True
    return size.constant * 2 * MAX_PARTS > weight_size.constant


class WeightIndices:
    """Where the elements of a weight's terms are stored."""

    def __init__(self, facts: GraphFacts, weight: int, has_columns: bool) -> None:
        self._facts = facts
        self._weight = weight
        self._has_columns = has_columns
        shape = facts.types[weight].shape
        self.n, self.k = (extent.constant for extent in shape[:: -1 if has_columns else 1])

    def bounds(self, order: PartOrder) -> Bounds:
        """The ranges of a row and of a part's terms."""
        terms = as_expr(self.k // order.count - 1)
        return Bounds({TERM: Range(ZERO, terms), ROW: Range(ZERO, as_expr(self.n - 1))})

    def index(self, order: PartOrder, part: int) -> Index:
        """The index of a part's terms in the weight."""
        start, step = order.start_and_step(part, self.k)
        term, row = symbol(TERM) * step + start, symbol(ROW)
        return (term, row) if self._has_columns else (row, term)

    def share_elements(self, order: PartOrder, source: int) -> bool | None:
        """Whether terms of a part are neighbours in a stored value (true), or rows are (false).

        None if parts do not read the same elements, or bytes beside each other, in order.
        """
        joined = _WORD_BYTES // self._facts.types[source].dtype.itemsize_bytes
        bounds = self.bounds(order)
        seen: set[Expr] = set()
        for part in range(order.count):
            found = _positions(self._facts, self._weight, self.index(order, part), bounds)
            read = frozenset() if found is None else found.get(source, frozenset())
            if len(read) != 1:  # none, a choice, or another piece of a cat
                return None
            seen |= read
        first = min(seen, key=lambda position: position.substitute({TERM: 0, ROW: 0}).constant)
        apart = [position - first for position in seen]
        if not all(each.is_constant and each.constant < joined for each in apart):
            return None
        steps = [step[0] for name in (TERM, ROW) if (step := first.linear_in(name))]
        if len(steps) < 2 or not all(step.is_constant for step in steps):
            return None
        if steps[0].constant == len(seen):
            return True
        return False if steps[1] is ONE and len(seen) == 1 else None


def _positions(
    facts: GraphFacts, value: int, index: Index, bounds: Bounds
) -> dict[int, frozenset[Expr]] | None:
    """Where in each stored value an element is read; None if a cat's piece is not known."""
    found: dict[int, frozenset[Expr]] = {}
    pending, seen = [(value, index)], set()
    while pending:
        current, at = pending.pop()
        spend(4 + len(at))
        if (current, at) in seen:
            continue
        seen.add((current, at))
        if facts.is_storage(current):
            position = simplify(stored_position(facts, current, at), bounds)
            found[current] = found.get(current, frozenset()) | {position}
            continue
        inner = operand_indices(facts, facts.producers[current], at, bounds)
        if inner is None:
            return None
        pending += inner
    return found


def operand_indices(
    facts: GraphFacts, node: Node, at: Index, bounds: Bounds
) -> list[tuple[int, Index]] | None:
    """The elements of a node's operands that an element of its result is made of.

    None if it is not known which piece of a cat has the element.
    """
    (result,) = node.results
    if node.op == "cat":
        dim = int_attr(node, "dim")
        pieces = pieces_within(facts.pieces[result], at[dim], bounds)
        if len(pieces) != 1:
            return None
        within = simplify(at[dim] - pieces[0].start, bounds)
        return [(pieces[0].value, (*at[:dim], within, *at[dim + 1 :]))]
    if not facts.is_view(result):
        return [(value, at) for value in operands(node)]
    (value,) = operands(node)
    return [(value, _within(facts, node, at, bounds))]


def _within(facts: GraphFacts, view: Node, at: Index, bounds: Bounds) -> Index:
    (value,) = operands(view)
    inner = operand_index(view, at, facts.types[value].shape, bounds)
    return tuple(simplify(part, bounds) for part in inner)


def stored_position(facts: GraphFacts, value: int, at: Index) -> Expr:
    """Where an element of a stored value lies in its memory."""
    kind = facts.types[value]
    strides = kind.strides or contiguous_strides(kind.shape)
    return sum_of(part * stride for part, stride in zip(at, strides, strict=True))


def _scale_of(
    facts: GraphFacts, weight: int, indices: WeightIndices, order: PartOrder
) -> WeightScale | None:
    """The factor of a weight that is one for the terms of all parts; None if there is none.

    What it multiplies is a value of the weight's type in eager, so it is within that type's range.
    A cast of the program keeps the factor where it is.
    """
    views: list[int] = []
    value = weight
    while (node := facts.producers.get(value)) is not None:
        spend(2)
        if node.op == "mul" and node.types[0].dtype is DType.F32:
            break
        is_rounding = node.op == "convert" and node.types[0].dtype in _NARROW_FLOATS
        if not facts.is_view(value) and not (is_rounding and node.attr("is_cast") is not True):
            return None
        if facts.is_view(value):
            views.append(value)
        (value,) = operands(node)
    if node is None:
        return None
    bounds = indices.bounds(order)
    for factor, rest in (operands(node), operands(node)[::-1]):
        positions = [
            _positions_through(facts, views, factor, indices.index(order, part), bounds)
            for part in range(order.count)
        ]
        if positions[0] is None or any(found != positions[0] for found in positions):
            continue
        symbols = {name for found in positions[0].values() for at in found for name in at.symbols}
        if TERM not in symbols or order.count > 1:
            return WeightScale(factor, rest, tuple(views), is_of_row=TERM not in symbols)
    return None


def _positions_through(
    facts: GraphFacts, views: list[int], value: int, index: Index, bounds: Bounds
) -> _Positions | None:
    """Where an element of a factor is stored that an element of the weight needs."""
    for view in views:
        index = _within(facts, facts.producers[view], index, bounds)
    return _positions(facts, value, index, bounds)
