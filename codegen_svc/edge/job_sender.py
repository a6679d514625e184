"""Sends the jobs of a group in one message, and waits until each has ended.

The group has one message and one permit; everything else is for each job: its lease, its fence, its
attempts, and the end that its build waits for. A worker adopts the lease of a job when it begins
it. If it dies, the lease of that job lapses and an attempt counts; the jobs that no worker has
adopted are sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence

from codegen_svc.celery_app import JobQueue, QueuedGroup, QueuedJob
from codegen_svc.edge.fair_queue import FairQueue, Permit
from codegen_svc.edge.job_metrics import JobMetrics
from codegen_svc.edge.jobs import PendingJob
from codegen_svc.settings import CodegenSettings
from kernelfarm import spans
from kernelfarm.cache import EdgeCache, Lease
from kernelfarm.cache.key_notifications import KeyWatch
from kernelfarm.errors import (
    InternalError,
    KernelfarmError,
    KernelLimitError,
    UnavailableError,
    error_facts,
)
from kernelfarm.service.logs.logger import get_logger

_POLL_S = 1.0
_LAPSE_MARGIN_S = 0.005
# If no job of a begun group ends for so long, another worker gets the jobs that wait behind it.
_STALLED_S = 1.0


class JobSender:
    """Sends the jobs of one queue.

    `has_workers` is True if a worker of a queue has reported.
    """

    def __init__(
        self,
        queue: JobQueue,
        settings: CodegenSettings,
        metrics: JobMetrics,
        has_workers: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._metrics = metrics
        self._has_workers = has_workers

    async def send(self, jobs: Sequence[PendingJob], permit: Permit, permits: FairQueue) -> None:
        """Sends jobs of one class and cache, and returns when all have ended; it never raises."""
        try:
            await self._send(jobs, permit, permits)
        except KernelfarmError as error:
            _fail_all(jobs, error)
        except Exception as error:
            _fail_all(jobs, InternalError(f"sending jobs failed: {error!r}"))
            raise
        finally:
            for job in jobs:
                job.ended.cancel()  # only if this task is cancelled
                if job.span is not None:
                    job.span.end()

    async def _send(self, jobs: Sequence[PendingJob], permit: Permit, permits: FairQueue) -> None:
        cache = jobs[0].cache
        seen = {job.job.key: job.seen for job in jobs}
        ttl_s = self._settings.queued_lease_ttl_s
        leases = await cache.acquire_queued(seen, uuid.uuid4().hex, ttl_s)
        held = []
        for job, lease in zip(jobs, leases, strict=True):
            job.lease = lease
            if lease is None:
                job.end(was_sent=False)
            elif lease.attempts >= self._settings.max_attempts:
                await self._quarantine(job, lease)
            else:
                held.append(job)
        if not held:
            return
        await cache.put_jobs({job.job.key: job.job.job for job in held})
        group = _SentGroup(cache, held, permit)
        async with cache.watching(job.job.key for job in held) as watch:
            await self._enqueue(group, permits)
            for job in held:
                job.record.sent()
            await self._await_ends(group, watch, permits)

    async def _quarantine(self, pending: PendingJob, lease: Lease) -> None:
        job, ttl_s = pending.job, self._settings.quarantine_ttl_s
        error = KernelLimitError(
            f"kernel {job.name} ({job.key.hex()[:16]}) ended its {job.queue} worker"
            f" {lease.attempts} times while it was compiled for {job.target}; it is refused for"
            f" {ttl_s:.0f} s. Report it with the kernel's text"
        )
        await pending.cache.count("quarantined")
        get_logger().error("kernel_quarantined", key=job.key.hex(), message=str(error))
        await pending.cache.put_failure(job.key, error_facts(error), ttl_s, lease)
        pending.fail(error)

    async def _enqueue(self, group: _SentGroup, permits: FairQueue) -> None:
        """Sends the jobs that no worker has begun; if the broker takes none, their builds fail."""
        jobs = group.queued()
        first = jobs[0]
        job_class = group.permit.job_class
        stands_back = job_class.is_warm_up or permits.must_stand_back(job_class.tenant)
        message = QueuedGroup(
            first.job.queue,
            group.cache.namespace,
            tuple(_queued(job, lease) for job, lease in jobs_and_leases(jobs)),
            is_warm_up=job_class.is_warm_up,
            is_slow=job_class.is_slow,
            stands_back=stands_back,
        )
        try:
            await self._queue.send(message)
        except UnavailableError as error:
            await self._give_up(group, jobs, error)
            return
        for job, lease in jobs_and_leases(jobs):
            get_logger().info(
                "job_queued",
                key=job.job.key.hex(),
                fence=lease.fence,
                attempts=lease.attempts,
                is_slow=job_class.is_slow,
                stands_back=stands_back,
                together=len(jobs),
            )

    async def _await_ends(self, group: _SentGroup, watch: KeyWatch, permits: FairQueue) -> None:
        clock = asyncio.get_running_loop().time
        check_s = group.begin(clock(), self._settings.requeue_after_s) + self._check_every_s
        while group.jobs:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(check_s):
                    await watch.event.wait()
            ended = [group.jobs[name] for name in watch.take() if name in group.jobs]
            for job in ended:
                group.end(job, clock())
                self._note_begin(group, job, clock())
            # Without an end, it is time to check, or messages may have been lost.
            if group.jobs and (not ended or clock() >= check_s):
                check_s = clock() + await self._check(group, permits)

    @property
    def _check_every_s(self) -> float:
        return min(_POLL_S, self._settings.queued_lease_ttl_s / 3)

    async def _check(self, group: _SentGroup, permits: FairQueue) -> float:
        """Finds begun and lost jobs, and sends queued ones again; when to check again, in seconds.

        A message that no worker took may have been lost with a worker or a broker. It is therefore
        sent again with the same fences, at growing intervals; workers drop one of two equal jobs.
        """
        clock = asyncio.get_running_loop().time
        pause_s = self._check_every_s
        if queued := group.queued():
            renewed = await group.cache.renew_all([lease for _, lease in jobs_and_leases(queued)])
            for job, is_queued in zip(queued, renewed, strict=True):
                if not is_queued:
                    self._note_begin(group, job, clock())
        if begun := [job for job in group.jobs.values() if job.is_begun]:
            lapses_s = await group.cache.lapse_s({job.job.key: job.seen for job in begun})
            for job, lapse_s in zip(begun, lapses_s, strict=True):
                if lapse_s < 0:  # its worker is gone, or its message was lost
                    group.end(job, clock())
                    group.again_s = clock()
                else:
                    pause_s = min(pause_s, lapse_s + _LAPSE_MARGIN_S)
        if group.queued():
            if clock() - group.moved_s > self._settings.no_worker_grace_s:
                await self._check_workers(group)
            if group.queued() and clock() >= group.again_s:
                group.is_sent_again = True
                group.pause_s *= 2
                group.again_s = clock() + group.pause_s
                await self._enqueue(group, permits)
        return pause_s

    def _note_begin(self, group: _SentGroup, job: PendingJob, now_s: float) -> None:
        """Notes that a worker began a job: now, or, if it has ended, as long ago as it takes."""
        if job.is_begun:
            return
        job.is_begun = True
        self._metrics.begin(job.record)
        if job.span is not None:
            job.span.end()
        if group.permit.begun_s is None:
            took_s = job.job.cost_s if job.ended.done() else 0.0
            group.permit.begin(min(took_s, now_s - group.sent_s))
            group.again_s = min(group.again_s, now_s + _STALLED_S)

    async def _check_workers(self, group: _SentGroup) -> None:
        queue = group.queued()[0].job.queue
        if await self._has_workers(queue):
            return
        error = UnavailableError(
            f"no worker serves the queue {queue!r}: start one with"
            f" `python -m codegen_svc.worker --queue {queue}`, or wait for it to report"
        )
        await self._give_up(group, group.queued(), error)

    async def _give_up(
        self, group: _SentGroup, jobs: Sequence[PendingJob], error: KernelfarmError
    ) -> None:
        """Fails the builds of queued jobs, and releases their leases."""
        for job, lease in jobs_and_leases(jobs):
            await group.cache.release(lease)
            job.fail(error)
            del group.jobs[group.cache.end_message(job.job.key)]


class _SentGroup:
    """The jobs of a message that have not ended, by the message of their end.

    `sent_s` is when it was sent, `moved_s` when a job of it last ended, `again_s` when the jobs
    that no worker has begun are sent again, and `pause_s` the pause after that.
    """

    def __init__(self, cache: EdgeCache, jobs: Sequence[PendingJob], permit: Permit) -> None:
        self.cache = cache
        self.jobs = {cache.end_message(job.job.key): job for job in jobs}
        self.permit = permit
        self.sent_s = self.moved_s = self.again_s = self.pause_s = 0.0
        self.is_sent_again = False

    def begin(self, now_s: float, pause_s: float) -> float:
        """Begins its times, when it was sent."""
        self.sent_s = self.moved_s = now_s
        self.again_s, self.pause_s = now_s + pause_s, pause_s
        return now_s

    def queued(self) -> list[PendingJob]:
        """The jobs that no worker has begun, as far as the edge knows."""
        return [job for job in self.jobs.values() if not job.is_begun]

    def end(self, job: PendingJob, now_s: float) -> None:
        """Lets the build of a job go on."""
        del self.jobs[self.cache.end_message(job.job.key)]
        job.end(was_sent=True)
        self.moved_s = now_s
        if not self.is_sent_again:
            self.again_s = now_s + _STALLED_S


def jobs_and_leases(jobs: Sequence[PendingJob]) -> list[tuple[PendingJob, Lease]]:
    """Jobs that have a lease, with it."""
    return [(job, job.lease) for job in jobs if job.lease is not None]


def _queued(pending: PendingJob, lease: Lease) -> QueuedJob:
    """The part of a message for one job; a span of the job begins with its first message."""
    job = pending.job
    if pending.span is None:
        pending.span = spans.BegunSpan("queue", pending.parent, vendor=job.queue, kernel=job.name)
    key = pending.cache.redis_keys.storage_key(job.key)
    return QueuedJob(key, lease.fence, job.request_id, pending.span.traceparent)


def _fail_all(jobs: Sequence[PendingJob], error: KernelfarmError) -> None:
    for job in jobs:
        job.fail(error)
