"""The end of the process: closes channels and watches, then joins the background threads.

When Python finalizes, it stops daemon threads at arbitrary points: a thread inside C++ code aborts
the process, and a thread that holds a lock that finalization needs hangs it. So before
finalization this module closes channels and watches, which ends their calls at once, and joins the
client's threads.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

CLOSING_S = 5.0
"""The timeout for joining all threads of the client together."""


class Closable(Protocol):
    """An object with calls or threads that can be ended; `close` is idempotent."""

    def close(self) -> None:
        """Ends running calls and threads at once."""


class _Registry:
    """The closable objects and the threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.has_begun = threading.Event()
        self.closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


_registry = _Registry()


def close_at_exit(closable: Closable) -> None:
    """Closes the object when the process ends, if it still exists; at once if the end has begun."""
    with _registry.lock:
        is_late = _registry.has_begun.is_set()
        if not is_late:
            _registry.closables.add(closable)
    if is_late:
        closable.close()


def run_in_background(work: Callable[[], object], name: str) -> threading.Thread:
    """Starts a thread that is joined at the end; once the end has begun, it does not start."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _registry.lock:
        if not _registry.has_begun.is_set():
            _registry.threads.add(thread)
            thread.start()
    return thread


def pause(seconds: float) -> bool:
    """Sleeps; returns True at once when the end of the process has begun, else False."""
    return _registry.has_begun.wait(seconds)


def _end() -> None:
    with _registry.lock:
        _registry.has_begun.set()
        closables, threads = list(_registry.closables), list(_registry.threads)
    for closable in closables:
        closable.close()
    ends_s = time.monotonic() + CLOSING_S
    for thread in threads:
        thread.join(max(0.0, ends_s - time.monotonic()))


def _reset_after_fork() -> None:
    """A forked child has no threads of its parent, and must not end its parent's calls."""
    global _registry  # noqa: PLW0603 -- a thread of the parent may hold the old lock
    _registry = _Registry()


atexit.register(_end)
os.register_at_fork(after_in_child=_reset_after_fork)
