"""The end of a process: what runs in the background is told, ended and waited for, in this order.

Python stops daemon threads wherever they happen to be once it finalizes: one that is within C++
code aborts the process, and one that holds a lock which finalization wants hangs it. So before
that, channels and watches are closed, which ends calls at once, and our threads are joined.
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
"""How long a process waits at its end for all threads of ours together."""


class Closable(Protocol):
    """What ends calls and threads; closing twice does no harm."""

    def close(self) -> None:
        """Ends what is under way, at once."""


class _Registry:
    """What there is to end in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.has_begun = threading.Event()
        self.closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


_registry = _Registry()


def close_at_exit(closable: Closable) -> None:
    """Closes it when the process ends, if it still lives; at once if the end has begun."""
    with _registry.lock:
        is_late = _registry.has_begun.is_set()
        if not is_late:
            _registry.closables.add(closable)
    if is_late:
        closable.close()


def run_in_background(work: Callable[[], object], name: str) -> threading.Thread:
    """A thread that the end waits for; once the end has begun, one that never starts."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _registry.lock:
        if not _registry.has_begun.is_set():
            _registry.threads.add(thread)
            thread.start()
    return thread


def pause(seconds: float) -> bool:
    """Sleeps; True, and no longer, once the end has begun."""
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
    """A forked child has none of its parent's threads, and must not end its parent's calls."""
    global _registry  # noqa: PLW0603 -- the lock may be held by a thread that is not here
    _registry = _Registry()


atexit.register(_end)
os.register_at_fork(after_in_child=_reset_after_fork)
