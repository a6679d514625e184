"""Metrics of the jobs that no worker has begun: how many they are, and how long they wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kernelfarm.service.metrics.declarations import (
    OLDEST_JOB_SECONDS,
    QUEUE_WAIT_SECONDS,
    QUEUED_JOBS,
)
from kernelfarm.targets import all_vendors

_PRIORITIES = {False: "interactive", True: "warm_up"}
_STATES = ("waiting", "sent")


@dataclass(slots=True, eq=False)
class QueuedJobRecord:
    """One job until a worker begins it: it waits for a permit, then it is sent."""

    vendor: str
    priority: str
    began_s: float
    state: str = field(default=_STATES[0])

    def sent(self) -> None:
        """Notes that the job was sent to the broker."""
        self.state = _STATES[1]


class JobMetrics(Collector):
    """The jobs of one edge; `collect` may run in another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[QueuedJobRecord, None] = {}

    @contextmanager
    def queued(self, vendor: str, *, is_warm_up: bool) -> Iterator[QueuedJobRecord]:
        """Counts a job as queued until the block ends, or until `begin`."""
        record = QueuedJobRecord(vendor, _PRIORITIES[is_warm_up], self._clock())
        self._jobs[record] = None
        try:
            yield record
        finally:
            self._jobs.pop(record, None)

    def begin(self, record: QueuedJobRecord) -> None:
        """Notes that a worker began the job."""
        self._jobs.pop(record, None)
        waited_s = self._clock() - record.began_s
        QUEUE_WAIT_SECONDS.labels(record.vendor, record.priority).observe(waited_s)

    def collect(self) -> Iterable[Metric]:
        """The metrics now, for every vendor that a farm may serve."""
        jobs = list(self._jobs)  # in one step, which no other thread interrupts
        now_s = self._clock()
        queued, oldest = QUEUED_JOBS.metric(), OLDEST_JOB_SECONDS.metric()
        counts = Counter((job.vendor, job.priority, job.state) for job in jobs)
        for vendor in all_vendors():
            for priority in _PRIORITIES.values():
                for state in _STATES:
                    labels = (vendor, priority, state)
                    queued.add_metric(labels, counts[labels])
                own = (j for j in jobs if (j.vendor, j.priority) == (vendor, priority))
                ages_s = (now_s - job.began_s for job in own)
                oldest.add_metric((vendor, priority), max(ages_s, default=0.0))
        return [queued, oldest]
