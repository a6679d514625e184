"""The memory, tasks and processor time of a process and its descendants, from `/proc`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_OF_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_MAX_PROCESSES: Final = 4096


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """Resident memory that is not shared with a file, and the number of threads."""

    memory_bytes: int
    tasks: int


def tree_usage(root: int) -> TreeUsage:
    """The sum over a process and its descendants; those that end during the count are left out.

    Pages that a fork shares with its parent count once for each of them.
    """
    memory_bytes = tasks = 0
    for process in _tree(root):
        try:
            resident, shared = map(int, (process / "statm").read_text().split()[1:3])
            tasks += len(os.listdir(process / "task"))
        except OSError:
            continue
        memory_bytes += (resident - shared) * _PAGE_BYTES
    return TreeUsage(memory_bytes, tasks)


def processor_s(process: int) -> float:
    """Processor time of all threads of a process, and of its children that were waited for."""
    own_s = time.clock_gettime((~process << 3) | 2)  # Linux's CPUCLOCK_SCHED of a process
    fields = Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()
    return own_s + sum(map(int, fields[13:15])) / _TICKS_OF_A_SECOND


def shared_out_bytes(root: int) -> int | None:
    """The private memory of a tree with shared pages counted once; None if `/proc` lacks it.

    It takes the kernel far longer than `tree_usage`.
    """
    memory_bytes = 0
    for process in _tree(root):
        try:
            lines = (process / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return None
        line = next((line for line in lines if line.startswith("Pss_Anon:")), None)
        if line is None:
            return None
        memory_bytes += int(line.split()[1]) << 10
    return memory_bytes


def _tree(root: int) -> Iterator[Path]:
    """The folders of a process and its descendants."""
    waiting = [root]
    for _ in range(_MAX_PROCESSES):
        if not waiting:
            return
        process = Path("/proc", str(waiting.pop()))
        yield process
        try:
            for thread in os.listdir(process / "task"):
                waiting += map(int, (process / "task" / thread / "children").read_text().split())
        except OSError:
            continue
