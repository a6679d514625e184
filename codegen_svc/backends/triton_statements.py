"""The statements of a user's Triton kernel that hints stand at: loads, and loops over ranges."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statement_at(tree: ast.Module, line: int) -> tuple[ast.For | None, ast.stmt | None]:
    """The loop of a line's statement: itself, or the innermost around it; and the statement."""
    for loop, statement in _statements(tree, None):
        if statement.lineno == line:
            return statement if isinstance(statement, ast.For) else loop, statement
    return None, None


def loads_in(statement: ast.stmt) -> list[ast.Call]:
    """The calls of `tl.load` in a statement, in the order of `ast.walk`."""
    return [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _is_load(node)]


def is_range(node: ast.expr) -> bool:
    """True for `range` and `tl.range`."""
    match node:
        case ast.Name(id="range") | ast.Attribute(value=ast.Name(id="tl"), attr="range"):
            return True
    return False


def _statements(parent: ast.AST, loop: ast.For | None) -> Iterator[tuple[ast.For | None, ast.stmt]]:
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, ast.stmt):
            yield loop, child
            yield from _statements(child, child if isinstance(child, ast.For) else loop)


def _is_load(node: ast.Call) -> bool:
    match node.func:
        case ast.Attribute(value=ast.Name(id="tl"), attr="load"):
            return True
    return False
