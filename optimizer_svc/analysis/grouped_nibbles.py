"""Weights of integers of four bits in words, with a scale and a zero point for 128 terms of a row.

A word of 32 bits has eight neighbours of a row, the first one in its lowest bits, however the
program unpacks them from words or bytes:

    weight[n, k] = (word[n, k // 8] >> 4 * (k % 8) & 15 - zero[n, k // 128]) * scale[n, k // 128]

A template kernel computes products by them (`optimizer_svc/kernels/nibble_product.py`). Whether a
weight has this form is read off the expressions of eight neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, floor_div, symbol
from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import GraphFacts
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.analysis.integer_weights import (
    MAX_VALUES,
    ROW,
    TERM,
    IntegerWeight,
    PartOrder,
    WeightIndices,
    operand_indices,
    stored_position,
)
from optimizer_svc.analysis.verdicts import Refused

GROUP_TERMS = 128
WORD_BITS, NIBBLE_BITS = 32, 4
PARTS = WORD_BITS // NIBBLE_BITS
_NIBBLE = 15
_MAX_ZERO = 100
"""The most that is subtracted from an integer of four bits within an integer of eight bits."""
_WORDS = (DType.I32, DType.U8, DType.I8)
_FACTORS = (DType.BF16, DType.F16, DType.F32)
_WIDE_INTEGERS = (DType.I8, DType.I16, DType.I32, DType.I64)
_AMOUNTS = (DType.I32, DType.I64)
_OPERATIONS = frozenset(("bit_and", "shr_arith", "sub", "mul", "add"))
_OTHER_FORM = Refused("by integers that are unpacked in another way")


@dataclass(frozen=True, slots=True)
class GroupedNibbles:
    """The stored values of a weight: words or their bytes, scales, zero points; else one `centre`.

    Shapes: words: n rows of k / 8 words; scale and zero: n rows of k / `GROUP_TERMS` elements
    """

    words: int
    scale: int
    zero: int | None
    centre: float


@dataclass(frozen=True, slots=True)
class _Stored:
    """An element of a stored value."""

    value: int
    position: Expr


@dataclass(frozen=True, slots=True)
class _Made:
    """A result of an arithmetic operation on elements, of a type."""

    op: str
    dtype: DType
    left: _Element
    right: _Element


_Element = _Stored | _Made | int | float


def grouped_nibbles(
    facts: GraphFacts, weight: int, integers: IntegerWeight, *, has_columns: bool
) -> GroupedNibbles | Refused:
    """The form of a weight (n, k), or (k, n) if it `has_columns`, that a model computes."""
    indices = WeightIndices(facts, weight, has_columns)
    order = PartOrder(1, PARTS)
    if integers.order != order or not integers.has_rows or indices.k % GROUP_TERMS:
        return _OTHER_FORM
    bounds = indices.bounds(order)
    groups = indices.k // GROUP_TERMS
    group = simplify(floor_div(symbol(TERM), as_expr(GROUP_TERMS // PARTS)), bounds)
    found: set[GroupedNibbles] = set()
    for part in range(PARTS):
        element = _Reader(facts, bounds).element(weight, indices.index(order, part))
        form = None if element is None else _form(facts, element)
        if form is None:
            return _OTHER_FORM
        words, scale, zero = form
        start = symbol(ROW) * (indices.k * NIBBLE_BITS) + symbol(TERM) * WORD_BITS
        if words[1] is not start + NIBBLE_BITS * part:
            return _OTHER_FORM
        at = symbol(ROW) * groups + group
        if any(isinstance(f, _Stored) and f.position is not at for f in (scale, zero)):
            return Refused(f"by scales that are not those of {GROUP_TERMS} terms of a row")
        of_all = (None, float(zero)) if not isinstance(zero, _Stored) else (zero.value, 0.0)
        found.add(GroupedNibbles(words[0], scale.value, *of_all))
    return found.pop() if len(found) == 1 else _OTHER_FORM


class _Reader:
    """Reads the expression of one element, of at most `MAX_VALUES` operations."""

    def __init__(self, facts: GraphFacts, bounds: Bounds) -> None:
        self._facts = facts
        self._bounds = bounds
        self._left = MAX_VALUES

    def element(self, value: int, at: Index) -> _Element | None:
        """The expression of an element; None if it has another form than a weight's."""
        spend(4 + len(at))
        self._left -= 1
        if self._left < 0:
            return None
        if self._facts.is_storage(value):
            position = simplify(stored_position(self._facts, value, at), self._bounds)
            return _Stored(value, position)
        node = self._facts.producers[value]
        if node.op in ("full", "iota"):
            return self._number(node, at)
        inner = operand_indices(self._facts, node, at, self._bounds)
        if inner is None:
            return None
        if not (node.op in ("convert", "cat") or self._facts.is_view(value)):
            return self._made(node, inner)
        ((source, within),) = inner
        element = self.element(source, within)
        return self._converted(node, source, element) if node.op == "convert" else element

    def _number(self, node: Node, at: Index) -> int | float | None:
        """An element that is the same number for all rows and terms."""
        if node.op == "full":
            number = node.attr("value")
            return number if isinstance(number, int | float) else None
        index = simplify(at[0], self._bounds)
        is_known = index.is_constant and node.types[0].dtype in _AMOUNTS
        return index.constant if is_known else None

    def _converted(self, node: Node, source: int, element: _Element | None) -> _Element | None:
        """An element after a conversion, if that keeps it."""
        if element is None or _keeps_values(self._facts.types[source].dtype, node):
            return element
        is_small = not node.types[0].dtype.is_float and _nibble(self._facts, element) is not None
        return element if is_small else None

    def _made(self, node: Node, inner: list[tuple[int, Index]]) -> _Made | int | None:
        if node.op not in _OPERATIONS or len(inner) != 2:
            return None
        left, right = (self.element(value, at) for value, at in inner)
        if left is None or right is None:
            return None
        if isinstance(left, int) and isinstance(right, int):  # an amount of a shift
            made = {"add": left + right, "mul": left * right}.get(node.op)
            is_exact = made is not None and abs(made) < WORD_BITS
            return made if is_exact and node.types[0].dtype in _AMOUNTS else None
        return _Made(node.op, node.types[0].dtype, left, right)


