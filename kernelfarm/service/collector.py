"""How often a service collects cyclic garbage: rarely."""

from __future__ import annotations

import gc
import time

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


class Collector:
    """Collects what calls or jobs leave behind: mostly what was made since the last collection.

    gRPC leaves a small cycle for each call, which names its headers, 16 KB at most, and a job
    leaves some of its objects. What is in use while they are collected is looked at again only
    with the next older generation: by far not as often, since whatever a service keeps is there.
    CPython's own counts of collections decide nothing here: they would come too seldom.
    """

    def __init__(self, kept: int = 1_000, kept_s: float = 2.0) -> None:
        """So many may lie, and for so long, until the next one comes."""
        self._kept = kept
        self._kept_s = kept_s
        self._seen = 0
        self._rounds = 0
        self._collected_s = time.monotonic()

    def count(self) -> None:
        """A call has come, or a job has ended."""
        self._seen += 1
        if self._seen >= self._kept or time.monotonic() - self._collected_s >= self._kept_s:
            self._collect()

    def _collect(self) -> None:
        self._rounds += 1
        if self._rounds % (MIDDLE_ROUNDS * OLD_ROUNDS) == 0:
            gc.collect()
        else:
            gc.collect(0 if self._rounds % MIDDLE_ROUNDS else 1)
        self._seen, self._collected_s = 0, time.monotonic()
