"""One kernel's way from a request to its artifacts: cache, lease, queue, and what goes wrong.

The lease in the cache is the truth about who builds a kernel. The edge takes it as *queued*, sends
a message, and renews the lease until a worker adopts it; then the worker renews it. A worker that
dies lets it lapse, and whichever edge waits takes the next one, with a higher fence. So equal
kernels are built once across requests and edges, and no message needs to arrive reliably.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

from codegen_svc.celery_app import JobQueue, QueuedJob
from codegen_svc.settings import CodegenSettings
from kernelfarm.cache import KernelCache, Lease
from kernelfarm.errors import (
    FarmFullError,
    KernelRejectedError,
    UnavailableError,
    error_facts,
    error_from_facts,
)
from kernelfarm.service.logs import get_logger


@dataclass(frozen=True, slots=True)
class KernelJob:
    """One kernel to find or build: `job` is what the worker will read."""

    key: bytes
    name: str
    target: str
    queue: str
    job: bytes
    is_warm_up: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """The payloads of a kernel's variants, and whether asking for it caused a job."""

    payloads: tuple[bytes, ...]
    caused_job: bool


class Dispatcher:
    """Finds or builds kernels; equal ones in flight are one.

    A flight belongs to nobody: a caller that goes away leaves it to finish for later callers.
    """

    def __init__(self, cache: KernelCache, queue: JobQueue, settings: CodegenSettings) -> None:
        self._cache = cache
        self._queue = queue
        self._settings = settings
        self._flights: dict[bytes, asyncio.Task[FoundKernel]] = {}

    async def find_or_build(self, job: KernelJob) -> FoundKernel:
        """The kernel's artifacts.

        Raises:
            KernelRejectedError: the toolchain refuses the kernel, or it ended its workers.
            UnavailableError: cache, broker or workers do not answer.
            FarmFullError: too many kernels are in flight.
        """
        flight = self._flights.get(job.key)
        if flight is not None:
            await self._cache.count("merged")
            found = await asyncio.shield(flight)
            return FoundKernel(found.payloads, caused_job=False)
        if len(self._flights) >= self._settings.max_jobs:
            raise FarmFullError(f"{len(self._flights)} kernels are in flight; come back later")
        flight = asyncio.create_task(self._fly(job))
        self._flights[job.key] = flight
        flight.add_done_callback(lambda done: self._land(job.key, done))
        return await asyncio.shield(flight)

    async def abandon(self) -> None:
        """Ends what is still in flight; leases lapse by themselves."""
        for flight in self._flights.values():
            flight.cancel()
        await asyncio.gather(*self._flights.values(), return_exceptions=True)

    def _land(self, key: bytes, flight: asyncio.Task[FoundKernel]) -> None:
        del self._flights[key]
        if not flight.cancelled() and flight.exception() is not None:
            get_logger().debug("flight_failed", key=key.hex(), message=str(flight.exception()))

    async def _fly(self, job: KernelJob) -> FoundKernel:
        """Looks, and while there is nothing: builds, or waits for whoever builds."""
        jobs_sent = 0
        is_first_look = True
        while True:
            payloads = await self._cache.lookup(job.key, is_counted=is_first_look)
            if payloads is not None:
                return FoundKernel(tuple(payloads), caused_job=jobs_sent > 0)
            await self._raise_failure(job.key)
            lease = await self._cache.acquire(
                job.key, uuid.uuid4().hex, self._settings.queued_lease_ttl_s, is_queued=True
            )
            if lease is not None:
                jobs_sent += 1
                await self._send(job, lease)
                await self._attend(job, lease)
                continue
            if is_first_look and jobs_sent == 0:
                await self._cache.count("merged")
            is_first_look = False
            await self._cache.wait(job.key, self._settings.queued_lease_ttl_s)

    async def _raise_failure(self, key: bytes) -> None:
        facts = await self._cache.get_failure(key)
        if facts is not None:
            raise error_from_facts(facts)

    async def _send(self, job: KernelJob, lease: Lease) -> None:
        """Queues a job under a fresh lease.

        Raises:
            KernelRejectedError: earlier attempts ended their workers; this is told for a while.
        """
        if lease.attempts >= self._settings.max_attempts:
            await self._quarantine(job, lease)
        await self._cache.put_job(job.key, job.job)
        await self._cache.count("jobs")
        await self._enqueue(job, lease)

    async def _quarantine(self, job: KernelJob, lease: Lease) -> None:
        ttl_s = self._settings.quarantine_ttl_s
        error = KernelRejectedError(
            f"kernel {job.name} ({job.key.hex()[:16]}) ended its {job.queue} worker"
            f" {lease.attempts} times while it was compiled for {job.target}; it is refused for"
            f" {ttl_s:.0f} s. Report it with the kernel's text"
        )
        get_logger().error("kernel_quarantined", key=job.key.hex(), message=str(error))
        await self._cache.put_failure(job.key, error_facts(error), ttl_s, lease)
        raise error

    async def _enqueue(self, job: KernelJob, lease: Lease) -> None:
        message = QueuedJob(
            job.queue,
            self._cache.namespace,
            job.key,
            lease.fence,
            is_warm_up=job.is_warm_up,
            request_id=job.request_id,
        )
        try:
            await self._queue.send(message)
        except UnavailableError:
            await self._cache.release(lease)
            raise
        get_logger().info(
            "job_queued", key=job.key.hex(), fence=lease.fence, attempts=lease.attempts
        )

    async def _attend(self, job: KernelJob, lease: Lease) -> None:
        """Returns when the job is no more waiting in its queue: adopted, ended, or lost.

        A message that no worker took may have died with a worker or a broker, so it is sent again
        with the same fence, at growing intervals; of two equal messages one is dropped.
        """
        clock = asyncio.get_running_loop().time
        started_s = clock()
        pause_s = self._settings.requeue_after_s
        send_again_s = started_s + pause_s
        while True:
            await self._cache.wait(job.key, lease.ttl_s / 3)
            if not await self._cache.renew(lease):
                return
            if clock() - started_s > self._settings.no_worker_grace_s:
                await self._check_workers(job, lease)
            if clock() >= send_again_s:
                pause_s *= 2
                send_again_s = clock() + pause_s
                await self._enqueue(job, lease)

    async def _check_workers(self, job: KernelJob, lease: Lease) -> None:
        if any(report.queue == job.queue for report in await self._cache.worker_reports()):
            return
        await self._cache.release(lease)
        raise UnavailableError(
            f"no worker serves the queue {job.queue!r}: start one with"
            f" `python -m codegen_svc.worker --queue {job.queue}`, or wait for it to report"
        )
