"""Closes gRPC channels around a fork, because a child does not have gRPC's threads.

Before a fork, every user of gRPC in the client closes its channels, so that gRPC ends its threads.
After the fork, the parent opens them again and the child starts with new ones. Calls that the fork
interrupted are repeated.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from pathlib import Path
from types import FrameType
from typing import Protocol

PAUSE_S = 5.0
"""How long a fork waits for a thread of the client to end its gRPC calls."""

_ENDING_S = 0.5
"""How long a fork waits for gRPC's threads; threads of channels outside the client do not end."""
_POLL_S = 0.001

_TASKS = Path("/proc/self/task")
_GRPC_TASKS = (
    "grpc_",
    "event_engine",
    "lifeguard",
    "timer_manager",
    "default-exec",
    "resolver-exec",
)
"""Prefixes of the names of gRPC's own threads (1.85). A child forked while they end hangs."""


class Pausable(Protocol):
    """A user of gRPC; its methods return soon and do not raise."""

    def pause(self) -> bool:
        """Closes its channels and opens none until `resume` or `renew`; False if none was open."""

    def resume(self) -> None:
        """Allows channels again, in the parent."""

    def renew(self) -> None:
        """Allows channels again in the child, which has no other thread."""


_lock = threading.Lock()
_pausables: weakref.WeakSet[Pausable] = weakref.WeakSet()
_is_registered = False


def pause_at_forks(pausable: Pausable) -> None:
    """Pauses an object around each fork while it exists; its first channel must be open already."""
    global _is_registered  # noqa: PLW0603 -- once for each process and its children
    with _lock:
        _pausables.add(pausable)
        if not _is_registered:
            # Handlers run in reverse order before a fork. This one must run before gRPC's own,
            # which gRPC registers with its first channel: after it, no channel can be closed.
            os.register_at_fork(
                before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
            )
            _is_registered = True


def _before() -> None:
    _lock.acquire()  # held until the fork is over, so that no object is added during it
    spinning = _threads_of_channels()
    was_open = [pausable.pause() for pausable in list(_pausables)]
    if not any(was_open):
        return
    ends_s = time.monotonic() + _ENDING_S
    for thread in spinning:
        thread.join(max(0.0, ends_s - time.monotonic()))
    while _is_at_work() and time.monotonic() < ends_s:
        time.sleep(_POLL_S)


def _after_in_parent() -> None:
    for pausable in list(_pausables):
        pausable.resume()
    _lock.release()


def _after_in_child() -> None:
    for pausable in list(_pausables):
        pausable.renew()
    _lock.release()


def _threads_of_channels() -> list[threading.Thread]:
    """The Python threads in which gRPC's channels wait for events."""
    frames = sys._current_frames()
    return [
        thread
        for thread in threading.enumerate()
        if thread.ident is not None and _is_spinning(frames.get(thread.ident))
    ]


def _is_spinning(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "channel_spin":
            return True
        frame = frame.f_back
    return False


def _is_at_work() -> bool:
    """True while gRPC's own threads run; always False without /proc."""
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        try:
            if (task / "comm").read_text().startswith(_GRPC_TASKS):
                return True
        except OSError:
            continue  # the thread has ended
    return False
