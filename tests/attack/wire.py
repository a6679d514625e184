"""A gRPC caller that costs its machine little: it sends slices of a serialized message as HTTP/2.

A gRPC library copies the whole body before it sends the bytes that the receiver's window allows.
With 30 MiB that uses a core of the machine, which the farm shares.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Self

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

_READ_BYTES = 1 << 16
_STATUS_NAMES = {str(code.value[0]): code.name for code in grpc.StatusCode}


class WireCaller:
    """Calls one endpoint, one call at a time; reconnects if the connection was lost."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        host, _, port = endpoint.rpartition(":")
        self._address = (host, int(port))
        self._authority = endpoint
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hang_up()

    def call(self, method: str, message: bytes, token: str, timeout_s: float) -> str:
        """Sends a call; returns the name of its gRPC status."""
        headers = [
            *((":method", "POST"), (":scheme", "http"), (":path", method)),
            *((":authority", self._authority), ("te", "trailers")),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{max(1, int(timeout_s * 1e3))}m"),
        ]
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        try:
            if self._connection is None:
                self._connection = _Connection(self._address, self._timeout_s)
            return self._connection.call(headers, message, time.monotonic() + timeout_s)
        except (OSError, h2.exceptions.ProtocolError):
            self._hang_up()
            return "UNAVAILABLE"

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Connection:
    """One connection."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self._socket = socket.create_connection(address, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._http.initiate_connection()
        self._flush()

    def close(self) -> None:
        self._socket.close()

    def call(self, headers: list[tuple[str, str]], message: bytes, deadline_s: float) -> str:
        stream = self._http.get_next_available_stream_id()
        self._http.send_headers(stream, headers)
        self._http.send_data(stream, b"\0" + len(message).to_bytes(4, "big"))
        body, sent, status = memoryview(message), 0, ""
        while True:
            window = self._http.local_flow_control_window(stream)
            while sent < len(body) and window > 0:
                size = min(window, self._http.max_outbound_frame_size, len(body) - sent)
                is_last = sent + size == len(body)
                self._http.send_data(stream, body[sent : sent + size], end_stream=is_last)
                sent, window = sent + size, window - size
            self._flush()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._give_up(stream)
                return "DEADLINE_EXCEEDED"
            events = [e for e in self._events(left_s) if _is_of(e, stream)]
            for event in events:
                status = _status(event) or status
                if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                    self._http.acknowledge_received_data(event.flow_controlled_length, stream)
            if any(isinstance(event, h2.events.StreamReset) for event in events):
                return status or "UNAVAILABLE"
            if any(isinstance(event, h2.events.StreamEnded) for event in events):
                if sent < len(body):
                    self._give_up(stream)
                return status or "UNAVAILABLE"

    def _give_up(self, stream: int) -> None:
        self._http.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def _events(self, timeout_s: float) -> list[h2.events.Event]:
        """The events that the server sends next; none if it sends nothing in time."""
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return []
        if not data:
            raise ConnectionError("the server closed the connection")
        return list(self._http.receive_data(data))

    def _flush(self) -> None:
        if data := self._http.data_to_send():
            self._socket.sendall(data)


def _is_of(event: h2.events.Event, stream: int) -> bool:
    """True if an event belongs to this stream."""
    if isinstance(event, h2.events.ConnectionTerminated):
        raise ConnectionError("the server ends the connection")
    return getattr(event, "stream_id", None) == stream


def _status(event: h2.events.Event) -> str:
    """The status in headers or trailers."""
    if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
        reported = {str(name): str(value) for name, value in event.headers or ()}
        return _STATUS_NAMES.get(reported.get("grpc-status", ""), "")
    return ""