def _keeps_values(before: DType, node: Node) -> bool:
    """True if a conversion keeps integers of eight bits, and rounds nothing that a program asks to.

    Eager's roundings between operations are not kept, as in other kernels.
    """
    after = node.types[0].dtype
    is_wider = after.itemsize_bytes > before.itemsize_bytes
    if before.is_float:
        is_asked_for = node.attr("is_cast") is True
        return after.is_float and (is_wider or after is before or not is_asked_for)
    return after.is_float or after is before or (is_wider and after in _WIDE_INTEGERS)


def _form(
    facts: GraphFacts, element: _Element
) -> tuple[tuple[int, Expr], _Stored, _Stored | int | float] | None:
    """Words and the first bit there, scale and zero point of an element; None: another form."""
    if not (isinstance(element, _Made) and element.op == "mul" and element.dtype.is_float):
        return None
    for scale, centred in ((element.left, element.right), (element.right, element.left)):
        if not isinstance(scale, _Stored) or facts.types[scale.value].dtype not in _FACTORS:
            continue
        for integer, zero in _differences(facts, centred):
            bits = _nibble(facts, integer)
            if bits is not None:
                return bits, scale, zero
    return None


def _differences(
    facts: GraphFacts, element: _Element
) -> Iterator[tuple[_Element, _Stored | int | float]]:
    """An element as an integer minus a zero point."""
    yield element, 0
    if not (isinstance(element, _Made) and element.op == "sub"):
        return
    zero, dtype = element.right, element.dtype
    if isinstance(zero, _Stored):
        exact = facts.types[zero.value].dtype
        if dtype.is_float and exact in (*_FACTORS, DType.I8, DType.U8):
            yield element.left, zero
    elif isinstance(zero, int | float) and (
        dtype.is_float or (dtype in _WIDE_INTEGERS and 0 <= zero <= _MAX_ZERO)
    ):
        yield element.left, zero


def _nibble(facts: GraphFacts, element: _Element) -> tuple[int, Expr] | None:
    """A stored value, and the first of four bits of it that an element is; None if it is not."""
    is_masked = isinstance(element, _Made) and element.op == "bit_and" and element.right == _NIBBLE
    inner = element.left if is_masked and isinstance(element, _Made) else element
    shift = 0
    if isinstance(inner, _Made) and inner.op == "shr_arith" and isinstance(inner.right, int):
        shift, inner = inner.right, inner.left
    if not isinstance(inner, _Stored):
        return None
    dtype = facts.types[inner.value].dtype
    bits = 8 * dtype.itemsize_bytes
    is_top = dtype is DType.U8 and shift == bits - NIBBLE_BITS
    if dtype not in _WORDS or not 0 <= shift <= bits - NIBBLE_BITS or not (is_masked or is_top):
        return None
    return inner.value, inner.position * bits + shift
