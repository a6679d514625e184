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
from kernelfarm.client.farm.cache_client import CacheAdmin, Invalidation
from kernelfarm.client.farm.invalidation_state import KnownEpochs, first_known
from kernelfarm.client.farm.wait_budget import within_time
from kernelfarm.client.process.exit import close_at_end, run_in_background
from kernelfarm.client.process.forks import PAUSE_S, pause_at_forks
from kernelfarm.errors import KernelfarmError, MalformedMessageError

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_CLOSING_S = 2.0

_jitter = random.SystemRandom()
"""Not the process's own numbers, which are its user's, and may be seeded."""

Connect = Callable[[], CacheAdmin]


class Listener(Protocol):
    """Who holds programs that may become stale."""

    def obey(self, endpoint: str, known: KnownEpochs) -> None:
        """Drops what is stale now."""


class InvalidationWatch:
    """Follows one farm; `state` is the file in which processes leave how far they heard."""

    def __init__(self, endpoint: str, state: Path | None, connect: Connect) -> None:
        self._endpoint = endpoint
        self._state = state
        self._connect = connect
        self._lock = threading.Lock()
        self._admin: CacheAdmin | None = connect()
        self._known = _recalled(state)
        self._is_told = threading.Event()
        self._is_closed = threading.Event()
        self._is_ended = False
        self._is_live = False
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._thread = self._started(0.0)
        close_at_end(self)
        pause_at_forks(self)

    @property
    def known(self) -> KnownEpochs | None:
        """What was heard so far, by this process or an earlier one; None if nothing ever was."""
        return self._known

    @property
    def is_live(self) -> bool:
        """True while connected, with nothing left to catch up with."""
        return self._is_live

    def tell(self, listener: Listener) -> None:
        """Tells a listener of what happens from now on, as long as it lives."""
        self._listeners.add(listener)

    def wait(self, timeout_s: float) -> bool:
        """Waits until all that was missed is heard; False if no farm answers within the time."""
        self._is_told.wait(within_time(timeout_s))
        return self._is_live

    def close(self) -> None:
        """Stops to follow, for good; whoever waits is told."""
        self._is_ended = True
        self._stop(_CLOSING_S)
        self._is_told.set()

    def pause(self) -> bool:
        """Stops to follow; whoever waits goes on to wait. False if nothing was open."""
        return self._stop(PAUSE_S)

    def resume(self) -> None:
        """Follows again, soon: forks come in bursts."""
        if not self._is_ended:
            self._is_closed.clear()
            self._is_told.clear()
            self._thread = self._started(_FIRST_PAUSE_S)

    def renew(self) -> None:
        """Nothing: a child has a watch of its own (`watch_of`)."""

    def _started(self, after_s: float) -> threading.Thread:
        name = f"kernelfarm-watch-{self._endpoint}"
        return run_in_background(partial(self._follow, after_s), name)

    def _stop(self, patience_s: float) -> bool:
        with self._lock:
            self._is_closed.set()
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
        if self._thread.is_alive():
            self._thread.join(patience_s)
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
            self._is_told.set()
            if time.monotonic() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            self._is_closed.wait(pause_s * _jitter.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _follow_once(self) -> None:
        known, admin = self._known, self._opened()
        if admin is None:
            return
        for event in admin.watch(known.resume_token if known is not None else ""):
            self._hear(event)
            if not event.tags and not event.is_flush:
                self._is_live = True
                self._is_told.set()

    def _opened(self) -> CacheAdmin | None:
        """The way to the farm; None once this is to stop."""
        with self._lock:
            if self._admin is None and not self._is_closed.is_set():
                self._admin = self._connect()
            return self._admin

    def _hear(self, event: Invalidation) -> None:
        before, now_s = self._known, time.time()
        known = first_known(event, now_s) if before is None else before.after(event, now_s)
        if known is before:
            return
        self._known = known
        for listener in list(self._listeners):
            listener.obey(self._endpoint, known)
        self._remember(known)

    def _remember(self, known: KnownEpochs) -> None:
        """Leaves it for the next process, unless another one heard more already."""
        if self._state is None:
            return
        other = _recalled(self._state)
        knows_more = (
            other is not None
            and other.incarnation == known.incarnation
            and other.epoch >= known.epoch
            and other.base <= known.base
        )
        if not knows_more:
            with suppress(OSError):  # then the next process hears it again
                write_sealed(self._state, known.to_json().encode())


def _recalled(state: Path | None) -> KnownEpochs | None:
    if state is None:
        return None
    try:
        return KnownEpochs.from_json(read_sealed(state).decode())
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
