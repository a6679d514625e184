"""One subscription for all waiters of a process; it wakes them when their key is finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError

from kernelfarm.end_task import end_task

_RECONNECT_S = 0.2


class KeyWatch:
    """The messages that have arrived of those that a waiter listens for.

    `event` is set by each of them, and when messages may have been lost.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._arrived: set[str] = set()

    def take(self) -> set[str]:
        """The messages that have arrived since the last call; clears the event."""
        self.event.clear()
        arrived, self._arrived = self._arrived, set()
        return arrived

    def add(self, message: str) -> None:
        """Notes a message."""
        self._arrived.add(message)
        self.event.set()


class KeyNotifications:
    """Events that are set by the messages of one channel.

    Messages are lost while the connection is down, so a reconnection wakes all waiters. A wake-up
    is only a hint: waiters must check the state of their key themselves.
    """

    def __init__(self, client: Any, channel: str) -> None:
        self._client = client
        self._channel = channel
        self._waiters: dict[str, set[KeyWatch]] = {}
        self._callbacks: dict[str, Callable[[str], object]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._is_listening = asyncio.Event()

    @contextmanager
    def waiting(self, *messages: str) -> Iterator[KeyWatch]:
        """A watch that notes when the channel receives one of the messages."""
        watch = KeyWatch()
        for message in messages:
            self._waiters.setdefault(message, set()).add(watch)
        try:
            yield watch
        finally:
            for message in messages:
                waiters = self._waiters[message]
                waiters.discard(watch)
                if not waiters:
                    del self._waiters[message]

    def subscribe(self, prefix: str, callback: Callable[[str], object]) -> None:
        """Starts to listen, and calls `callback` with each message that has the prefix."""
        self._callbacks[prefix] = callback
        self._start()

    def _start(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())

    async def listening(self, timeout_s: float) -> bool:
        """Starts to listen if necessary; True once messages arrive, False after the timeout."""
        self._start()
        try:
            await asyncio.wait_for(self._is_listening.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stops listening."""
        if self._listener is not None:
            await end_task(self._listener)

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError):
                await asyncio.sleep(_RECONNECT_S)
            finally:
                self._is_listening.clear()

    async def _listen_once(self) -> None:
        async with self._client.pubsub() as subscription:
            await subscription.subscribe(self._channel)
            async for message in subscription.listen():
                if message["type"] == "subscribe":
                    self._is_listening.set()
                    self._wake_all()
                elif message["type"] == "message":
                    self._dispatch(message["data"].decode())

    def _dispatch(self, message: str) -> None:
        self._wake(message)
        for prefix, callback in self._callbacks.items():
            if message.startswith(prefix):
                callback(message)

    def _wake(self, message: str) -> None:
        for watch in self._waiters.get(message, ()):
            watch.add(message)

    def _wake_all(self) -> None:
        for waiters in self._waiters.values():
            for watch in waiters:
                watch.event.set()
