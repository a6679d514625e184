"""What each part of a farm holds: memory, open files and threads, and whether they grow."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.farm import Farm

MIB = 1024 * 1024
MOST_GROWTH_BYTES = 5 * MIB
MOST_GROWTH = 0.02
MOST_NEW_HANDLES = 5.0
"""Open files or threads: connections come and go, a leak goes on."""


@dataclass(frozen=True)
class Sample:
    """One part with the processes that it started, after so many requests."""

    part: str
    requests: int
    pss_bytes: int
    rss_bytes: int
    files: int
    threads: int


@dataclass(frozen=True)
class Growth:
    """How one part grew over the second half of a run, by the median slope, for the whole run."""

    part: str
    first_pss_bytes: int
    middle_pss_bytes: int
    last_pss_bytes: int
    last_rss_bytes: int
    grown_bytes: float
    grown_files: float
    grown_threads: float

    @property
    def is_flat(self) -> bool:
        """True within the limits."""
        most_bytes = max(MOST_GROWTH_BYTES, MOST_GROWTH * self.middle_pss_bytes)
        handles = max(self.grown_files, self.grown_threads)
        return self.grown_bytes <= most_bytes and handles <= MOST_NEW_HANDLES


def take_samples(farm: Farm, requests: int) -> list[Sample]:
    """One sample for each supervised process with its descendants, and one for the supervisor."""
    children = farm.status()["children"]
    found = [_sample("supervisor", requests, [farm.process.pid])]
    for name, child in sorted(children.items()):
        if child["pid"]:
            found.append(_sample(name, requests, _tree(child["pid"])))
    return found


def growth_of(samples: Sequence[Sample]) -> Growth:
    """The growth of one part from its samples, in their order."""
    half = samples[len(samples) // 2 :]
    requests = [float(sample.requests) for sample in half]
    whole = samples[-1].requests

    def grown(values: Sequence[float]) -> float:
        return _slope(requests, values) * whole

    return Growth(
        part=samples[0].part,
        first_pss_bytes=samples[0].pss_bytes,
        middle_pss_bytes=half[0].pss_bytes,
        last_pss_bytes=half[-1].pss_bytes,
        last_rss_bytes=half[-1].rss_bytes,
        grown_bytes=grown([sample.pss_bytes for sample in half]),
        grown_files=grown([sample.files for sample in half]),
        grown_threads=grown([sample.threads for sample in half]),
    )


def _slope(at: Sequence[float], values: Sequence[float]) -> float:
    """The median slope between any two points (Theil and Sen): what comes and goes, such as the
    children of a pool, moves it less than the line with the least squares.
    """
    points = itertools.combinations(zip(at, values, strict=True), 2)
    slopes = [(y - v) / (x - u) for (u, v), (x, y) in points if x != u]
    return statistics.median(slopes) if slopes else 0.0


def _tree(pid: int) -> list[int]:
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


def _sample(part: str, requests: int, pids: Sequence[int]) -> Sample:
    sums = [0, 0, 0, 0]
    for pid in pids:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it ended a moment ago
            for position, value in enumerate(_held_by(pid)):
                sums[position] += value
    return Sample(part, requests, *sums)


def _held_by(pid: int) -> tuple[int, int, int, int]:
    """PSS and RSS in bytes, open files, threads."""
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        kilobytes[name] = int(value.split()[0])
    files = len(os.listdir(f"/proc/{pid}/fd"))
    threads = len(os.listdir(f"/proc/{pid}/task"))
    return 1024 * kilobytes["Pss"], 1024 * kilobytes["Rss"], files, threads
