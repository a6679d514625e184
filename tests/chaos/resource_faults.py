"""Disks without space, processes without file descriptors, processors without time."""

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

from tests.chaos.farm_under_test import Ground
from tests.chaos.fault import Fault, Scene, Undo
from tests.chaos.process_faults import PARTS

_LASTS_S = 8.0
_FEW_FILES = 2
_CONNECTIONS = 900
_HOGS = 4
_CHUNK_BYTES = 1 << 20


def resource_faults() -> Iterator[Fault]:
    """Each shortage; disks only where they are small ones of our own."""
    yield Fault("the farm's disk is full for 8 s", _fill_farm, _LASTS_S, can_happen=_is_small)
    kills = _fill_and_kill
    yield Fault("the farm's disk is full, a worker dies", kills, _LASTS_S, can_happen=_is_small)
    yield Fault("a client's disk is full for 8 s", _fill_client, _LASTS_S, can_happen=_is_small)
    for part in PARTS[:4]:
        begin = functools.partial(_few_files, part=part)
        yield Fault(f"{part} without file descriptors for 8 s", begin, _LASTS_S)
    yield Fault("900 idle connections to the frontend", _connect, _LASTS_S)
    yield Fault("four processes that take all processor time", _hog, _LASTS_S)


def _is_small(ground: Ground) -> bool:
    return os.path.ismount(ground.data_dir)


def _fill_farm(scene: Scene) -> Undo:
    return _fill(scene.ground.data_dir / "filling")


def _fill_client(scene: Scene) -> Undo:
    return _fill(scene.ground.client_disk / "filling")


def _fill_and_kill(scene: Scene) -> Undo:
    undo = _fill_farm(scene)
    for process in list(scene.ground.children("worker-cpu").values())[:1]:
        process.kill()
    return undo


def _fill(path: Path) -> Undo:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(_CHUNK_BYTES))
    return lambda: path.unlink(missing_ok=True)


def _few_files(scene: Scene, part: str) -> Undo:
    """As many as it has, and a few."""
    changed: list[tuple[psutil.Process, tuple[int, int]]] = []
    for process in scene.ground.children(part).values():
        soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
        process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + _FEW_FILES, hard))
        changed.append((process, (soft, hard)))

    def as_before() -> None:
        for process, limits in changed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(resource.RLIMIT_NOFILE, limits)

    return as_before


def _connect(scene: Scene) -> Undo:
    """From where the clients are."""
    address = scene.ground.endpoint
    command = [*scene.ground.client_prefix(), sys.executable, "-c", _IDLE, address]
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


def _hog(scene: Scene) -> Undo:
    command = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(_HOGS)]
    return functools.partial(_end, hogs)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()
