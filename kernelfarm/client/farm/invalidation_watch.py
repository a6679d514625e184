"""Listens to a farm's invalidations in the background: one thread for each farm and process.

It goes on where the last process of this machine stopped, so that what happened meanwhile is heard
of before a program from disk is used. It outlives connections; a forked child begins its own.
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
from typing import Protocol

from kernelfarm.client.disk.files import read_sealed, remove, write_sealed
from kernelfarm.client.farm.cache_client import CacheAdmin, WatchEvent
from kernelfarm.client.farm.invalidation_state import InvalidationState, initial_state
from kernelfarm.client.farm.wait_budget import remaining_timeout
from kernelfarm.client.process.exit import close_at_exit, run_in_background
from kernelfarm.client.process.forks import PAUSE_S, pause_at_forks
from kernelfarm.errors import KernelfarmError, MalformedMessageError

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_CLOSING_S = 2.0

_jitter = random.SystemRandom()
"""Not the process's own numbers, which are its user's, and may be seeded."""

Connect = Callable[[], CacheAdmin]


class InvalidationHandler(Protocol):
    """Who holds programs that may become stale."""

    def apply_invalidations(self, endpoint: str, invalidations: InvalidationState) -> None:
        """Drops what is stale now."""


class InvalidationWatch:
    """Follows one farm; `state` is the file in which processes leave how far they heard."""

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
        """What was heard so far, by this process or an earlier one; None if nothing ever was."""
        return self._invalidations

    @property
    def is_live(self) -> bool:
        """True while connected, with nothing left to catch up with."""
        return self._is_live

    def add_handler(self, listener: InvalidationHandler) -> None:
        """Tells a listener of what happens from now on, as long as it lives."""
        self._handlers.add(listener)

    def wait(self, timeout_s: float) -> bool:
        """Waits until all that was missed is heard; False if no farm answers within the time."""
        self._caught_up.wait(remaining_timeout(timeout_s))
        return self._is_live

    def close(self) -> None:
        """Stops to follow, for good; whoever waits is told."""
        self._is_ended = True
        self._stop(_CLOSING_S)
        self._caught_up.set()

    def pause(self) -> bool:
        """Stops to follow; whoever waits goes on to wait. False if nothing was open."""
        return self._stop(PAUSE_S)

    def resume(self) -> None:
        """Follows again, soon: forks come in bursts."""
        if not self._is_ended:
            self._is_closed.clear()
            self._caught_up.clear()
            self._thread = self._started(_FIRST_PAUSE_S)

    def renew(self) -> None:
        """Nothing: a child has a watch of its own (`watch_of`)."""

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
            with suppress(KernelfarmError):  # whatever the farm does, programs go on
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
        """The way to the farm; None once this is to stop."""
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
        for listener in list(self._handlers):
            listener.apply_invalidations(self._endpoint, invalidations)
        self._save(invalidations)

    def _save(self, invalidations: InvalidationState) -> None:
        """Leaves it for the next process, unless another one heard more already."""
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
            with suppress(OSError):  # then the next process hears it again
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
    """This process's watch of a farm, which the first caller connects."""
    key = (os.getpid(), endpoint, state)  # threads and channels do not survive a fork
    with _lock:
        found = _watches.get(key)
        if found is None:
            found = _watches[key] = InvalidationWatch(endpoint, state, connect)
        return found


# A fork waits for the lock, so that the child's copy is not one that nobody will ever release.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
