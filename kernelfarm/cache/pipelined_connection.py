"""One connection to Redis on which requests follow each other without waiting for replies.

redis-py lends a connection to one command at a time, and spends a task, two timeouts and several
iterations of the event loop on it. A pipelined connection costs a request one write and a share of
one read, and sends all requests of one iteration together. It neither repeats requests nor
explains failures: if it fails, its callers use redis-py, which does both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import hiredis

# The server holds replies in memory until they are read, so further requests wait here.
_MAX_IN_FLIGHT = 64
_BUFFER_BYTES = 256 * 1024
# A server that completes no request in flight for one to two of these periods is gone.
_REPLY_TIMEOUT_S = 5.0

_INCOMPLETE = object()

RepliesFuture: TypeAlias = "asyncio.Future[list[Any] | None]"


class PipelinedConnection(asyncio.BufferedProtocol):
    """Takes over a connection's transport; `on_lost` is called when the connection has ended.

    The protocol that had the transport before is informed of the end too.
    """

    def __init__(self, transport: asyncio.WriteTransport, on_lost: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._on_lost = on_lost
        self._previous_protocol = transport.get_protocol()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[bytes, int, RepliesFuture]] = deque()
        self._in_flight: deque[tuple[int, RepliesFuture]] = deque()
        self._replies: list[Any] = []
        self._completed = self._last_completed = 0
        self._is_sending = False
        self._is_ended = False
        self._timer: asyncio.TimerHandle | None = None
        transport.set_protocol(self)

    def send(self, request: bytes, replies: int) -> RepliesFuture:
        """Sends commands that have `replies` replies; the result is None if the connection ends."""
        future: RepliesFuture = self._loop.create_future()
        if self._is_ended:
            future.set_result(None)
            return future
        self._waiting.append((request, replies, future))
        if not self._in_flight:
            self._flush()
        elif not self._is_sending:
            # Further requests of this iteration of the loop are sent together with it.
            self._is_sending = True
            self._loop.call_soon(self._flush)
        return future

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer for received bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decodes received bytes, and passes complete replies to their callers."""
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type] # takes any buffer
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._add_reply(reply)
        except (hiredis.ProtocolError, IndexError):  # no Redis server, or a reply to no request
            self.abort()
            return
        if self._waiting:
            self._flush()

    def eof_received(self) -> bool:
        """Closes the connection when the server has closed it."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives None to all callers that wait for replies."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        futures = [future for _, future in self._in_flight]
        futures += [future for _, _, future in self._waiting]
        for future in futures:
            if not future.done():
                future.set_result(None)
        self._in_flight.clear()
        self._waiting.clear()
        self._previous_protocol.connection_lost(exc)
        self._on_lost()

    def _add_reply(self, reply: Any) -> None:
        expected, future = self._in_flight[0]
        self._replies.append(reply)
        if len(self._replies) < expected:
            return
        self._in_flight.popleft()
        replies, self._replies = self._replies, []
        self._completed += 1
        if not future.done():  # its caller may have been cancelled
            future.set_result(replies)

    def _flush(self) -> None:
        self._is_sending = False
        requests = []
        while self._waiting and len(self._in_flight) < _MAX_IN_FLIGHT:
            request, expected, future = self._waiting.popleft()
            requests.append(request)
            self._in_flight.append((expected, future))
        if requests:
            self._transport.write(b"".join(requests))
        if self._timer is None and self._in_flight:
            self._timer = self._loop.call_later(_REPLY_TIMEOUT_S, self._check_progress)

    def _check_progress(self) -> None:
        """Ends a connection on which no request was completed since the last check."""
        self._timer = None
        if not self._in_flight:
            return
        if self._completed == self._last_completed:
            self.abort()
            return
        self._last_completed = self._completed
        self._timer = self._loop.call_later(_REPLY_TIMEOUT_S, self._check_progress)
