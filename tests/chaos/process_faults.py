"""Processes that are killed, stopped for a while, or hang for good."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Iterator, Sequence

import psutil

from tests.chaos.farm_under_test import Ground
from tests.chaos.fault import Fault, Scene, Undo

_SERVICES = ("frontend", "optimizer", "codegen")
_WORKERS = ("worker-cpu", "worker-cuda")
PARTS = (*_SERVICES, *_WORKERS, "redis-broker", "redis-cache")

_SHORT_STOP_S = 5.0
_SERIES = 5
_SERIES_PAUSE_S = 0.7


def process_faults() -> Iterator[Fault]:
    """Each way to hurt each part, and several parts at once."""
    for part in PARTS:
        is_there = functools.partial(_has, part=part)
        kill = functools.partial(_kill_one, part=part)
        stop = functools.partial(_stop_one, part=part)
        yield Fault(f"kill {part}", kill, can_happen=is_there)
        yield Fault(f"stop {part} for 5 s", stop, _SHORT_STOP_S, can_happen=is_there)
        yield Fault(f"hang {part}", stop, must_be_repaired=True, can_happen=is_there)
    yield Fault("kill all CPU workers", functools.partial(_kill_all, prefix="worker-cpu"))
    hang_all = functools.partial(_stop_all, prefix="worker-cpu")
    yield Fault("hang all CPU workers", hang_all, must_be_repaired=True)
    yield Fault("kill two parts at once", _kill_two)
    yield Fault("kill every part at once", functools.partial(_kill_all, prefix=""))
    yield Fault("kill a worker's child while it compiles", _kill_busy_child)
    yield Fault("kill children of services, five in a row", _kill_children)
    yield Fault("hang a child of a service", _stop_child, must_be_repaired=True)


def _has(ground: Ground, part: str) -> bool:
    return bool(ground.children(part))


def _kill_one(scene: Scene, part: str) -> None:
    _kill(scene, [_chosen(scene, part)])


def _kill_all(scene: Scene, prefix: str) -> None:
    children = scene.ground.children(prefix).values()
    _kill(scene, [process for child in children for process in _tree(child)])


def _kill_two(scene: Scene) -> None:
    _kill(scene, scene.dice.sample(list(scene.ground.children().values()), 2))


def _kill_busy_child(scene: Scene) -> None:
    scene.keep_workers_busy()
    found = scene.ground.descendants("worker-cpu")
    _kill(scene, [scene.dice.choice(found)] if found else [])


def _kill_children(scene: Scene) -> None:
    for _ in range(_SERIES):
        found = scene.ground.descendants()
        _kill(scene, [scene.dice.choice(found)] if found else [])
        time.sleep(_SERIES_PAUSE_S)


def _stop_one(scene: Scene, part: str) -> Undo:
    return _stop(scene, [_chosen(scene, part)])


def _stop_all(scene: Scene, prefix: str) -> Undo:
    return _stop(scene, list(scene.ground.children(prefix).values()))


def _stop_child(scene: Scene) -> Undo:
    found = scene.ground.descendants()
    return _stop(scene, [scene.dice.choice(found)] if found else [])


def _chosen(scene: Scene, part: str) -> psutil.Process:
    return scene.dice.choice(list(scene.ground.children(part).values()))


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(scene: Scene, doomed: Sequence[psutil.Process]) -> None:
    if not doomed:
        scene.notes.append("nothing to kill")
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _stop(scene: Scene, stopped: Sequence[psutil.Process]) -> Undo:
    if not stopped:
        scene.notes.append("nothing to stop")
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)

    def let_go() -> None:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    return let_go
