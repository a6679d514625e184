"""Receives a farm's invalidations in the background: one thread for each farm and process.

The watch resumes where the last process on this machine stopped, so that it receives later
invalidations before a program from disk is used. It reconnects by itself; a forked child starts its
own watch.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernelfarm.client.disk.files import read_sealed, remove, write_sealed
from kernelfarm.client.farm.invalidation_state import InvalidationState, initial_state
from kernelfarm.client.farm.wait_budget import remaining_timeout
from kernelfarm.client.process.exit import close_at_exit, run_in_background
from kernelfarm.client.process.forks import PAUSE_S, pause_at_forks
from kernelfarm.errors import KernelfarmError, MalformedMessageError

if TYPE_CHECKING:
    from kernelfarm.client.farm.cache_client import CacheAdmin, WatchEvent

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_CLOSING_S = 2.0

_jitter = random.SystemRandom()
"""Not the global generator, which the user may have seeded."""

Connect = Callable[[], "CacheAdmin"]


class InvalidationHandler(Protocol):
    """A holder of programs that may become stale."""

    def apply_invalidations(self, endpoint: str, invalidations: InvalidationState) -> None:
        """Drops the programs that are stale by this state."""


class InvalidationWatch:
    """Watches one farm; `state` is the file in which processes store the invalidation state."""

    def __init__(self, endpoint: str, state: Path | None, connect: Connect) -> None:
        self._endpoint = endpoint
        self._state = state
        self._connect = connect
        self._lock = threading.Lock()
        self._admin: CacheAdmin | None = connect()
        self._invalidations = _load_state(state)
        self._caught_up = threading.Event()
        self._is_closed = threading.Event()
        self._is_ended = False
        self._is_live = False
        self._handlers: weakref.WeakSet[InvalidationHandler] = weakref.WeakSet()
        self._thread = self._started(0.0)
        close_at_exit(self)
        pause_at_forks(self)

    @property
    def invalidations(self) -> InvalidationState | None:
        """The invalidations that this machine has received so far; None if it never connected."""
        return self._invalidations

    @property
    def is_live(self) -> bool:
        """True while connected and after every earlier invalidation was received."""
        return self._is_live

    def add_handler(self, handler: InvalidationHandler) -> None:
        """Calls a handler for later invalidations, as long as the handler exists."""
        self._handlers.add(handler)

    def wait(self, timeout_s: float) -> bool:
        """Waits until all missed invalidations are received; False if the farm does not answer."""
        self._caught_up.wait(remaining_timeout(timeout_s))
        return self._is_live

    def close(self) -> None:
        """Ends the watch; threads in `wait` return."""
        self._is_ended = True
        self._stop(_CLOSING_S)
        self._caught_up.set()

    def pause(self) -> bool:
        """Ends the connection; threads in `wait` keep waiting. False if none was open."""
        return self._stop(PAUSE_S)

    def resume(self) -> None:
        """Reconnects after a short pause, because forks come in bursts."""
        if not self._is_ended:
            self._is_closed.clear()
            self._caught_up.clear()
            self._thread = self._started(_FIRST_PAUSE_S)

    def renew(self) -> None:
        """Does nothing: a child starts its own watch (`watch_of`)."""

    def _started(self, after_s: float) -> threading.Thread:
        name = f"kernelfarm-watch-{self._endpoint}"
        return run_in_background(partial(self._follow, after_s), name)

    def _stop(self, timeout_s: float) -> bool:
        with self._lock:
            self._is_closed.set()
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return admin is not None

    def _follow(self, after_s: float) -> None:
        self._is_closed.wait(after_s)
        pause_s = _FIRST_PAUSE_S
        while not self._is_closed.is_set():
            began_s = time.monotonic()
            with suppress(KernelfarmError):  # programs keep running if the farm fails
                self._follow_once()
            self._is_live = False
            if self._is_closed.is_set():
                return
            self._caught_up.set()
            if time.monotonic() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            self._is_closed.wait(pause_s * _jitter.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _follow_once(self) -> None:
        invalidations, admin = self._invalidations, self._connection()
        if admin is None:
            return
        for event in admin.watch(invalidations.resume_token if invalidations is not None else ""):
            self._apply(event)
            if not event.tags and not event.is_flush:
                self._is_live = True
                self._caught_up.set()

    def _connection(self) -> CacheAdmin | None:
        """The client of the farm's cache; None if the watch is closed."""
        with self._lock:
            if self._admin is None and not self._is_closed.is_set():
                self._admin = self._connect()
            return self._admin

    def _apply(self, event: WatchEvent) -> None:
        before, now_s = self._invalidations, time.time()
        invalidations = (
            initial_state(event, now_s) if before is None else before.after(event, now_s)
        )
        if invalidations is before:
            return
        self._invalidations = invalidations
        for handler in list(self._handlers):
            handler.apply_invalidations(self._endpoint, invalidations)
        self._save(invalidations)

    def _save(self, invalidations: InvalidationState) -> None:
        """Stores the state for the next process, unless another process has stored a later one."""
        if self._state is None:
            return
        other = _load_state(self._state)
        knows_more = (
            other is not None
            and other.incarnation == invalidations.incarnation
            and other.epoch >= invalidations.epoch
            and other.base <= invalidations.base
        )
        if not knows_more:
            with suppress(OSError):  # then the next process receives the events again
                write_sealed(self._state, invalidations.to_json().encode())


def _load_state(state: Path | None) -> InvalidationState | None:
    if state is None:
        return None
    try:
        return InvalidationState.from_json(read_sealed(state).decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, MalformedMessageError):
        remove(state)
        return None


_lock = threading.Lock()
_watches: dict[tuple[int, str, Path | None], InvalidationWatch] = {}


def watch_of(endpoint: str, state: Path | None, connect: Connect) -> InvalidationWatch:
    """The process's watch of a farm; the first call connects it."""
    key = (os.getpid(), endpoint, state)  # threads and channels do not survive a fork
    with _lock:
        found = _watches.get(key)
        if found is None:
            found = _watches[key] = InvalidationWatch(endpoint, state, connect)
        return found


# A fork acquires the lock first, so that no thread of the parent holds the child's copy.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
