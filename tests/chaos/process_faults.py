"""Processes that are killed, stopped for a while, or stopped for good."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Iterator, Sequence

import psutil

from tests.chaos.farm_under_test import FarmUnderTest
from tests.chaos.fault import Fault, FaultContext, Undo
from tests.support.processes import kill_all, process_tree

_SERVICES = ("frontend", "optimizer", "codegen")
_WORKERS = ("worker-cpu", "worker-cuda")
PARTS = (*_SERVICES, *_WORKERS, "redis-broker", "redis-cache")

_SHORT_STOP_S = 5.0
_SERIES = 5
_SERIES_PAUSE_S = 0.7


def process_faults() -> Iterator[Fault]:
    """Each fault of each kind of process, and of several at once."""
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


def _has(farm: FarmUnderTest, part: str) -> bool:
    return bool(farm.children(part))


def _kill_one(context: FaultContext, part: str) -> None:
    _kill(context, [_chosen(context, part)])


def _kill_all(context: FaultContext, prefix: str) -> None:
    children = context.farm.children(prefix).values()
    _kill(context, [process for child in children for process in process_tree(child.pid)])


def _kill_two(context: FaultContext) -> None:
    _kill(context, context.dice.sample(list(context.farm.children().values()), 2))


def _kill_busy_child(context: FaultContext) -> None:
    context.keep_workers_busy()
    found = context.farm.descendants("worker-cpu")
    _kill(context, [context.dice.choice(found)] if found else [])


def _kill_children(context: FaultContext) -> None:
    for _ in range(_SERIES):
        found = context.farm.descendants()
        _kill(context, [context.dice.choice(found)] if found else [])
        time.sleep(_SERIES_PAUSE_S)


def _stop_one(context: FaultContext, part: str) -> Undo:
    return _stop(context, [_chosen(context, part)])


def _stop_all(context: FaultContext, prefix: str) -> Undo:
    return _stop(context, list(context.farm.children(prefix).values()))


def _stop_child(context: FaultContext) -> Undo:
    found = context.farm.descendants()
    return _stop(context, [context.dice.choice(found)] if found else [])


def _chosen(context: FaultContext, part: str) -> psutil.Process:
    return context.dice.choice(list(context.farm.children(part).values()))


def _kill(context: FaultContext, doomed: Sequence[psutil.Process]) -> None:
    if not doomed:
        context.notes.append("nothing to kill")
    kill_all(doomed)


def _stop(context: FaultContext, stopped: Sequence[psutil.Process]) -> Undo:
    if not stopped:
        context.notes.append("nothing to stop")
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)

    def resume() -> None:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    return resume
