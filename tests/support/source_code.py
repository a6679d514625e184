"""The source code as syntax trees, for tests of documents that name what is in the code.

Generated code (`kernelfarm/v1`, `kernelfarm/internal`) is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernelfarm", "frontend_svc", "optimizer_svc", "codegen_svc")

_GENERATED = ("kernelfarm/v1/", "kernelfarm/internal/")


@lru_cache(maxsize=1)
def modules() -> dict[str, ast.Module]:
    """The syntax tree of each module of the public packages, by its path from the root."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    named = ((path.relative_to(ROOT).as_posix(), path) for path in paths)
    return {
        name: ast.parse(path.read_text(encoding="utf-8"), name)
        for name, path in named
        if not name.startswith(_GENERATED)
    }


def public_classes() -> dict[str, str]:
    """The file of each public class that a module defines at its top level, by the class's name."""
    return {
        node.name: path
        for path, module in modules().items()
        for node in module.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


@lru_cache(maxsize=1)
def defined_names() -> frozenset[str]:
    """Every name that modules define: `name` at the top level, `Class.member` within a class."""
    return frozenset(
        name for module in modules().values() for node in module.body for name in _names_of(node)
    )


def _names_of(node: ast.stmt) -> Iterator[str]:
    yield from _bound_names(node)
    if isinstance(node, ast.ClassDef):
        members = (name for member in node.body for name in _bound_names(member))
        yield from (f"{node.name}.{member}" for member in (*members, *_assigned_to_self(node)))


def _bound_names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _assigned_to_self(node: ast.ClassDef) -> Iterator[str]:
    for found in ast.walk(node):
        match found:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
