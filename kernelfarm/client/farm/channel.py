"""The gRPC channel of one client: opened by the first call that needs it, closed around forks."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from kernelfarm.client.process.forks import PAUSE_S, pause_at_forks
from kernelfarm.errors import UnavailableError

if TYPE_CHECKING:
    import grpc

StubT = TypeVar("StubT")


class _Closing:
    """Closed channels. gRPC crashes if a stub or call begins during or after a close."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.closed: weakref.WeakSet[grpc.Channel] = weakref.WeakSet()


_closing = _Closing()


def _renew_after_fork() -> None:
    """A thread of the parent may have held the lock."""
    _closing.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_after_fork)


def stub_of(make: Callable[[grpc.Channel], StubT], channel: grpc.Channel) -> StubT:
    """A stub for calls over a channel that another thread may close.

    Raises:
        UnavailableError: the channel was closed.
    """
    with _closing.lock:
        if channel in _closing.closed:
            raise UnavailableError("the channel was closed")
        return make(channel)


def started_call(start: Callable[[], StubT], channel: grpc.Channel) -> StubT:
    """A call that begins on a channel that another thread may close; `start` must not wait.

    Raises:
        UnavailableError: the channel was closed.
    """
    return stub_of(lambda _: start(), channel)


def close_channel(channel: grpc.Channel) -> None:
    """Closes a channel between stubs and calls that begin, never during one."""
    with _closing.lock:
        _closing.closed.add(channel)
        channel.close()


class FarmChannel:
    """A channel for several threads; `open_channel` must not connect, and not raise after success.

    A fork closes the channel during calls. A caller that sees `pauses` increase repeats its call.
    """

    def __init__(self, open_channel: Callable[[], grpc.Channel], peer: str) -> None:
        self.pauses = 0
        self._open = open_channel
        self._peer = peer
        self._channel: grpc.Channel | None = open_channel()
        self._condition = threading.Condition()
        self._users = 0
        self._is_paused = False
        self._is_closed = False
        pause_at_forks(self)

    @contextmanager
    def used(self) -> Iterator[grpc.Channel]:
        """The channel, for calls that end inside the `with` block.

        Raises:
            UnavailableError: `close` was called.
        """
        with self._condition:
            self._condition.wait_for(lambda: not self._is_paused)
            if self._is_closed:
                raise UnavailableError(f"{self._peer}: the channel was closed")
            if self._channel is None:
                self._channel = self._open()
            self._users += 1
            channel, condition = self._channel, self._condition
        try:
            yield channel
        finally:
            del channel
            with condition:
                self._users -= 1
                condition.notify_all()

    def close(self) -> None:
        """Ends all calls; the channel cannot be used again."""
        with self._condition:
            self._is_closed = True
            if self._channel is not None:
                close_channel(self._channel)

    def pause(self) -> bool:
        """Ends all calls; new ones wait for `resume`. False if no channel was open."""
        with self._condition:
            self._is_paused = True
            self.pauses += 1
            if self._channel is None:
                return False
            close_channel(self._channel)
            self._channel = None  # gRPC ends its threads when the last reference is gone
            self._condition.wait_for(lambda: not self._users, PAUSE_S)
            return True

    def resume(self) -> None:
        """Allows calls again."""
        with self._condition:
            self._is_paused = False
            self._condition.notify_all()

    def renew(self) -> None:
        """Allows calls in a forked child, which lacks the threads that used the condition."""
        self._condition = threading.Condition()
        self._users = 0
        self._is_paused = False
