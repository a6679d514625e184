"""Messages between a service and its work processes: frames, which are lists of bytes.

A frame is its kind (1 byte), the number of its parts (4 bytes), the length of each part (8 bytes),
and the parts; all numbers are little-endian. Nothing is unpickled: a child that a hostile graph has
compromised can reply with wrong bytes, but cannot execute code in the service.
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
"""The number of parts that the facts of an error take."""
_SLICE_BYTES = 256 * 1024

Parts = Sequence[bytes | memoryview]


class FrameKind(enum.IntEnum):
    """The kind of a frame."""

    READY = 0
    """A child is ready: its process id."""
    WORK = 1
    """A job: its name and its arguments."""
    RESULT = 2
    """A job has succeeded: the memory that the child holds, in bytes, and the results."""
    ERROR = 3
    """A job raised a KernelfarmError: the child's memory, the facts, a traceback if useful."""
    BUG = 4
    """A job raised another exception: the child's memory and the traceback."""


class FrameError(UnavailableError):
    """Received bytes are not a frame, or the frame is too large."""


def packed(kind: FrameKind, parts: Parts) -> list[bytes | memoryview]:
    """The bytes of a frame, in consecutive pieces, so that large parts are not copied."""
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    return [_HEAD.pack(kind, len(parts)) + lengths, *parts]


async def send_over(writer: asyncio.StreamWriter, kind: FrameKind, parts: Parts) -> None:
    """Sends a frame over a stream, with backpressure.

    A stream copies what its socket does not accept at once, so large parts are sent in slices.
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
    """Receives the next frame from a blocking socket.

    Raises:
        EOFError: the other side has closed the socket.
    """
    kind, count = _HEAD.unpack(_exactly(peer, _HEAD.size))
    table = _exactly(peer, count * _LENGTH.size)
    return FrameKind(kind), [_exactly(peer, length) for (length,) in _LENGTH.iter_unpack(table)]


async def receive_within(
    reader: asyncio.StreamReader, max_bytes: int
) -> tuple[FrameKind, list[bytes]]:
    """Receives the next frame from a stream.

    Raises:
        FrameError: the bytes are not a frame, or the parts have more than `max_bytes`.
        EOFError: the other side has closed the stream.
    """
    kind, count = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if kind not in set(FrameKind) or count > _MAX_PARTS:
        raise FrameError(
            f"a frame of kind {kind} with {count} parts; expected a known kind and at most"
            f" {_MAX_PARTS} parts"
        )
    table = await reader.readexactly(count * _LENGTH.size)
    lengths = [length for (length,) in _LENGTH.iter_unpack(table)]
    if sum(lengths) > max_bytes:
        raise FrameError(f"a result of {sum(lengths)} bytes; expected at most {max_bytes}")
    return FrameKind(kind), [await reader.readexactly(length) for length in lengths]


def packed_facts(facts: ErrorFacts) -> list[bytes]:
    """The facts of an error as parts of a frame; a long message is cut."""
    retry = "" if facts.retry_after_s is None else repr(facts.retry_after_s)
    texts = (facts.status, facts.reason, facts.message[:_MAX_MESSAGE_CHARS], retry)
    return [text.encode("utf-8", "replace") for text in texts]


def unpacked_facts(parts: Sequence[bytes]) -> ErrorFacts:
    """The facts of an error from parts of a frame."""
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
