"""Structure-aware mutations: the result is a message of its type, with wrong content.

A mutation descends from the message along set fields, stops at a random depth, and changes one
field there. Crossovers replace submessages by those of other messages in the corpus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

from tests.fuzz.hostile_values import hostile_value

MAX_BYTES = 200_000
"""Repeated fields grow up to about this size, far below the limits on messages."""

_DEPTHS = (2, 5, 20, 40, 44, 46)
"""Each level of an expression or list is two messages, and protobuf's limit is 100."""

_COUNTS = (2, 3, 10, 65, 130, 1025, 3000)


class PartPool:
    """Submessages of the corpus by type, and texts and numbers by field, for crossovers."""

    def __init__(self, messages: Iterable[Message], most: int = 400) -> None:
        self._most = most
        self._parts: dict[str, list[Message]] = defaultdict(list)
        self._values: dict[str, list[Any]] = defaultdict(list)
        random = Random(0)
        for message in messages:
            self._take(message, random)

    def part(self, descriptor: Descriptor, random: Random) -> Message | None:
        """A message of a type; None if the corpus has none."""
        known = self._parts.get(descriptor.full_name)
        return random.choice(known) if known else None

    def value(self, field: Field, random: Random) -> Any:
        """A value of such a field in the corpus; None if there is none."""
        known = self._values.get(field.full_name)
        return random.choice(known) if known else None

    def _take(self, message: Message, random: Random) -> None:
        self._put(self._parts[message.DESCRIPTOR.full_name], message, random)
        for field, value in message.ListFields():
            if is_map(field):
                continue
            items = value if field.is_repeated else (value,)
            for item in items:
                if isinstance(item, Message):
                    self._take(item, random)
                else:
                    self._put(self._values[field.full_name], item, random)

    def _put(self, known: list[Any], item: Any, random: Random) -> None:
        if len(known) < self._most:
            known.append(item)
        elif random.random() < 0.2:
            known[random.randrange(self._most)] = item


def mutate(message: Message, pool: PartPool, random: Random) -> None:
    """Changes one field somewhere in a message."""
    parent = _somewhere(message, random)
    fields = [f for f in parent.DESCRIPTOR.fields if not is_map(f)]
    maps = [f for f in parent.DESCRIPTOR.fields if is_map(f)]
    if maps and (not fields or random.random() < 0.2):
        _change_map(parent, random.choice(maps), random)
        return
    if not fields:
        return
    is_set = [field for field, _ in parent.ListFields() if not is_map(field)]
    field = random.choice(is_set if is_set and random.random() < 0.75 else fields)
    if random.random() < 0.06:
        parent.ClearField(field.name)
    elif field.is_repeated:
        _change_repeated(parent, field, pool, random)
    elif field.message_type is not None:
        _change_child(parent, field, pool, random)
    else:
        setattr(parent, field.name, _other_value(getattr(parent, field.name), field, pool, random))


def is_map(field: Field) -> bool:
    """True for a `map<...>` field."""
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _somewhere(message: Message, random: Random) -> Message:
    """A random submessage, deep ones as often as shallow ones."""
    while random.random() < 0.85:
        children = [
            (field, value)
            for field, value in message.ListFields()
            if field.message_type is not None and not is_map(field)
        ]
        if not children:
            return message
        field, value = random.choice(children)
        message = random.choice(value) if field.is_repeated else value
    return message


def _other_value(old: Any, field: Field, pool: PartPool, random: Random) -> Any:
    if isinstance(old, int) and not isinstance(old, bool) and random.random() < 0.3:
        value = old + random.choice((1, -1, 2, old))
        bounds = {Field.CPPTYPE_UINT32: (0, 2**32), Field.CPPTYPE_UINT64: (0, 2**64)}
        low, high = bounds.get(field.cpp_type, (-(2**31), 2**31))
        return max(low, min(value, high - 1))
    known = pool.value(field, random) if random.random() < 0.35 else None
    return hostile_value(field, random) if known is None else known


def _change_map(parent: Message, field: Field, random: Random) -> None:
    entries = getattr(parent, field.name)
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(random.choice((1, 1, 2, 40, 3000))):
        name = hostile_value(key, random)
        if random.random() < 0.5 and isinstance(name, str):
            name = random.choice(("s0", "s1", "graph", "target", "driver", "torch")) + name[:8]
        if value.message_type is not None:
            entries[name].SetInParent()
        else:
            entries[name] = hostile_value(value, random)


def _change_repeated(parent: Message, field: Field, pool: PartPool, random: Random) -> None:
    items = getattr(parent, field.name)
    action = random.choice(_REPEATED if items else ("insert",))
    if action == "drop":
        del items[random.randrange(len(items))]
    elif action == "truncate":
        del items[random.randrange(len(items)) :]
    elif action == "swap":
        order = list(items)
        random.shuffle(order)
        _replace(items, order)
    elif action == "repeat":
        _repeat(items, random)
    elif action == "insert":
        _replace(items, _with_one_more(list(items), field, pool, random))
    elif field.message_type is not None:
        mutate(random.choice(items), pool, random)
    else:
        at = random.randrange(len(items))
        items[at] = _other_value(items[at], field, pool, random)


_REPEATED = ("drop", "truncate", "swap", "repeat", "insert", "insert", "change", "change", "change")


def _with_one_more(items: list[Any], field: Field, pool: PartPool, random: Random) -> list[Any]:
    if field.message_type is not None:
        new: Any = pool.part(field.message_type, random)
        new = field.message_type._concrete_class() if new is None else new
    else:
        new = _other_value(items[0] if items else None, field, pool, random)
    items.insert(random.randint(0, len(items)), new)
    return items


def _repeat(items: Any, random: Random) -> None:
    """Repeats one item many times, or all items once."""
    if random.random() < 0.3:
        again = list(items)
    else:
        item = random.choice(items)
        size = item.ByteSize() if isinstance(item, Message) else len(str(item))
        count = min(random.choice(_COUNTS), MAX_BYTES // max(size, 1) + 1)
        again = [item] * count
    items.extend(again)


def _replace(items: Any, order: list[Any]) -> None:
    if order and isinstance(order[0], Message):
        copies = [_copy(item) for item in order]
        del items[:]
        items.extend(copies)
    else:
        items[:] = order


def _change_child(parent: Message, field: Field, pool: PartPool, random: Random) -> None:
    other = pool.part(field.message_type, random)
    child = getattr(parent, field.name)
    if other is not None and random.random() < 0.6:
        child.CopyFrom(other)
    elif random.random() < 0.4:
        _nest(parent, field, random)
    else:
        child.SetInParent()
        if child.DESCRIPTOR.fields:
            mutate(child, pool, random)


def _nest(parent: Message, field: Field, random: Random) -> None:
    """Nests a recursive submessage deeply in copies of its type."""
    child = getattr(parent, field.name)
    inner = _copy(child)
    depth = random.choice(_DEPTHS)
    if inner.DESCRIPTOR.full_name == "kernelfarm.v1.Expr":
        op = random.randint(1, 6)
        for _ in range(depth):
            outer = type(inner)()
            outer.call.op = op
            outer.call.operands.extend([inner, type(inner)(symbol=random.choice(("s0", "s1")))])
            inner = outer
            if inner.ByteSize() > MAX_BYTES:
                break
    elif inner.DESCRIPTOR.full_name == "kernelfarm.v1.Argument":
        for _ in range(depth):
            outer = type(inner)()
            outer.list.items.append(inner)
            inner = outer
    child.CopyFrom(inner)


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
