"""Literals of a source: the values of constants and defaults, read from the syntax tree."""

from __future__ import annotations

import ast
import re
from typing import Union

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.bounds import MAX_INTEGER, MAX_TEXT_CHARS
from kernelfarm.ir.triton.language import ELEMENT_TYPES, TL

Literal = Union[int, float, bool, str, None]

_TEXT = re.compile(r"[A-Za-z0-9_ .,:;!?=<>()\[\]+*/&|#'@^~-]*")
"""Text without the signs of format strings and escapes."""
_SPECIAL_FLOATS = frozenset({"inf", "-inf", "nan"})


def check_constant(value: object) -> None:
    """Passes a literal of the syntax tree that a kernel may contain.

    Raises:
        UserKernelError: its type or size is none of a kernel's.
    """
    if value is None or isinstance(value, bool | float):
        return
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise UserKernelError(
                f"an integer of {value.bit_length()} bits; expected at most 64 bits"
            )
        return
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARS or not _TEXT.fullmatch(value):
            raise UserKernelError(
                f"text {value[:40]!r} of {len(value)} characters; expected at most"
                f" {MAX_TEXT_CHARS}, without percent signs, braces and escapes"
            )
        return
    raise UserKernelError(f"a literal of type {type(value).__name__}; expected a number or text")


def check_literal(node: ast.expr, where: str) -> None:
    """Passes a literal: a number, text, None, `float('inf')`, an element type, or a tuple of these.

    Raises:
        UserKernelError: it is an expression, which would have to be evaluated.
    """
    match node:
        case ast.Constant(value=value):
            check_constant(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            check_constant(value)
        case ast.Tuple(elts=items):
            for item in items:
                check_literal(item, where)
        case ast.Attribute(value=ast.Name(id="tl"), attr=name) if name in ELEMENT_TYPES:
            return
        case ast.Call(
            func=ast.Name(id="float"), args=[ast.Constant(value=str() as value)], keywords=[]
        ) if value in _SPECIAL_FLOATS:
            return
        case _:
            raise UserKernelError(
                f"{where} is {ast.unparse(node)[:60]!r}; expected a number, text, None,"
                f" float('inf') or an element type such as {TL}.float32"
            )


def static_integer(node: ast.expr, constants: dict[str, ast.expr]) -> int | None:
    """The integer of a literal or of a global constant, None if it is not known here."""
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = static_integer(node.operand, {})
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    return None
