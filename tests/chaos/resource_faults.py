"""Shortages of disk space, file descriptors, connections and processor time."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.chaos.farm_under_test import FarmUnderTest
from tests.chaos.fault import Fault, FaultContext, Undo
from tests.chaos.process_faults import PARTS

_LASTS_S = 8.0
_FEW_FILES = 2
_CONNECTIONS = 900
_HOGS = 4
_CHUNK_BYTES = 1 << 20


def resource_faults() -> Iterator[Fault]:
    """Each shortage; disks only if `small_disks` mounted them."""
    yield Fault("the farm's disk is full for 8 s", _fill_farm, _LASTS_S, can_happen=_is_small)
    kills = _fill_and_kill
    yield Fault("the farm's disk is full, a worker dies", kills, _LASTS_S, can_happen=_is_small)
    yield Fault("a client's disk is full for 8 s", _fill_client, _LASTS_S, can_happen=_is_small)
    for part in PARTS[:4]:
        begin = functools.partial(_few_files, part=part)
        yield Fault(f"{part} without file descriptors for 8 s", begin, _LASTS_S)
    yield Fault("900 idle connections to the frontend", _connect, _LASTS_S)
    yield Fault("four processes that take all processor time", _hog, _LASTS_S)


def _is_small(farm: FarmUnderTest) -> bool:
    return os.path.ismount(farm.data_dir)


def _fill_farm(context: FaultContext) -> Undo:
    return _fill(context.farm.data_dir / "filling")


def _fill_client(context: FaultContext) -> Undo:
    return _fill(context.farm.client_disk / "filling")


def _fill_and_kill(context: FaultContext) -> Undo:
    undo = _fill_farm(context)
    for process in list(context.farm.children("worker-cpu").values())[:1]:
        process.kill()
    return undo


def _fill(path: Path) -> Undo:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(_CHUNK_BYTES))
    return lambda: path.unlink(missing_ok=True)


def _few_files(context: FaultContext, part: str) -> Undo:
    """Limits a process to its open files and a few more."""
    changed: list[tuple[psutil.Process, tuple[int, int]]] = []
    for process in context.farm.children(part).values():
        soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
        process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + _FEW_FILES, hard))
        changed.append((process, (soft, hard)))

    def as_before() -> None:
        for process, limits in changed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(resource.RLIMIT_NOFILE, limits)

    return as_before


def _connect(context: FaultContext) -> Undo:
    """Opens idle connections from the clients' network namespace."""
    address = context.farm.endpoint
    command = [*context.farm.client_prefix(), sys.executable, "-c", _IDLE, address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    return functools.partial(_end, [process])


_IDLE = f"""
import resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
host, _, port = sys.argv[1].rpartition(":")
held = []
for _ in range({_CONNECTIONS}):
    try:
        held.append(socket.create_connection((host, int(port)), 2))
    except OSError:
        break
sys.stdin.read()
"""


def _hog(context: FaultContext) -> Undo:
    command = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(_HOGS)]
    return functools.partial(_end, hogs)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()
