"""The times that the stages of a compilation took, for traces; no output depends on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

MAX_TIMES: Final = 256
"""Times of one compilation; a GPU backend may try eight tilings for each of three variants."""


class StageTime(NamedTuple):
    """When a stage began and ended, in nanoseconds of CLOCK_MONOTONIC."""

    name: str
    began_ns: int
    ended_ns: int


_times: ContextVar[list[StageTime] | None] = ContextVar("stage_times", default=None)


@contextmanager
def recorded_stages() -> Iterator[list[StageTime]]:
    """Collects the stages that a block runs, also if it fails; at most `MAX_TIMES`."""
    times: list[StageTime] = []
    token = _times.set(times)
    try:
        yield times
    finally:
        _times.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Records the time of a block, if a caller collects times."""
    began_ns = time.monotonic_ns()
    try:
        yield
    finally:
        times = _times.get()
        if times is not None and len(times) < MAX_TIMES:
            times.append(StageTime(name, began_ns, time.monotonic_ns()))
