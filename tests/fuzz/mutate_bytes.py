"""Byte-level mutations: the result may be no message."""

from __future__ import annotations

from random import Random

_LONG_VARINT = b"\xff" * 9 + b"\x7f"
_TOO_LONG_VARINT = b"\xff" * 12


def mutate_bytes(data: bytes, other: bytes, random: Random) -> bytes:
    """The data with a few bytes changed; sometimes `other` is spliced in."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        random.choice(_MUTATIONS)(changed, other, random)
    return bytes(changed)


def _flip(data: bytearray, other: bytes, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(data: bytearray, other: bytes, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF))


def _truncate(data: bytearray, other: bytes, random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def _cut(data: bytearray, other: bytes, random: Random) -> None:
    start = random.randrange(len(data) + 1)
    del data[start : start + random.choice((1, 2, 8, 64))]


def _splice(data: bytearray, other: bytes, random: Random) -> None:
    """Appends another message, or inserts a piece of it."""
    at = random.choice((len(data), random.randrange(len(data) + 1)))
    start = random.randrange(len(other) + 1)
    data[at:at] = random.choice((other, other[start : start + 200]))


def _bad_length(data: bytearray, other: bytes, random: Random) -> None:
    """A varint of too many bytes, or a length that is too large."""
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice((_LONG_VARINT, _TOO_LONG_VARINT, b"\xff\xff\xff\xff\x0f"))


def _unknown(data: bytearray, other: bytes, random: Random) -> None:
    """Unknown fields, groups among them, and one of 10 KB."""
    data += random.choice(
        (
            b"\xf8\x7f\x01",
            b"\xfa\x7f\x03abc",
            b"\xfb\x7f" * 50,
            b"\xfc\x7f",
            b"\xfa\x7f\x90\x4e" + bytes(10_000),
            b"\x00",
            b"\x07",
        )
    )


_MUTATIONS = (_flip, _flip, _set, _truncate, _cut, _splice, _bad_length, _unknown)
