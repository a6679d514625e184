"""The names of counters and log events that the code uses, with the fields of the events.

They are read from syntax trees and Lua scripts. A part of a name that varies is `*`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from tests.support.source_code import ROOT, modules

_CLIENT = "kernelfarm/client/"
_SCRIPTS = ROOT / "kernelfarm" / "cache" / "lua"

_LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})
_EVENT = re.compile(r"[a-z]+(_[a-z]+)*")
_FARM_COUNTER = re.compile(r"[a-z_*]{3,}")
_LUA_COUNTERS = (
    re.compile(r"count\('(\w+)'\)"),
    re.compile(r"refuse\('\w+', '(\w+)'\)"),
    re.compile(r"HINCRBY', stats, counter_prefix \.\. '(\w+)'"),
)
_MISS_REASON = re.compile(r"return '(\w+)', ")
_REASON_WITHOUT_COUNTER = "missing_blob"


@lru_cache(maxsize=1)
def log_events() -> dict[str, set[str]]:
    """The fields of each log event, by the event's name; `*` stands for fields of an object."""
    events: dict[str, set[str]] = {"lines_suppressed": {"*"}}  # its name is a constant
    for path, call in _calls():
        name = _event_of(call)
        if name and not path.startswith(_CLIENT):
            events.setdefault(name, set()).update(field.arg or "*" for field in call.keywords)
    return events


def client_counters() -> set[str]:
    """The counters of a client process."""
    found = {name for path, name in _constants() if path.startswith(_CLIENT)}
    for path, call in _calls():
        if not path.startswith(_CLIENT) or not call.args:
            continue
        if _function(call) == "count":
            found.update(name for name in _texts(call.args[0]) if re.search(r"\w\.", name))
        elif _function(call) == "count_refusal":
            found.update(f"refused.{tier}.*" for tier in _texts(call.args[0]))
    return found - {"refused.*.*"}


def farm_counters() -> set[str]:
    """The counters that the farm keeps in Redis."""
    found = {name for path, name in _constants() if not path.startswith(_CLIENT)}
    for path, call in _calls():
        if _function(call) == "count" and call.args and not path.startswith(_CLIENT):
            found.update(name for name in _texts(call.args[0]) if _FARM_COUNTER.fullmatch(name))
    for path in sorted(_SCRIPTS.glob("*.lua")):
        script = path.read_text(encoding="utf-8")
        found.update(name for pattern in _LUA_COUNTERS for name in pattern.findall(script))
    reasons = set(_MISS_REASON.findall((_SCRIPTS / "entries.lua").read_text(encoding="utf-8")))
    return found | {f"{reason}_misses" for reason in reasons - {_REASON_WITHOUT_COUNTER}}


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                yield path, node


def _function(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _event_of(call: ast.Call) -> str:
    """The event that a call logs; empty if it logs nothing."""
    match call.args:
        case [ast.Constant(value=str(name))] if _EVENT.fullmatch(name):
            return name if _function(call) in {*_LEVELS, "emit"} else ""
        case _:
            return ""


def _texts(node: ast.expr) -> list[str]:
    """The texts that an expression may be."""
    match node:
        case ast.JoinedStr(values=parts):
            return ["".join(_literal(part) for part in parts)]
        case _:
            return [found for part in ast.walk(node) if (found := _literal(part)) not in ("", "*")]


def _literal(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue():
            return "*"
        case _:
            return ""


def _constants() -> Iterator[tuple[str, str]]:
    """The counters in constants of modules, whose names end in COUNTER or COUNTERS."""
    for path, module in modules().items():
        for node in module.body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ) if name.endswith(("COUNTER", "COUNTERS")):
                    values = value.values if isinstance(value, ast.Dict) else [value]
                    yield from ((path, text) for found in values for text in _texts(found))
