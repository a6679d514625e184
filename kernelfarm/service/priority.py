"""The scheduling priority of processes, so that frontends respond quickly to hits.

frontends, cache       as they were started, usually nice 0
other services         nice 10 and slices of 20 ms: only calls that miss need them
work and compilations  nice 10 and slices of 50 ms
heavy ones of these    SCHED_IDLE, and not on the first processor

With nice 19, compilations would starve beside any other busy program.

Linux may share the processors among sessions first (`kernel.sched_autogroup_enabled`); priorities
then mean nothing between two of them. So no process of a farm begins a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path

_LOWEST = 19
_BEHIND_FRONTENDS = 10
"""Before Linux 6.6, a busy process that is 10 steps nicer gives up its processor at once to a
process that wakes up, as a frontend does for each call."""
_SERVICE_SLICE_NS, _WORK_SLICE_NS = 20_000_000, 50_000_000
"""Since Linux 6.12, a busy process gives up its processor at once to a process with shorter slices
(usually 1 to 3 ms) that wakes up. Between, that process may wait for a tick (4 ms)."""
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""The system call `sched_setattr` by machine."""


class _Attributes(ctypes.Structure):
    """`sched_attr` of the kernel's `sched/types.h`, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def yield_to_frontends() -> None:
    """Puts this process, a service, behind frontends for ever, and the processes that it starts.

    Call it before the process has threads.
    """
    _yield(_SERVICE_SLICE_NS)


def yield_to_services() -> None:
    """Puts this process behind frontends and other services, which need a processor for moments."""
    _yield(_WORK_SLICE_NS)


def _yield(slice_ns: int) -> None:
    nice = max(os.getpriority(os.PRIO_PROCESS, 0), _BEHIND_FRONTENDS)
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    number = _SET_ATTRIBUTES.get(platform.machine())
    is_usual = hasattr(os, "SCHED_OTHER") and os.sched_getscheduler(0) == os.SCHED_OTHER
    if is_usual and number is not None:
        size = ctypes.sizeof(_Attributes)
        wanted = _Attributes(size=size, policy=os.SCHED_OTHER, nice=nice, runtime_ns=slice_ns)
        # A kernel that does not know the request ignores it, or refuses it: then it stays as it is.
        ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, ctypes.byref(wanted), 0)


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
