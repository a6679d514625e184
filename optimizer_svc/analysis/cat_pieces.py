"""The pieces of a `cat`: which of them an index may fall into, and how many are too many to select.

A reader of a cat of few pieces selects one for each element: `where(i < n, a, b)`. The time for
each element, and the size of the code, grow with the number of pieces. Therefore a cat of many
pieces is stored piece by piece (`store_cats`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.graph_ir import Node
from optimizer_svc.analysis.graph_facts import GraphFacts, Piece, operands

MAX_PIECES_SELECTED = 8
"""The most pieces that a reader selects from; Inductor's `max_pointwise_cat_inputs` is 8 too."""


def is_many_pieces(facts: GraphFacts, node: Node) -> bool:
    """True for a cat with more pieces than a reader should select from."""
    return node.op == "cat" and len(facts.pieces[node.results[0]]) > MAX_PIECES_SELECTED


def is_of_row_sums(facts: GraphFacts, node: Node) -> bool:
    """True for a cat of two rows or more, each of which is a sum of products, perhaps rounded."""
    pieces = operands(node)
    if node.op != "cat" or node.attr("dim") != 0 or len(pieces) == 1:
        return False
    return all(facts.types[v].shape[0] is ONE and _is_sum_of_products(facts, v) for v in pieces)


def _is_sum_of_products(facts: GraphFacts, value: int) -> bool:
    """True for a sum of products; a bias, a rounding and a view may follow it, in this order."""
    for op in ("reshape", "convert", "add"):
        before = _operand_of(facts, value, op)
        value = value if before is None else before
    summed = _operand_of(facts, value, "sum")
    return summed is not None and _operand_of(facts, summed, "mul") is not None


def _operand_of(facts: GraphFacts, value: int, op: str) -> int | None:
    """The first operand of the node that makes a value, if it is one of `op`."""
    node = facts.producers.get(value)
    return operands(node)[0] if node is not None and node.op == op else None


def pieces_within(pieces: Sequence[Piece], axis_index: Expr, bounds: Bounds) -> tuple[Piece, ...]:
    """The pieces that an index along the axis may fall into; others are proven to be impossible."""

    def is_before(piece: Piece) -> bool:
        return bounds.is_less(axis_index, piece.start)

    def is_not_behind(piece: Piece) -> bool:
        return not bounds.is_nonnegative(axis_index - piece.limit)

    # Pieces are in order: an index before one is before all that follow.
    first = bisect_left(pieces, True, key=is_not_behind)
    return tuple(pieces[first : bisect_left(pieces, True, lo=first, key=is_before)])
