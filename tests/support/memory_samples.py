"""Memory, open files and threads of a farm's processes, and their growth."""

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
from tests.support.processes import process_tree

MIB = 1024 * 1024
MOST_GROWTH_BYTES = 5 * MIB
MOST_GROWTH = 0.02
MOST_NEW_HANDLES = 5.0
"""Of open files or threads: connections come and go, but a leak grows on."""


@dataclass(frozen=True)
class Sample:
    """Some processes, such as one with its descendants, after `requests` requests.

    `uss_bytes` is private memory: it does not change when processes that share pages end.
    """

    part: str
    requests: int
    uss_bytes: int
    rss_bytes: int
    files: int
    threads: int


@dataclass(frozen=True)
class Growth:
    """The growth of one process tree over the whole run, by the median slope of its second half."""

    part: str
    first_uss_bytes: int
    middle_uss_bytes: int
    last_uss_bytes: int
    last_rss_bytes: int
    grown_bytes: float
    grown_files: float
    grown_threads: float

    @property
    def is_flat(self) -> bool:
        """True if all growth is within the limits."""
        most_bytes = max(MOST_GROWTH_BYTES, MOST_GROWTH * self.middle_uss_bytes)
        handles = max(self.grown_files, self.grown_threads)
        return self.grown_bytes <= most_bytes and handles <= MOST_NEW_HANDLES


def take_samples(farm: Farm, requests: int) -> list[Sample]:
    """One sample for each supervised process with its descendants, and one for the supervisor."""
    children = farm.status()["children"]
    found = [sample_of("supervisor", requests, [farm.process.pid])]
    for name, child in sorted(children.items()):
        if child["pid"]:
            found.append(sample_of(name, requests, [p.pid for p in process_tree(child["pid"])]))
    return found


def growth_of(samples: Sequence[Sample]) -> Growth:
    """The growth of one process tree, from its samples in order."""
    half = samples[len(samples) // 2 :]
    requests = [float(sample.requests) for sample in half]
    whole = samples[-1].requests

    def grown(values: Sequence[float]) -> float:
        return _slope(requests, values) * whole

    return Growth(
        part=samples[0].part,
        first_uss_bytes=samples[0].uss_bytes,
        middle_uss_bytes=half[0].uss_bytes,
        last_uss_bytes=half[-1].uss_bytes,
        last_rss_bytes=half[-1].rss_bytes,
        grown_bytes=grown([sample.uss_bytes for sample in half]),
        grown_files=grown([sample.files for sample in half]),
        grown_threads=grown([sample.threads for sample in half]),
    )


def _slope(at: Sequence[float], values: Sequence[float]) -> float:
    """The median slope between any two points.

    Processes that come and go, such as the children of a pool, change it less than a least-squares
    fit. Source: the estimator of Theil and Sen.
    """
    points = itertools.combinations(zip(at, values, strict=True), 2)
    slopes = [(y - v) / (x - u) for (u, v), (x, y) in points if x != u]
    return statistics.median(slopes) if slopes else 0.0


def sample_of(part: str, requests: int, pids: Sequence[int]) -> Sample:
    """The sums over processes; those that have ended count nothing."""
    sums = [0, 0, 0, 0]
    for pid in pids:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # the process has just ended
            for position, value in enumerate(_held_by(pid)):
                sums[position] += value
    return Sample(part, requests, *sums)


def _held_by(pid: int) -> tuple[int, int, int, int]:
    """USS and RSS in bytes, open files, threads."""
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        kilobytes[name] = int(value.split()[0])
    files = len(os.listdir(f"/proc/{pid}/fd"))
    threads = len(os.listdir(f"/proc/{pid}/task"))
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return 1024 * private, 1024 * kilobytes["Rss"], files, threads
