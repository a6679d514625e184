"""Processes of this machine: whether they run, what descends from them, and how tests end them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def is_running(pid: int) -> bool:
    """True if the process exists and has not ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def process_tree(pid: int | None) -> list[psutil.Process]:
    """A process and its descendants, ancestors first; none if it has ended or `pid` is None."""
    if pid is None:
        return []
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def rss_bytes(processes: Iterable[psutil.Process]) -> int:
    """Resident memory of the processes that still run."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += int(process.memory_info().rss)
    return total


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Sends SIGKILL to each process that still runs, in this order."""
    for process in processes:
        # The sandbox's processes end with the zygote that forked them.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_tree(*pids: int) -> None:
    """Sends SIGKILL to processes and their descendants, to parents before their children."""
    kill_all([process for pid in pids for process in process_tree(pid)])


def pool_processes(worker: int) -> list[int]:
    """The processes that compile for a worker; multiprocessing's resource tracker is not one."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(worker).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "_tracker import main" not in " ".join(process.cmdline()):
                    found.append(process.pid)
    return found
