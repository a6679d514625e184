"""Metrics of several processes at one endpoint, by the multiprocess mode of prometheus_client.

Gateways on one port, and the pool processes of a worker, write their values into files of a private
folder. The process that serves the endpoint adds them up. Each process has a slot, and a process
that replaces another one takes its slot and continues its counts, so that the number of files is
bounded.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from kernelfarm.service.metrics.declarations import CHILD_BYTES, CHILD_PROCESSES, REGISTRY

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_MAX_CHILDREN = 1024


@contextmanager
def shared_metrics() -> Iterator[None]:
    """Lets processes that start within the block add to the metrics of this process."""
    folder = tempfile.mkdtemp(prefix="kernelfarm-metrics-")
    os.environ[_FOLDER] = folder
    own = values.ValueClass
    join_shared_metrics("main")
    try:
        yield
    finally:
        values.ValueClass = own
        del os.environ[_FOLDER]
        shutil.rmtree(folder, ignore_errors=True)


def join_shared_metrics(slot: str) -> None:
    """Writes the values of this process to the shared folder, if there is one.

    Call it before the first value is counted. `slot` is unique among processes that run at once,
    and has no underscore.
    """
    if _FOLDER in os.environ:
        values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call] # the library's
            process_identifier=lambda: slot
        )


class CountedMetrics(Collector):
    """The values that this process counted, or all processes that share the folder."""

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        folder = os.environ.get(_FOLDER)
        if folder is None:
            return list(REGISTRY.collect())
        collector = MultiProcessCollector(None, folder)  # type: ignore[no-untyped-call] # as above
        metrics: Iterable[Metric] = collector.collect()  # type: ignore[no-untyped-call] # as above
        return metrics


class ChildProcesses(Collector):
    """The number and the memory of the processes that descend from this one."""

    def collect(self) -> Iterable[Metric]:
        """The metrics now; empty if the system has no /proc."""
        if not Path("/proc/self/statm").exists():
            return []
        pids = _descendants(os.getpid())
        return [CHILD_PROCESSES.of(len(pids)), CHILD_BYTES.of(sum(map(_resident_bytes, pids)))]


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    unvisited = [pid]
    while unvisited and len(found) < _MAX_CHILDREN:
        children = _children(unvisited.pop())
        found += children
        unvisited += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0
