"""Calls by gRPC over HTTP/2 and by Redis's GET: requests, and when the response is complete.

Both implement only as much of their protocol as one repeated call needs, so that callers cost the
machine little compared with the servers; the benchmark reports their processor time.
"""

from __future__ import annotations

import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEADER_BYTES = 9
_MOST = 2**31 - 1
_REFILL_BYTES = 2**30
_STREAM_WINDOW = struct.pack("!HI", 4, _MOST)  # SETTINGS_INITIAL_WINDOW_SIZE


class GrpcCall:
    """One unary call, repeated on one connection; a response is checked by its length.

    Source: RFC 9113 (frames), RFC 7541 (headers, none in the table), gRPC over HTTP/2.
    """

    def __init__(self, method: str, request: bytes, answer_bytes: int) -> None:
        self._block = _headers(method)
        self._body = b"\0" + struct.pack("!I", len(request)) + request
        self._expected_bytes = answer_bytes + 5
        self._stream = -1
        self._received = bytearray()
        self._data_bytes = 0
        self._since_refill = 0
        self._replies = bytearray()

    def preface(self) -> bytes:
        """The first bytes of a connection, which set the largest windows."""
        return (
            _PREFACE
            + _frame(_SETTINGS, 0, 0, _STREAM_WINDOW)
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack("!I", _MOST - 65_535))
        )

    def next_request(self) -> bytes:
        """The bytes of the next call, on a new stream."""
        self._stream += 2
        self._data_bytes = 0
        return _frame(_HEADERS, _END_HEADERS, self._stream, self._block) + _frame(
            _DATA, _END_STREAM, self._stream, self._body
        )

    def take(self, data: bytes) -> bool:
        """Takes received bytes; True once the response is complete.

        Raises:
            RuntimeError: the call failed, or the response has another length.
        """
        self._received += data
        at, is_done = 0, False
        while len(self._received) >= at + _HEADER_BYTES:
            length = int.from_bytes(self._received[at : at + 3])
            end = at + _HEADER_BYTES + length
            if len(self._received) < end:
                break
            kind, flags = self._received[at + 3], self._received[at + 4]
            is_done |= self._handle(kind, flags, self._received[at + _HEADER_BYTES : end])
            at = end
        del self._received[:at]
        return is_done

    def replies(self) -> bytes:
        """The bytes to send back: acknowledgements and window updates."""
        waiting = bytes(self._replies)
        self._replies.clear()
        return waiting

    def _handle(self, kind: int, flags: int, payload: bytearray) -> bool:
        if kind == _DATA:
            self._data_bytes += len(payload)
            self._since_refill += len(payload)
            if self._since_refill > _REFILL_BYTES:
                increment = struct.pack("!I", self._since_refill)
                self._replies += _frame(_WINDOW_UPDATE, 0, 0, increment)
                self._since_refill = 0
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            self._replies += _frame(kind, _ACK, 0, payload if kind == _PING else b"")
        elif kind in {_RESET, _GOAWAY}:
            raise RuntimeError(f"the server ended the call or the connection: {bytes(payload)!r}")
        if kind not in {_DATA, _HEADERS} or not flags & _END_STREAM:
            return False
        if self._data_bytes != self._expected_bytes:
            raise RuntimeError(
                f"a response of {self._data_bytes - 5} bytes, expected {self._expected_bytes - 5}:"
                f" {bytes(payload)[-300:]!r}"
            )
        return True


class RedisGet:
    """One GET, repeated on one connection."""

    def __init__(self, key: str, value_bytes: int) -> None:
        self._request = f"*2\r\n$3\r\nGET\r\n${len(key)}\r\n{key}\r\n".encode()
        self._expected_bytes = len(f"${value_bytes}\r\n") + value_bytes + 2
        self._received_bytes = 0

    def preface(self) -> bytes:
        """Empty: Redis needs no preface."""
        return b""

    def next_request(self) -> bytes:
        """The command."""
        self._received_bytes = 0
        return self._request

    def take(self, data: bytes) -> bool:
        """Takes received bytes; True once the response is complete."""
        self._received_bytes += len(data)
        return self._received_bytes >= self._expected_bytes

    def replies(self) -> bytes:
        """Empty: Redis needs no replies."""
        return b""


def _headers(method: str) -> bytes:
    """The header block of a request: literal fields, never indexed; 3 and 6 are POST and http."""
    fields = (
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return b"\x83\x86" + b"".join(b"\x10" + _text(name) + _text(value) for name, value in fields)


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes | bytearray) -> bytes:
    head = len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4)
    return head + payload
