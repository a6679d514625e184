"""What a process and all below it use, as `/proc` tells."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MOST_LOOKED_AT: Final = 4096


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """Memory that is resident and not shared with a file, and the number of threads."""

    memory_bytes: int
    tasks: int


def tree_usage(root: int) -> TreeUsage:
    """The sum over a process and its descendants; those that end meanwhile count nothing."""
    memory_bytes = tasks = 0
    waiting = [root]
    seen = 0
    while waiting and seen < _MOST_LOOKED_AT:
        place = Path("/proc", str(waiting.pop()))
        seen += 1
        try:
            resident, shared = map(int, (place / "statm").read_text().split()[1:3])
            threads = os.listdir(place / "task")
            memory_bytes += (resident - shared) * _PAGE_BYTES
            tasks += len(threads)
            for thread in threads:
                waiting += map(int, (place / "task" / thread / "children").read_text().split())
        except OSError:
            continue
    return TreeUsage(memory_bytes, tasks)
