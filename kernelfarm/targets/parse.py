"""From the tables of a TOML file to the records of `facts`, checked against their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from kernelfarm.errors import InternalError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")


def parse_record(kind: type[_Record], table: Mapping[str, Any], where: str) -> _Record:
    """The record of a table; `where` names the table in messages.

    A field may be left out if the record has a default for it. Numbers must be positive. A tuple of
    pairs is a table, with its keys in sorted order.

    Raises:
        InternalError: a key is unknown, a required one is missing, or a value has another type.
    """
    types = _types_of(kind)
    unknown = sorted(table.keys() - types.keys())
    if unknown:
        raise InternalError(f"{where}: unknown {unknown[0]!r}; expected some of {sorted(types)}")
    values = {}
    for field in fields(kind):
        if field.name in table:
            values[field.name] = _value(types[field.name], table[field.name], where, field.name)
        elif field.default is MISSING:
            raise InternalError(f"{where}: {field.name!r} is missing")
    return kind(**values)


@lru_cache(maxsize=64)
def _types_of(kind: type) -> dict[str, Any]:
    """The types of a record's fields; reading them takes longer than reading a file."""
    return get_type_hints(kind)


def _value(expected: Any, value: object, where: str, name: str) -> Any:
    inside = f"{where}: {name}"
    if isinstance(value, dict):
        return _table(expected, value, inside)
    if get_origin(expected) is tuple and isinstance(value, list):
        return tuple(_value(get_args(expected)[0], entry, where, name) for entry in value)
    allowed = _alternatives(expected)
    if type(value) is int and float in allowed:
        value = float(value)
    if type(value) not in allowed:
        names = " or ".join(kind.__name__ for kind in allowed)
        raise InternalError(f"{inside} is {value!r}; expected {names}")
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
        raise InternalError(f"{inside} is {value}; expected a positive number")
    return value


def _table(expected: Any, table: Mapping[str, Any], where: str) -> Any:
    for kind in _alternatives(expected):
        if is_dataclass(kind):
            return parse_record(kind, table, where)
    pair = get_args(get_args(expected)[0]) if get_origin(expected) is tuple else ()
    if not pair:
        raise InternalError(f"{where} is a table; expected {expected}")
    return tuple((key, _value(pair[1], table[key], where, key)) for key in sorted(table))


def _alternatives(expected: Any) -> tuple[type, ...]:
    """The types that a value may have; a default stands for None, which TOML does not have."""
    kinds = get_args(expected) if isinstance(expected, UnionType) else (expected,)
    return tuple(kind for kind in kinds if kind is not NoneType)
