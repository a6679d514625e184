"""The page quotes messages and reasons that the code has, and leaves no reason out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from kernelfarm import errors
from tests.support.markdown import code_names, table_rows
from tests.support.source_code import ROOT, modules

PAGE = ROOT / "docs" / "troubleshooting.md"

MESSAGES = [code_names(row[0])[0] for row in table_rows(PAGE, "message")]
REASONS = {code_names(row[0])[0]: row[1] for row in table_rows(PAGE, "reason | gRPC status")}


@lru_cache(maxsize=1)
def texts() -> str:
    """Each text of the code, between zero characters; what is formatted into it is left out."""
    nodes = (node for module in modules().values() for node in ast.walk(module))
    return "\0".join(text for node in nodes if " " in (text := _text(node)))


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case _:
            return ""


def declared_reasons() -> Iterator[str]:
    """The reason that each error class declares."""
    for module in modules().values():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                yield from filter(None, map(_reason, node.body))


def _reason(node: ast.stmt) -> str:
    match node:
        case (
            ast.Assign(targets=[ast.Name(id="reason")], value=ast.Constant(value=str(reason)))
            | ast.AnnAssign(target=ast.Name(id="reason"), value=ast.Constant(value=str(reason)))
        ):
            return reason if reason.isupper() else ""
        case _:
            return ""


def test_each_quoted_message_is_in_the_code() -> None:
    absent = [message for message in MESSAGES if not is_in_the_code(message)]
    assert not absent, "these messages have changed: quote them as they are now"


def is_in_the_code(message: str) -> bool:
    """True if a text of the code has the parts of a message, in order."""
    parts = [re.escape(part) for part in message.split("...") if part.strip(" :;,.")]
    return bool(parts) and re.search(r"[^\0]*".join(parts), texts()) is not None


def test_each_reason_is_on_the_page() -> None:
    assert REASONS.keys() == set(declared_reasons())


def test_reasons_have_the_status_of_their_errors() -> None:
    kinds = (kind for kind in vars(errors).values() if isinstance(kind, type))
    known = (kind for kind in kinds if issubclass(kind, errors.KernelfarmError))
    statuses = {kind.reason: kind.status for kind in known}
    assert statuses.items() <= REASONS.items()
