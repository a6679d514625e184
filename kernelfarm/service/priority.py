"""Scheduling priority of processes that compile, beside services that answer."""

from __future__ import annotations

import contextlib
import os

_LOWEST = 19
_NICENESS = 10
"""Where a busy process is 10 steps nicer, Linux gives its processor at once to one that wakes up,
as a service does for each call; below that the service may wait for some milliseconds."""


def yield_to_services() -> None:
    """Lowers the priority of the calling process, for good, and that of processes it starts."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(own, _NICENESS))


def yield_to_all(pid: int) -> None:
    """Lets another process of ours run only where no other one would.

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
    """Keeps another process of ours off one of the processors that this one may use."""
    if hasattr(os, "sched_setaffinity"):
        _, *others = sorted(os.sched_getaffinity(0))
        if others:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(pid, others)
