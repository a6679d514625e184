"""The jobs of one queue that wait for a permit; small ones are sent in groups.

A message, its permit and the start of its task cost a job more than compiling a small kernel on a
CPU leaves to hide it behind. Jobs of one class therefore share a message. What a group may hold is
decided when it gets its permit:

- its jobs are expected to compile for a quarter of a second in total (a setting), so that other
  jobs do not wait long for the end of a group;
- while workers are free, it takes no more than its share of the jobs that wait, so that each of
  them gets work; later it takes so little that all workers end at about the same time.

Slow kernels, and kernels that were sent before, are always sent alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from codegen_svc.edge.fair_queue import FairQueue, JobClass, Permit
from codegen_svc.edge.jobs import PendingJob
from kernelfarm.end_task import end_task
from kernelfarm.service.logs.logger import get_logger

Send = Callable[[Sequence[PendingJob], Permit], Awaitable[None]]
"""Sends a group under a permit, and returns when all of its jobs have ended; it never raises."""


class JobGroups:
    """The waiting jobs of one queue, whose workers have `slots` processes now.

    `group_s` is the expected processor time of a group.
    """

    def __init__(
        self, permits: FairQueue, slots: Callable[[], int], group_s: float, send: Send
    ) -> None:
        self.permits = permits
        self._slots = slots
        self._group_s = group_s
        self._send = send
        self._waiting: dict[JobClass, deque[PendingJob]] = {}
        self._sent = 0
        # Classes for which a sender is on its way to a permit, and those of which one has to wait.
        self._calling: set[JobClass] = set()
        self._blocked: set[JobClass] = set()
        self._senders: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for a permit."""
        return sum(map(len, self._waiting.values()))

    @property
    def sent(self) -> int:
        """The number of jobs in groups that have not ended."""
        return self._sent

    def add(self, job: PendingJob) -> None:
        """Sends a job when its group has a permit."""
        self._waiting.setdefault(job.job_class, deque()).append(job)
        if job.job_class in self._blocked:
            _log_waiting(job)
        self._call(job.job_class)

    async def close(self) -> None:
        """Ends the groups; the leases of their jobs lapse."""
        await asyncio.gather(*map(end_task, list(self._senders)))

    def _call(self, job_class: JobClass) -> None:
        """Lets one sender of a class wait for a permit, if jobs wait.

        It runs after the jobs of the same iteration of the event loop were added.
        """
        if job_class in self._waiting and job_class not in self._calling:
            self._calling.add(job_class)
            sender = asyncio.create_task(self._send_next(job_class))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    async def _send_next(self, job_class: JobClass) -> None:
        if self.permits.must_wait(job_class):
            self._blocked.add(job_class)
            self._log_waiting(job_class)
        async with self.permits.permit(job_class) as permit:
            self._blocked.discard(job_class)
            group = self._take(job_class)
            self._calling.discard(job_class)
            self._log_waiting(job_class)
            self._call(job_class)
            self._sent += len(group)
            try:
                if group:
                    await self._send(group, permit)
            finally:
                self._sent -= len(group)

    def _take(self, job_class: JobClass) -> list[PendingJob]:
        """The next group: the oldest job of the class, and others up to the group's share."""
        waiting = deque(job for job in self._waiting.pop(job_class) if not job.ended.done())
        if not waiting:
            return []
        slots = max(1, self._slots())
        free = slots - (self.permits.sent - 1)  # less this group's own permit
        share_s = sum(job.job.cost_s for job in waiting) / (free if free > 0 else slots)
        most_s = min(self._group_s, share_s)
        first = waiting.popleft()
        group, cost_s = [first], first.job.cost_s
        while waiting and _may_join(first, waiting[0]):
            if cost_s + waiting[0].job.cost_s / 2 > most_s:
                break
            cost_s += waiting[0].job.cost_s
            group.append(waiting.popleft())
        if waiting:
            self._waiting[job_class] = waiting
        return group

    def _log_waiting(self, job_class: JobClass) -> None:
        for job in self._waiting.get(job_class, ()):
            _log_waiting(job)


def _log_waiting(job: PendingJob) -> None:
    if not job.is_logged:
        job.is_logged = True
        get_logger().info("job_waiting", key=job.job.key.hex(), namespace=job.cache.namespace)


def _may_join(first: PendingJob, job: PendingJob) -> bool:
    """True if two jobs may share a message; `cache` is that of a namespace and salt."""
    is_shared = not (first.is_alone or job.is_alone or job.job_class.is_slow)
    return is_shared and job.cache is first.cache
