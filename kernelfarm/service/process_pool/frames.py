"""What travels between a service and its work processes: lists of bytes with lengths in front.

A frame is its kind (1 byte), the number of its parts (4 bytes), the length of each (8 bytes), and
the parts. Nothing is unpickled: a child that a hostile graph has taken over can answer with wrong
bytes, and with nothing else.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import Sequence

from kernelfarm.errors import ErrorFacts, UnavailableError

_HEAD = struct.Struct("<BI")
_LENGTH = struct.Struct("<Q")
_MAX_PARTS = 1 << 20
_MAX_MESSAGE_CHARS = 4096
FACTS = 4
"""Parts that the facts of an error take."""
_SLICE_BYTES = 256 * 1024

Parts = Sequence[bytes | memoryview]


class FrameKind(enum.IntEnum):
    """What a frame is."""

    READY = 0
    """A child tells its process id."""
    WORK = 1
    """A job's name, its affinity, and its arguments."""
    RESULT = 2
    """The memory that the child holds, and the results."""
    ERROR = 3
    """The memory that the child holds, the facts of an error, and a traceback if it hides a bug."""
    BUG = 4
    """The memory that the child holds, and the traceback of an error that is none of ours."""


class FrameError(UnavailableError):
    """The other side does not keep to the form of frames."""


def packed(kind: FrameKind, parts: Parts) -> list[bytes | memoryview]:
    """A frame, in pieces that follow each other: large parts are not copied."""
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    return [_HEAD.pack(kind, len(parts)) + lengths, *parts]


async def send_over(writer: asyncio.StreamWriter, kind: FrameKind, parts: Parts) -> None:
    """Sends a frame over a stream, no faster than the other side takes it.

    A stream copies what its socket does not take at once: large parts go in slices.
    """
    small = bytearray()
    for piece in packed(kind, parts):
        if len(piece) <= _SLICE_BYTES:
            small += piece
            continue
        writer.write(bytes(small))
        small.clear()
        view = memoryview(piece)
        for begin in range(0, len(view), _SLICE_BYTES):
            writer.write(view[begin : begin + _SLICE_BYTES])
            await writer.drain()
    writer.write(bytes(small))
    await writer.drain()


def send(peer: socket.socket, kind: FrameKind, parts: Parts) -> None:
    """Sends a frame over a blocking socket."""
    for piece in packed(kind, parts):
        peer.sendall(piece)


def receive(peer: socket.socket) -> tuple[FrameKind, list[bytes]]:
    """The next frame of a blocking socket.

    Raises:
        EOFError: the other side is gone.
    """
    kind, count = _HEAD.unpack(_exactly(peer, _HEAD.size))
    table = _exactly(peer, count * _LENGTH.size)
    return FrameKind(kind), [_exactly(peer, length) for (length,) in _LENGTH.iter_unpack(table)]


async def receive_within(
    reader: asyncio.StreamReader, max_bytes: int
) -> tuple[FrameKind, list[bytes]]:
    """The next frame of a stream.

    Raises:
        FrameError: it is no frame, or has more than `max_bytes`.
        EOFError: the other side is gone.
    """
    kind, count = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if kind not in set(FrameKind) or count > _MAX_PARTS:
        raise FrameError(f"a frame of kind {kind} with {count} parts; expected a known kind")
    table = await reader.readexactly(count * _LENGTH.size)
    lengths = [length for (length,) in _LENGTH.iter_unpack(table)]
    if sum(lengths) > max_bytes:
        raise FrameError(f"an answer of {sum(lengths)} bytes; expected at most {max_bytes}")
    return FrameKind(kind), [await reader.readexactly(length) for length in lengths]


def packed_facts(facts: ErrorFacts) -> list[bytes]:
    """The facts of an error as parts; a long message is cut."""
    retry = "" if facts.retry_after_s is None else repr(facts.retry_after_s)
    texts = (facts.status, facts.reason, facts.message[:_MAX_MESSAGE_CHARS], retry)
    return [text.encode("utf-8", "replace") for text in texts]


def unpacked_facts(parts: Sequence[bytes]) -> ErrorFacts:
    """The facts that parts tell."""
    status, reason, message, retry = (part.decode() for part in parts[:FACTS])
    return ErrorFacts(status, reason, message, float(retry) if retry else None)


def _exactly(peer: socket.socket, size: int) -> bytes:
    if size == 0:
        return b""
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = peer.recv_into(view[got:])
        if count == 0:
            raise EOFError
        got += count
    return bytes(data)
