"""Scheduling priority of processes: frontends answer hits, other services do not, others compile.

frontends                     as they were started, usually nice 0
optimizer, codegen service    nice 10: only calls that miss reach them
processes that compile        nice 19
heavy compilations            SCHED_IDLE, and not on the first processor
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LOWEST = 19
_BEHIND_FRONTENDS = 10
"""Where a busy process is 10 steps nicer, Linux gives its processor at once to one that wakes up,
as a frontend does for each call; below that the frontend may wait for some milliseconds."""


def yield_to_frontends() -> None:
    """Lowers the priority of a service that no hit needs, for good."""
    _lower_to(_BEHIND_FRONTENDS)


def yield_to_services() -> None:
    """Lowers the priority of a process that compiles, for good, and that of processes it starts."""
    _lower_to(_LOWEST)


def yield_to_all(pid: int) -> None:
    """Lets a process of ours (0: this one) run only where no other one would.

    A processor that runs nothing else counts as idle for whoever wakes up; one that runs a process
    of the lowest `nice` does not, and a service that wakes up may wait behind another service
    although such a processor could take it.
    """
    with contextlib.suppress(OSError):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)


def leave_a_processor(pid: int) -> None:
    """Keeps a process of ours (0: this one) off the first of the processors that it may use, unless
    that is the only one.
    """
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            _, *others = sorted(os.sched_getaffinity(pid))
            if others:
                os.sched_setaffinity(pid, others)


class LeftProcessor:
    """The processor that heavy work leaves: the service stays on it while all others are taken.

    Linux takes a processor that runs SCHED_IDLE work for an idle one and puts who wakes up there.
    It goes on to give that work the processor now and then, until the next tick, 4 ms later.
    """

    def __init__(self) -> None:
        self._all = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._is_confined = False

    def is_the_last(self, heavy_jobs: int) -> bool:
        """True if so many heavy jobs take all other processors, and there are others."""
        return 1 < len(self._all) <= heavy_jobs + 1

    def stay(self) -> None:
        """Keeps all threads of this process there."""
        self._move(is_confined=True)

    def leave(self) -> None:
        """Lets them use all processors again."""
        self._move(is_confined=False)

    def _move(self, *, is_confined: bool) -> None:
        if is_confined == self._is_confined:
            return
        self._is_confined = is_confined
        processors = {min(self._all)} if is_confined else self._all
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it may have ended
                os.sched_setaffinity(int(thread.name), processors)


def _lower_to(niceness: int) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(own, niceness))
