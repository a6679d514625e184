"""Statistics of calls: durations for the metrics, and one log line a second for quick calls.

A gateway serves thousands of hits a second. A log line for each would cost as much as the hit, and
so would an observation by `prometheus_client`, which takes several microseconds. Calls are
therefore counted in plain lists, which are written to the histogram and the log once a second.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from prometheus_client import Histogram

from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.declarations import CALL_BOUNDS_S

_QUICK_S = 0.1


@dataclass(slots=True)
class _Batch:
    """The calls of one method and status since the last flush.

    `counts` has the calls of each bucket of the histogram; `slowest_quick_s` is the duration of the
    slowest call without a log line of its own.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(CALL_BOUNDS_S) + 1))
    sum_s: float = 0.0
    quick: int = 0
    slowest_quick_s: float = 0.0


class CallStatistics:
    """Counts calls for a histogram with the labels `method` and `status`, and logs them.

    A failed or slow call has a line `call_done`; the quick calls of a method share one `calls_done`
    between two flushes. With `logs_each`, every call has its own line, with its request id.
    """

    def __init__(self, histogram: Histogram, *, logs_each: bool = False) -> None:
        self._histogram = histogram
        self._quick_s = 0.0 if logs_each else _QUICK_S
        self._batches: dict[tuple[str, str], _Batch] = {}

    def add(self, method: str, status: str, elapsed_s: float) -> None:
        """Counts a call that ended; `method` is `/package.Service/Method`.

        Call it in the call's own context, whose names the log line has.
        """
        batch = self._batches.get((method, status))
        if batch is None:
            batch = self._batches[method, status] = _Batch()
        batch.counts[bisect_left(CALL_BOUNDS_S, elapsed_s)] += 1
        batch.sum_s += elapsed_s
        if status != "OK" or elapsed_s >= self._quick_s:
            get_logger().info("call_done", status=status, elapsed_ms=round(elapsed_s * 1e3, 3))
            return
        batch.quick += 1
        batch.slowest_quick_s = max(batch.slowest_quick_s, elapsed_s)

    def flush(self) -> None:
        """Writes what was counted; call it in a context without a call's names."""
        batches, self._batches = self._batches, {}
        for (method, status), batch in batches.items():
            _add(self._histogram.labels(_short(method), status), batch)
            if batch.quick:
                slowest_ms = round(batch.slowest_quick_s * 1e3, 3)
                get_logger().info(
                    "calls_done", method=method, calls=batch.quick, slowest_ms=slowest_ms
                )


def _add(histogram: Histogram, batch: _Batch) -> None:
    # The library has no function to add several observations; its own `observe` does the same for
    # one. `test_call_statistics.py` compares the two.
    histogram._sum.inc(batch.sum_s)
    for bucket, count in zip(histogram._buckets, batch.counts, strict=True):
        if count:
            bucket.inc(count)


def _short(method: str) -> str:
    """`Service/Method` without the package."""
    service, _, name = method.lstrip("/").partition("/")
    return f"{service.rpartition('.')[2]}/{name}"
