"""One connection to Redis on which requests follow each other without waiting for answers.

redis-py lends a connection to one command at a time, and spends a task, two timeouts and several
turns of the event loop on it. A line costs each request one write and a share of one read, and
those of one turn are sent together. It neither repeats nor explains anything: where it fails, its
callers ask again by redis-py, which does both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import hiredis

# Answers that are on the way hold memory in the server; whoever comes later waits here.
_MAX_IN_FLIGHT = 64
_BUFFER_BYTES = 256 * 1024
# With requests on the way and no answer for this long to twice as long, the server is gone.
_REPLY_TIMEOUT_S = 5.0

_INCOMPLETE = object()

ReplyFuture: TypeAlias = "asyncio.Future[list[Any] | None]"


class PipelinedConnection(asyncio.BufferedProtocol):
    """Takes over a connection's transport; `on_lost` is called when it has ended.

    What the protocol before it must know of the end is passed on to it.
    """

    def __init__(self, transport: asyncio.WriteTransport, on_lost: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._on_lost = on_lost
        self._previous_protocol = transport.get_protocol()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[bytes, int, ReplyFuture]] = deque()
        self._in_flight: deque[tuple[int, ReplyFuture]] = deque()
        self._replies: list[Any] = []
        self._reply_count = self._last_reply_count = 0
        self._is_sending = False
        self._is_ended = False
        self._timer: asyncio.TimerHandle | None = None
        transport.set_protocol(self)

    def send(self, request: bytes, replies: int) -> ReplyFuture:
        """Sends commands that have so many replies; None is the answer if the line ends."""
        future: ReplyFuture = self._loop.create_future()
        if self._is_ended:
            future.set_result(None)
            return future
        self._waiting.append((request, replies, future))
        if not self._in_flight:
            self._flush()
        elif not self._is_sending:
            # What else this turn of the loop brings goes with it.
            self._is_sending = True
            self._loop.call_soon(self._flush)
        return future

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hands out the answers that are whole."""
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type] # takes any buffer
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._add_reply(reply)
        except (hiredis.ProtocolError, IndexError):  # no Redis, or an answer that nobody asked for
            self.abort()
            return
        if self._waiting:
            self._flush()

    def eof_received(self) -> bool:
        """The server closed: so do we."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells all who wait."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        answers = [answer for _, answer in self._in_flight]
        answers += [answer for _, _, answer in self._waiting]
        for answer in answers:
            if not answer.done():
                answer.set_result(None)
        self._in_flight.clear()
        self._waiting.clear()
        self._previous_protocol.connection_lost(exc)
        self._on_lost()

    def _add_reply(self, reply: Any) -> None:
        replies, answer = self._in_flight[0]
        self._replies.append(reply)
        if len(self._replies) < replies:
            return
        self._in_flight.popleft()
        whole, self._replies = self._replies, []
        self._reply_count += 1
        if not answer.done():  # its caller may have left
            answer.set_result(whole)

    def _flush(self) -> None:
        self._is_sending = False
        requests = []
        while self._waiting and len(self._in_flight) < _MAX_IN_FLIGHT:
            request, replies, answer = self._waiting.popleft()
            requests.append(request)
            self._in_flight.append((replies, answer))
        if requests:
            self._transport.write(b"".join(requests))
        if self._timer is None and self._in_flight:
            self._timer = self._loop.call_later(_REPLY_TIMEOUT_S, self._check_liveness)

    def _check_liveness(self) -> None:
        """Ends a line on which nothing is answered."""
        self._timer = None
        if not self._in_flight:
            return
        if self._reply_count == self._last_reply_count:
            self.abort()
            return
        self._last_reply_count = self._reply_count
        self._timer = self._loop.call_later(_REPLY_TIMEOUT_S, self._check_liveness)
