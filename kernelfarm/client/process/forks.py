"""What a fork must not meet: gRPC at work, whose threads the child does not have.

Before a fork of this process everything of ours lets go of gRPC, which then ends its threads; after
it the parent takes up again, and the child begins anew. Calls under way are made again.
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
"""How long a fork waits for a thread of ours to let go of gRPC."""

_ENDING_S = 0.5
"""How long it waits for gRPC's threads: those of other channels of the process do not end."""
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
"""How the names of gRPC's own threads begin (1.85); a fork while they end hangs the child."""


class Pausable(Protocol):
    """What uses gRPC; all three return soon, and none raises."""

    def pause(self) -> bool:
        """Closes what is open, and opens nothing until it goes on; False if nothing was open."""

    def resume(self) -> None:
        """Goes on, in the parent."""

    def renew(self) -> None:
        """Goes on in the child, where no other thread is."""


_lock = threading.Lock()
_pausables: weakref.WeakSet[Pausable] = weakref.WeakSet()
_is_registered = False


def pause_at_forks(pausable: Pausable) -> None:
    """Pauses it around each fork, as long as it lives; its first channel is open already."""
    global _is_registered  # noqa: PLW0603 -- once for each process and its children
    with _lock:
        _pausables.add(pausable)
        if not _is_registered:
            # What is registered last runs first before a fork: ours before gRPC's own handler,
            # which it registers with its first channel, and after which no channel can be closed.
            os.register_at_fork(
                before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
            )
            _is_registered = True


def _before() -> None:
    _lock.acquire()  # held until the fork is over, so that nothing new is opened meanwhile
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
    """Python's threads in which gRPC's channels wait for events."""
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
    """True while gRPC has threads of its own, where the system tells."""
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        try:
            if (task / "comm").read_text().startswith(_GRPC_TASKS):
                return True
        except OSError:
            continue  # it ended meanwhile
    return False
