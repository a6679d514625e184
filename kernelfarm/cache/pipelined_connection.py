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
_MOST_ON_THE_WAY = 64
_BUFFER_BYTES = 256 * 1024
# With requests on the way and no answer for this long to twice as long, the server is gone.
_SILENCE_S = 5.0

_NOT_YET = object()

Answer: TypeAlias = "asyncio.Future[list[Any] | None]"


class Line(asyncio.BufferedProtocol):
    """Takes over a connection's transport; `on_lost` is called when it has ended.

    What the protocol before it must know of the end is passed on to it.
    """

    def __init__(self, transport: asyncio.WriteTransport, on_lost: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._on_lost = on_lost
        self._before = transport.get_protocol()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[bytes, int, Answer]] = deque()
        self._on_the_way: deque[tuple[int, Answer]] = deque()
        self._replies: list[Any] = []
        self._answered = self._answered_before = 0
        self._is_sending = False
        self._is_ended = False
        self._watch: asyncio.TimerHandle | None = None
        transport.set_protocol(self)

    def ask(self, request: bytes, replies: int) -> Answer:
        """Sends commands that have so many replies; None is the answer if the line ends."""
        answer: Answer = self._loop.create_future()
        if self._is_ended:
            answer.set_result(None)
            return answer
        self._waiting.append((request, replies, answer))
        if not self._on_the_way:
            self._send()
        elif not self._is_sending:
            # What else this turn of the loop brings goes with it.
            self._is_sending = True
            self._loop.call_soon(self._send)
        return answer

    def end(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hands out the answers that are whole."""
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type] # takes any buffer
            while (reply := self._reader.gets()) is not _NOT_YET:
                self._take(reply)
        except (hiredis.ProtocolError, IndexError):  # no Redis, or an answer that nobody asked for
            self.end()
            return
        if self._waiting:
            self._send()

    def eof_received(self) -> bool:
        """The server closed: so do we."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells all who wait."""
        self._is_ended = True
        if self._watch is not None:
            self._watch.cancel()
        answers = [answer for _, answer in self._on_the_way]
        answers += [answer for _, _, answer in self._waiting]
        for answer in answers:
            if not answer.done():
                answer.set_result(None)
        self._on_the_way.clear()
        self._waiting.clear()
        self._before.connection_lost(exc)
        self._on_lost()

    def _take(self, reply: Any) -> None:
        replies, answer = self._on_the_way[0]
        self._replies.append(reply)
        if len(self._replies) < replies:
            return
        self._on_the_way.popleft()
        whole, self._replies = self._replies, []
        self._answered += 1
        if not answer.done():  # its caller may have left
            answer.set_result(whole)

    def _send(self) -> None:
        self._is_sending = False
        requests = []
        while self._waiting and len(self._on_the_way) < _MOST_ON_THE_WAY:
            request, replies, answer = self._waiting.popleft()
            requests.append(request)
            self._on_the_way.append((replies, answer))
        if requests:
            self._transport.write(b"".join(requests))
        if self._watch is None and self._on_the_way:
            self._watch = self._loop.call_later(_SILENCE_S, self._look)

    def _look(self) -> None:
        """Ends a line on which nothing is answered."""
        self._watch = None
        if not self._on_the_way:
            return
        if self._answered == self._answered_before:
            self.end()
            return
        self._answered_before = self._answered
        self._watch = self._loop.call_later(_SILENCE_S, self._look)
