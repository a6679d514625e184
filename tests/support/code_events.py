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
_SIGNING_POLICY = "kernelfarm/cache/signing_policy.py"
_RECORDS = "kernelfarm/cache/records.py"

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
    found: set[str] = set()
    for path, call in _calls():
        if not path.startswith(_CLIENT) or not call.args:
            continue
        if _function(call) == "count":
            names = _texts(call.args[0]) + _texts_of_constants(modules()[path], call.args[0])
            found.update(name for name in names if re.search(r"\w\.", name))
        elif _function(call) == "count_refusal":
            found.update(f"refused.{tier}.*" for tier in _texts(call.args[0]))
    return found - {"refused.*.*"}


def farm_counters() -> set[str]:
    """The counters that the farm keeps in Redis."""
    policy, records = modules()[_SIGNING_POLICY], modules()[_RECORDS]
    found = {"invalidations"}  # an argument of invalidate.lua
    found.update(_texts(_assigned(policy, "_COUNTERS")))
    found.update(_texts(_assigned(records, "STALE_SERVES_COUNTER")))
    for path, call in _calls():
        if _function(call) == "count" and call.args and not path.startswith(_CLIENT):
            found.update(name for name in _texts(call.args[0]) if _FARM_COUNTER.fullmatch(name))
    for file in sorted(_SCRIPTS.glob("*.lua")):
        script = file.read_text(encoding="utf-8")
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


def _texts_of_constants(module: ast.Module, node: ast.expr) -> list[str]:
    """The texts in the module's constants (`_NAME`) that an expression uses."""
    names = {used.id for used in ast.walk(node) if isinstance(used, ast.Name)}
    constants = (name for name in sorted(names) if re.fullmatch(r"_[A-Z_]+", name))
    return [text for name in constants for text in _texts(_assigned(module, name))]


def _literal(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue():
            return "*"
        case _:
            return ""


def _assigned(module: ast.Module, name: str) -> ast.expr:
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return value
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value):
                if found == name:
                    return value
    raise LookupError(f"no {name}")
