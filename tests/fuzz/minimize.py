"""Minimizes a failing input: removes parts while it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

from tests.fuzz.messages import message_class
from tests.fuzz.mutate_message import is_map
from tests.fuzz.replay import replay
from tests.fuzz.trial_child import signature_of
from tests.fuzz.trial_runner import Limits
from tests.fuzz.trials import Trial, attempt

Path = tuple[tuple[str, int], ...]
"""The path to a submessage: fields, and the index of the item in a list (else -1)."""


def minimized(trial: Trial, data: bytes, limits: Limits) -> bytes:
    """The smallest input found that fails in the same way; other bytes stay unchanged.

    Inputs that raise are tried in this process, inputs that hang or crash in forked ones.
    """
    reference = _kind(replay(trial, data, limits))
    fails = _raises if reference and "took more than" not in reference else _is_lost(limits)
    kind = message_class(trial.message)
    try:
        best = kind.FromString(data)
    except DecodeError:
        return data
    if not reference or fails(trial, best.SerializeToString()) != reference:
        return data
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for path, name, start, count in _pieces(best):
            smaller = _without(best, path, name, start, count)
            if smaller is not None and fails(trial, smaller.SerializeToString()) == reference:
                best, is_smaller = smaller, True
    return bytes(best.SerializeToString())


def _raises(trial: Trial, data: bytes) -> str:
    try:
        attempt(trial, data)
    except Exception as error:
        return _kind(signature_of(trial, error))
    return ""


def _is_lost(limits: Limits) -> Callable[[Trial, bytes], str]:
    return lambda trial, data: _kind(replay(trial, data, limits))


def _kind(signature: str) -> str:
    """The trial, the error's class and its location; messages may differ."""
    return ":".join(signature.split(":")[:3])


def _pieces(message: Message) -> list[tuple[Path, str, int, int]]:
    """Removable parts as (path, field, first item, items), large ones before small ones.

    Later items come first: their removal does not move earlier ones.
    """
    pieces = []
    for path, name, count in sorted(_set_fields(message, ()), key=lambda p: (len(p[0]), -p[2])):
        step = max(count, 1)
        while step:
            starts = range(0, max(count, 1), step)
            pieces += [(path, name, start, step if count else 0) for start in reversed(starts)]
            step //= 2
    return pieces


def _set_fields(message: Message, path: Path) -> Iterator[tuple[Path, str, int]]:
    """Every set field: its path, its name, and its number of items (0: no list)."""
    for field, value in message.ListFields():
        if is_map(field) or not field.is_repeated:
            yield path, field.name, 0
            if field.message_type is not None and not is_map(field):
                yield from _set_fields(value, (*path, (field.name, -1)))
            continue
        yield path, field.name, len(value)
        if field.message_type is not None:
            for number, item in enumerate(value):
                yield from _set_fields(item, (*path, (field.name, number)))


def _without(message: Message, path: Path, name: str, start: int, count: int) -> Message | None:
    """A copy without a part; None if the part is gone already."""
    copy = type(message)()
    copy.CopyFrom(message)
    part: Any = copy
    for field, number in path:
        part = getattr(part, field)
        if number >= 0:
            if number >= len(part):
                return None
            part = part[number]
    if not count:
        part.ClearField(name)
        return copy
    items = getattr(part, name)
    if start >= len(items):
        return None
    del items[start : start + count]
    return copy
