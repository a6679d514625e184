"""Durations of calls: counted in plain lists, and added to the histogram once a second.

An observation by `prometheus_client` takes several microseconds. A gateway serves thousands of hits
a second, so that would be a noticeable part of each hit.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from prometheus_client import Histogram

from kernelfarm.service.metrics.declarations import CALL_BOUNDS_S


@dataclass(slots=True)
class _Batch:
    """The calls of one method and status since the last flush, by the histogram's buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(CALL_BOUNDS_S) + 1))
    sum_s: float = 0.0


class CallDurations:
    """Collects the durations of calls for a histogram with the labels `method` and `status`."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._batches: dict[tuple[str, str], _Batch] = {}

    def add(self, method: str, status: str, elapsed_s: float) -> None:
        """Counts a call; `method` is `/package.Service/Method`."""
        batch = self._batches.get((method, status))
        if batch is None:
            batch = self._batches[method, status] = _Batch()
        batch.counts[bisect_left(CALL_BOUNDS_S, elapsed_s)] += 1
        batch.sum_s += elapsed_s

    def flush(self) -> None:
        """Adds what was counted to the histogram."""
        batches, self._batches = self._batches, {}
        for (method, status), batch in batches.items():
            _add(self._histogram.labels(_short(method), status), batch)


def _add(histogram: Histogram, batch: _Batch) -> None:
    # The library has no function to add several observations; its own `observe` does the same for
    # one. `test_durations.py` compares the two.
    histogram._sum.inc(batch.sum_s)
    for bucket, count in zip(histogram._buckets, batch.counts, strict=True):
        if count:
            bucket.inc(count)


def _short(method: str) -> str:
    """`Service/Method` without the package."""
    service, _, name = method.lstrip("/").partition("/")
    return f"{service.rpartition('.')[2]}/{name}"
