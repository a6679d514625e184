"""How often a service collects cyclic garbage: rarely."""

from __future__ import annotations

import gc

CALLS_KEPT = 1_000
"""Calls whose leavings may lie until they are collected."""

YOUNG_OBJECTS = 100_000
"""Allocations between two collections; CPython's 700 suit a program that holds little."""
MIDDLE_ROUNDS, OLD_ROUNDS = 20, 50


def collect_rarely() -> None:
    """Makes collections rare, and leaves out what was imported: it stays for ever.

    A graph of 13,000 nodes is millions of objects without a cycle among them, which are freed
    without the collector. Looking through them again and again doubled the time of a compilation
    (`benchmarks/compile_time.py`: 3.3 instead of 6.5 s). Cycles still go, 100,000 objects later.
    """
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_ROUNDS, OLD_ROUNDS)
    gc.freeze()


class CallCollector:
    """Collects what calls leave behind, some thousand calls at a time.

    gRPC leaves a small cycle for each call, which names its headers, 16 KB at most. They are young:
    only what was made since the last collection is looked at.
    """

    def __init__(self) -> None:
        self._calls = 0

    def count(self) -> None:
        """A call has come."""
        self._calls += 1
        if self._calls >= CALLS_KEPT:
            self._calls = 0
            gc.collect(0)
