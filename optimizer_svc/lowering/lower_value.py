"""Evaluates a graph value at an index: prims become statements, views become index maps.

Materialized values are read; all others are computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import copysign

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ZERO, Expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Indirect
from kernelfarm.ir.prims import SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.cat_pieces import MAX_PIECES_SELECTED, pieces_within
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import (
    VIEW_OPS,
    GraphFacts,
    Piece,
    exprs_attr,
    int_attr,
    ints_attr,
    operands,
)
from optimizer_svc.analysis.index_maps import Index, operand_index
from optimizer_svc.ir.nest import Read
from optimizer_svc.lowering.nest_body import NestBody
from optimizer_svc.lowering.scope import EvaluationScope, narrowed

_INTEGER_DIVISIONS = frozenset({"div", "floor_div", "trunc_div", "mod_floor", "fmod"})


@dataclass(frozen=True, slots=True)
class Selection:
    """A cat whose elements are selected from many pieces, at an index along its axis."""

    value: int
    axis_index: Expr
    pieces: tuple[Piece, ...]


class ValueLowering:
    """Lowers values into the body of one nest.

    `unrounded` are values of 16 bits that stay in f32 while they are computed with. `selections`
    are the cats of many pieces that were lowered.
    """

    def __init__(
        self,
        facts: GraphFacts,
        stored: Collection[int],
        bounds: Bounds,
        unrounded: Collection[int] = (),
    ) -> None:
        self.facts = facts
        self.body = NestBody()
        self.bounds = bounds
        self.origins: dict[tuple[str, int], None] = {}
        self.selections: list[Selection] = []
        self._stored = stored
        self._unrounded = unrounded
        self._known: dict[tuple[int, Index, int | None], int] = {}
        self._rules: dict[str, Callable[[Node, Index, EvaluationScope], int]] = {
            **dict.fromkeys(SCALAR_OPS, self._scalar),
            "full": self._full,
            "iota": self._iota,
            "cat": self._cat,
            "pad": self._pad,
            "take": self._take,
            "gather_nd": self._gather_nd,
            "gather_along": self._gather_along,
        }

    def everywhere(self) -> EvaluationScope:
        """The scope of values that are needed at every point."""
        return EvaluationScope(None, self.bounds)

    def value(self, value: int, index: Index, scope: EvaluationScope) -> int:
        """The number of the statement that computes the value's element at the index.

        The statement's type is f32 if the value is unrounded.
        """
        spend(2 + len(index))
        while value not in self._stored and self.facts.is_view(value):
            value, index = self._step_through_view(value, index, scope)
        key = (value, index, scope.mask)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._fresh(value, index, scope)
        return found

    def definition(self, value: int, index: Index, scope: EvaluationScope) -> int:
        """As `value`, but without reading the value itself."""
        if self.facts.is_view(value):
            return self.value(*self._step_through_view(value, index, scope), scope)
        return self._by_rule(value, index, scope)

    def scattered_index(self, node: Node, index: Index) -> Index:
        """The index of the element of a scatter's result that the update at an index changes."""
        base, *picks, _ = operands(node)
        shape = self.facts.types[base].shape
        return self._picked(shape, node, tuple(picks), index, self.everywhere())

    def note(self, node: Node) -> None:
        """Records the captured operators that a node comes from."""
        for origin in node.origins:
            self.origins[(node.op, origin)] = None

    def _step_through_view(
        self, value: int, index: Index, scope: EvaluationScope
    ) -> tuple[int, Index]:
        spend(2 + len(index))
        node = self.facts.producers[value]
        operand = operands(node)[0]
        shape = self.facts.types[operand].shape
        return operand, operand_index(node, index, shape, scope.bounds)

    def _fresh(self, value: int, index: Index, scope: EvaluationScope) -> int:
        if value in self._stored:
            return self._read(value, index, scope)
        return self._by_rule(value, index, scope)

    def _by_rule(self, value: int, index: Index, scope: EvaluationScope) -> int:
        node = self.facts.producers[value]
        rule = self._rules.get(node.op)
        if rule is None or node.op in VIEW_OPS:
            raise InternalError(f"{node.op} (value {value}) must be materialized before its uses")
        self.note(node)
        return rule(node, index, scope)

    def _read(self, value: int, index: Index, scope: EvaluationScope) -> int:
        dtype = self.facts.types[value].dtype
        exact = tuple(simplify(part, scope.bounds) for part in index)
        if scope.mask is None:
            return self.body.add(Read(value, exact), dtype)
        other = self.body.literal(dtype, 0)
        return self.body.add(Read(value, exact, scope.mask, other), dtype)

    def _scalar(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        values = tuple(self.value(v, index, scope) for v in operands(node))
        dtype = node.types[0].dtype
        if node.results[0] in self._unrounded:
            return values[0]
        if node.op == "convert":
            return self.body.convert(values[0], dtype)
        if scope.mask is not None and node.op in _INTEGER_DIVISIONS and not dtype.is_float:
            # A masked-out read gives 0, and an integer division by 0 traps.
            one = self.body.literal(dtype, 1)
            divisor = self.body.compute("where", (scope.mask, values[1], one), dtype)
            values = (values[0], divisor)
        return self.body.arithmetic(node.op, values, dtype)

    def _full(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        number = node.attr("value")
        dtype = node.types[0].dtype
        if isinstance(number, Expr):
            return self.body.convert(self.body.index_value(number), dtype)
        if not isinstance(number, int | float):
            raise InternalError(f"full: value {number!r}; expected a number")
        return self.body.literal(dtype, number)

    def _iota(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        return self.body.index_value(simplify(index[0], scope.bounds), node.types[0].dtype)

    def _cat(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        part = index[int_attr(node, "dim")]
        exact = simplify(part, scope.bounds)
        pieces = pieces_within(self.facts.pieces[node.results[0]], exact, scope.bounds)
        if len(pieces) > MAX_PIECES_SELECTED:
            self.selections.append(Selection(node.results[0], part, pieces))
        if not pieces:
            return self.body.literal(node.types[0].dtype, 0)
        return self._choose_piece(node, pieces, index, scope)

    def _choose_piece(
        self, node: Node, pieces: Sequence[Piece], index: Index, scope: EvaluationScope
    ) -> int:
        dim, dtype = int_attr(node, "dim"), node.types[0].dtype
        part = index[dim]
        result: int | None = None
        for number, piece in reversed(list(enumerate(pieces))):
            start, limit = piece.start, piece.limit
            is_first, is_last = number == 0, result is None
            bounds = (None if is_first else start, None if is_last else limit)
            inner = self._within(part, *bounds, scope)
            inner = EvaluationScope(inner.mask, narrowed(inner.bounds, part, start, limit))
            shifted = (*index[:dim], part - start, *index[dim + 1 :])
            found = self.value(piece.value, shifted, inner)
            if result is None:
                result = found
            else:
                is_here = self._is_below(part, limit)
                result = self.body.arithmetic("where", (is_here, found, result), dtype)
        assert result is not None  # pieces is not empty
        return result

    def _pad(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        low, (operand,) = exprs_attr(node, "low"), operands(node)
        shape, dtype = self.facts.types[operand].shape, node.types[0].dtype
        number = node.attr("value")
        if not isinstance(number, int | float):
            raise InternalError(f"pad: value {number!r}; expected a number")
        filler = self.body.literal(dtype, number)
        if is_empty(shape):
            return filler
        inner, condition = scope, None
        is_zero = not number and copysign(1, number) > 0
        for part, before, extent in zip(index, low, shape, strict=True):
            inner = self._within(part, before, before + extent, inner)
            inner = EvaluationScope(
                inner.mask, narrowed(inner.bounds, part, before, before + extent)
            )
            if not is_zero:
                condition = self._also_within(condition, part, before, before + extent, scope)
        shifted = tuple(part - before for part, before in zip(index, low, strict=True))
        found = self.value(operand, shifted, inner)
        # A read whose condition does not hold gives 0.
        if is_zero and not self.body.is_read_if(found, inner.mask):
            for part, before, extent in zip(index, low, shape, strict=True):
                condition = self._also_within(condition, part, before, before + extent, scope)
        if condition is None:
            return found
        return self.body.arithmetic("where", (condition, found, filler), dtype)

    def _also_within(
        self, condition: int | None, part: Expr, start: Expr, limit: Expr, scope: EvaluationScope
    ) -> int | None:
        """A condition, and that a part of an index is within limits; None if both always hold."""
        here = self._within(part, start, limit, EvaluationScope(None, scope.bounds)).mask
        return condition if here is None else self.body.logical_and(condition, here)

    def _take(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        table, picks = operands(node)
        dim, rank = int_attr(node, "dim"), self.facts.types[picks].rank
        pick = self.value(picks, index[dim : dim + rank], scope)
        part = self._indirect(pick, self.facts.types[table].shape[dim], scope)
        return self.value(table, (*index[:dim], part, *index[dim + rank :]), scope)

    def _gather_nd(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        table, *picks = operands(node)
        shape = self.facts.types[table].shape
        at = self._picked(shape, node, tuple(picks), index, scope)
        return self.value(table, at, scope)

    def _picked(
        self, shape: Index, node: Node, picks: tuple[int, ...], index: Index, scope: EvaluationScope
    ) -> Index:
        """The index in a tensor whose axes `dims` are picked by values; their axes come first."""
        dims, rank = ints_attr(node, "dims"), self.facts.types[picks[0]].rank
        parts: dict[int, Expr] = {}
        for dim, pick in zip(dims, picks, strict=True):
            number = self.value(pick, index[:rank], scope)
            parts[dim] = self._indirect(number, shape[dim], scope)
        rest = iter(index[rank:])
        return tuple(parts[axis] if axis in parts else next(rest) for axis in range(len(shape)))

    def _gather_along(self, node: Node, index: Index, scope: EvaluationScope) -> int:
        table, picks = operands(node)
        dim = int_attr(node, "dim")
        pick = self.value(picks, index, scope)
        part = self._indirect(pick, self.facts.types[table].shape[dim], scope)
        return self.value(table, (*index[:dim], part, *index[dim + 1 :]), scope)

    def _indirect(self, pick: int, extent: Expr, scope: EvaluationScope) -> Expr:
        """A value as an index expression: its own, if it is one and within range, else indirect."""
        expr = self.body.expr_of(pick)
        if expr is not None and scope.bounds.is_within(expr, extent):
            return expr
        if scope.mask is not None:
            zero = self.body.literal(self.body.dtypes[pick], 0)
            dtype = self.body.dtypes[pick]
            pick = self.body.compute("where", (scope.mask, pick, zero), dtype)
        fresh = f"%{len(self.body.statements)}"
        number = self.body.add(Indirect(fresh, pick, extent), DType.I64)
        statement = self.body.statements[number]
        assert isinstance(statement, Indirect)  # the body gives an equal statement
        for bounds in (self.bounds, scope.bounds):
            bounds.add_range(statement.symbol, Range(ZERO, extent - 1))
        return symbol(statement.symbol)

    def _is_below(self, part: Expr, limit: Expr) -> int:
        left, right = self.body.index_value(part), self.body.index_value(limit)
        return self.body.compute("lt", (left, right), DType.BOOL)

    def _within(
        self, part: Expr, start: Expr | None, limit: Expr | None, scope: EvaluationScope
    ) -> EvaluationScope:
        """The scope where also `start <= part < limit` holds; proven halves add no condition."""
        mask = scope.mask
        if start is not None and not scope.bounds.is_nonnegative(part - start):
            left, right = self.body.index_value(part), self.body.index_value(start)
            mask = self.body.logical_and(mask, self.body.compute("ge", (left, right), DType.BOOL))
        if limit is not None and not scope.bounds.is_less(part, limit):
            mask = self.body.logical_and(mask, self._is_below(part, limit))
        return EvaluationScope(mask, scope.bounds)
