"""Makes collections of cyclic garbage rare."""

from __future__ import annotations

import gc
import time

YOUNG_OBJECTS = 100_000
"""Allocations between two collections; CPython's default of 700 suits small programs."""
MIDDLE_ROUNDS, OLD_ROUNDS = 20, 50


def collect_rarely() -> None:
    """Makes automatic collections rare, and excludes imported modules, which are never freed.

    A graph of 13,000 nodes has millions of objects without a cycle, which need no collector.
    Repeated collections doubled the time of a compilation (`benchmarks/compile_time.py`: 6.5
    instead of 3.3 s). Cycles are still collected, after 100,000 more objects.
    """
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_ROUNDS, OLD_ROUNDS)
    gc.freeze()


class Collector:
    """Collects the garbage of calls or jobs, mostly the objects made since the last collection.

    gRPC leaves a small cycle for each call, with its headers (16 KB at most), and a job leaves some
    of its objects. Most collections scan the youngest generation only, and older generations much
    less often, because they hold the long-lived objects of a service. CPython's own counts of
    allocations would start a collection too seldom.
    """

    def __init__(self, max_calls: int = 1_000, max_s: float = 2.0) -> None:
        """A collection runs after `max_calls` calls, or at the first call after `max_s`."""
        self._max_calls = max_calls
        self._max_s = max_s
        self._calls = 0
        self._rounds = 0
        self._collected_s = time.monotonic()

    def count(self) -> None:
        """Counts a call that began, or a job that ended."""
        self._calls += 1
        if self._calls >= self._max_calls or time.monotonic() - self._collected_s >= self._max_s:
            self._collect()

    def _collect(self) -> None:
        self._rounds += 1
        if self._rounds % (MIDDLE_ROUNDS * OLD_ROUNDS) == 0:
            gc.collect()
        else:
            gc.collect(0 if self._rounds % MIDDLE_ROUNDS else 1)
        self._calls, self._collected_s = 0, time.monotonic()
