"""The scheduling priority of processes, so that frontends respond quickly to hits.

frontends                      as they were started, usually nice 0
other services, compilations   nice 10: only calls that miss need them
heavy compilations             SCHED_IDLE, and not on the first processor

With nice 19, compilations would starve beside any other busy program.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LOWEST = 19
_BEHIND_FRONTENDS = 10
"""If a busy process is 10 steps nicer, Linux gives its processor at once to a process that wakes
up, as a frontend does for each call. With a smaller difference it may wait some milliseconds."""


def yield_to_frontends() -> None:
    """Lowers the priority of this process, permanently, and of the processes that it starts."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(own, _BEHIND_FRONTENDS))


def yield_to_all(pid: int) -> None:
    """Makes a process of ours (0: this one) run only on processors that are otherwise idle.

    For a process that wakes up, a processor with SCHED_IDLE work counts as idle. A processor with
    work of the lowest `nice` does not: a service that wakes up may then wait for another service
    although such a processor could run it.
    """
    with contextlib.suppress(OSError):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)


def leave_a_processor(pid: int) -> None:
    """Keeps a process of ours (0: this one) off the first of its processors, if it has several."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            _, *others = sorted(os.sched_getaffinity(pid))
            if others:
                os.sched_setaffinity(pid, others)


class FreeProcessor:
    """The processor without heavy work; the service stays on it while the others are busy.

    Linux treats a processor with SCHED_IDLE work as idle, and may place a thread of the service
    there when it wakes up. It still gives that work the processor now and then, for up to one tick
    (4 ms), and the service waits.
    """

    def __init__(self) -> None:
        self._all = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._is_confined = False

    def is_the_last(self, heavy_jobs: int) -> bool:
        """True if this number of heavy jobs occupies all other processors, and there are others."""
        return 1 < len(self._all) <= heavy_jobs + 1

    def stay(self) -> None:
        """Moves all threads of this process to the processor."""
        self._move(is_confined=True)

    def leave(self) -> None:
        """Lets the threads use all processors again."""
        self._move(is_confined=False)

    def _move(self, *, is_confined: bool) -> None:
        if is_confined == self._is_confined:
            return
        self._is_confined = is_confined
        processors = {min(self._all)} if is_confined else self._all
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it may have ended
                os.sched_setaffinity(int(thread.name), processors)
