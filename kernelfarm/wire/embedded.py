"""Messages with fields that are serialized already.

A serialized message may be composed of serialized pieces: later fields are merged into earlier ones
(https://protobuf.dev/programming-guides/encoding/#last-one-wins). A gateway can therefore send a
stored program to a client without decoding and encoding it.
"""

from __future__ import annotations

from google.protobuf.message import Message

_LENGTH_DELIMITED = 2
_LOW_BITS, _MORE = 0x7F, 0x80
_SHORT = tuple(bytes((value,)) for value in range(_MORE))


def field_tag(message: type[Message], name: str) -> bytes:
    """The first bytes of a serialized field of bytes or of a message: its number and wire type."""
    number = int(message.DESCRIPTOR.fields_by_name[name].number)
    return _varint(number << 3 | _LENGTH_DELIMITED)


def embedded(tag: bytes, *parts: bytes) -> tuple[bytes, ...]:
    """A serialized field with this tag, from the parts of its content."""
    return (tag + _varint(sum(map(len, parts))), *parts)


def _varint(value: int) -> bytes:
    if value < _MORE:
        return _SHORT[value]
    if value < _MORE << 7:
        return bytes((value & _LOW_BITS | _MORE, value >> 7))
    written = bytearray()
    while value > _LOW_BITS:
        written.append(value & _LOW_BITS | _MORE)
        value >>= 7
    written.append(value)
    return bytes(written)
