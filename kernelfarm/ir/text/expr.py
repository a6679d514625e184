"""Parses integer expressions, which `str` prints."""

from __future__ import annotations

from kernelfarm.ir.algebra.expr import Expr, as_expr, maximum, minimum, symbol
from kernelfarm.ir.text.tokens import Cursor


def parse_expr(text: str) -> Expr:
    """The expression that `str` printed.

    Raises:
        MalformedMessageError: the text is not an expression.

    Example:
        >>> parse_expr("3*((i + 1)//4) - 2")
        3*((i + 1)//4) - 2
    """
    cursor = Cursor(text)
    expr = read_expr(cursor)
    cursor.end()
    return expr


def read_expr(cursor: Cursor) -> Expr:
    """Reads a sum of products."""
    total = -_product(cursor) if cursor.accept("-") else _product(cursor)
    while True:
        if cursor.accept("+"):
            total = total + _product(cursor)
        elif cursor.accept("-"):
            total = total - _product(cursor)
        else:
            return total


def _product(cursor: Cursor) -> Expr:
    product = _factor(cursor)
    while True:
        if cursor.accept("*"):
            product = product * _factor(cursor)
        elif cursor.accept("//"):
            product = product // _factor(cursor)
        elif cursor.accept("%"):
            product = product % _factor(cursor)
        else:
            return product


def _factor(cursor: Cursor) -> Expr:
    if cursor.next[0] == "int":
        return as_expr(cursor.integer())
    if cursor.accept("("):
        inner = read_expr(cursor)
        cursor.expect(")")
        return inner
    if cursor.accept("%"):
        return symbol(f"%{cursor.take()[1]}")
    name = cursor.word()
    if name not in ("min", "max") or cursor.next[1] != "(":
        return symbol(name)
    cursor.expect("(")
    left = read_expr(cursor)
    cursor.expect(",")
    right = read_expr(cursor)
    cursor.expect(")")
    return minimum(left, right) if name == "min" else maximum(left, right)
