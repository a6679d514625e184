"""From the request for a kernel to its artifacts: cache, lease, queue, and errors.

The lease in the cache decides who builds a kernel. The edge takes it as *queued*, sends a message,
and renews the lease until a worker adopts it; then the worker renews it. If the worker dies, the
lease lapses, and an edge that waits takes a new one with a higher fence. So equal kernels are built
once across requests and edges, and messages may get lost.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from codegen_svc.celery_app import JobQueue, QueuedJob
from codegen_svc.edge.fair_queue import FairQueue, JobClass, Permit
from codegen_svc.edge.job_metrics import JobMetrics
from codegen_svc.settings import CodegenSettings
from kernelfarm import spans
from kernelfarm.cache import KernelCache, Lease, StoredVariant
from kernelfarm.cache.farm_reports import QueueReport
from kernelfarm.cache.redis_keys import tenant_namespace, tenant_of
from kernelfarm.end_task import end_task
from kernelfarm.errors import (
    CompilesQuotaError,
    FarmFullError,
    KernelRejectedError,
    UnavailableError,
    error_facts,
    error_from_facts,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.tenants.identity import SHARED_TENANT

# More than a worker's death, two invalidations and a lost cache during one build would need.
_MAX_JOBS_PER_BUILD = 8
_COUNT_WORKERS_S = 5.0
# Jobs that are sent before a worker has reported.
_JOBS_WITHOUT_WORKERS = 8


@dataclass(frozen=True, slots=True)
class KernelJob:
    """One kernel to find or build; `job` is the worker's input.

    It is looked up and published in `namespace` (empty: the edge's own) under the storage key that
    `salt` gives. `cost_s` is the expected processor time of compiling it.
    """

    key: bytes
    name: str
    target: str
    queue: str
    job: bytes
    is_warm_up: bool = False
    request_id: str = ""
    namespace: str = ""
    cost_s: float = 0.0
    salt: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class KernelResult:
    """A kernel's variants as published, and whether the request caused a job."""

    variants: tuple[StoredVariant, ...]
    caused_job: bool


class Dispatcher:
    """Finds or builds kernels; equal requests of one namespace share one in-flight build.

    If the caller of a build is cancelled, the build goes on for later callers.
    """

    def __init__(self, cache: KernelCache, queue: JobQueue, settings: CodegenSettings) -> None:
        self._cache = cache
        self._shared = cache.for_namespace(tenant_namespace(cache.namespace, SHARED_TENANT))
        self._queue = queue
        self._settings = settings
        # A user's request does not join the build of a warm-up, which may wait for long: of the
        # two, the one that gets its permit first compiles the kernel, and the other finds it.
        self._builds: dict[tuple[str, bytes, bool], asyncio.Task[KernelResult]] = {}
        self._build_counts: Counter[str] = Counter()
        self._warm_ups = 0
        self._namespace_caches: dict[tuple[str, bytes], KernelCache] = {}
        self._fair_queues: dict[str, FairQueue] = {}
        self._workers: Counter[str] = Counter()
        self._counted_s = float("-inf")
        self.metrics = JobMetrics()

    async def find_or_build(self, job: KernelJob) -> KernelResult:
        """The kernel's artifacts.

        Raises:
            CallerError: the job's namespace is not of this farm.
            KernelRejectedError: the toolchain refuses the kernel, or the kernel is quarantined.
            UnavailableError: cache, broker or workers do not answer.
            FarmFullError: too many builds are in flight, of all tenants or of this one.
        """
        cache = self._namespace_cache(job)
        name = (cache.namespace, cache.redis_keys.storage_key(job.key), job.is_warm_up)
        build = self._builds.get(name)
        if build is not None:
            await cache.count("merged")
            found = await asyncio.shield(build)
            return KernelResult(found.variants, caused_job=False)
        self._check_capacity(cache.namespace, is_warm_up=job.is_warm_up)
        build = asyncio.create_task(self._find_or_queue(job, cache))
        self._builds[name] = build
        self._build_counts[cache.namespace] += 1
        self._warm_ups += job.is_warm_up
        build.add_done_callback(lambda done: self._build_done(name, done))
        return await asyncio.shield(build)

    async def abandon(self) -> None:
        """Cancels the in-flight builds; their leases lapse."""
        await asyncio.gather(*map(end_task, list(self._builds.values())))

    def _namespace_cache(self, job: KernelJob) -> KernelCache:
        """The cache of the job's namespace."""
        name = (job.namespace, job.salt)
        if name not in self._namespace_caches:
            namespace = job.namespace or self._cache.namespace
            self._namespace_caches[name] = self._cache.for_namespace(namespace, job.salt)
        return self._namespace_caches[name]

    def _check_capacity(self, namespace: str, *, is_warm_up: bool) -> None:
        if len(self._builds) >= self._settings.max_jobs:
            raise FarmFullError(f"{len(self._builds)} kernel builds are in flight; try again later")
        if is_warm_up and self._warm_ups >= max(1, self._settings.max_jobs // 2):
            raise FarmFullError(
                f"{self._warm_ups} kernel builds of warm-ups are in flight; try again later"
            )
        most = self._settings.max_jobs_per_tenant
        if tenant_of(namespace) and self._build_counts[namespace] >= most:
            raise CompilesQuotaError(
                f"{most} kernel builds of this tenant are in flight: its limit"
            )

    def _build_done(self, name: tuple[str, bytes, bool], build: asyncio.Task[KernelResult]) -> None:
        del self._builds[name]
        self._build_counts[name[0]] -= 1
        self._warm_ups -= name[2]
        if not build.cancelled() and build.exception() is not None:
            get_logger().debug("build_failed", key=name[1].hex(), message=str(build.exception()))

    @spans.in_span("kernel")
    async def _find_or_queue(self, job: KernelJob, cache: KernelCache) -> KernelResult:
        """Looks up a kernel, also in the shared namespace; else builds it or waits for a build."""
        jobs_sent = 0
        is_first_lookup = True
        while True:
            found = await cache.lookup(job.key, is_counted=is_first_lookup)
            if found.is_hit:
                return KernelResult(found.variants, caused_job=jobs_sent > 0)
            if is_first_lookup and (shared := await self._copy_from_shared(job, cache)):
                return KernelResult(shared, caused_job=False)
            await _raise_failure(cache, job.key)
            if await self._build(job, cache, found.stamp, jobs_sent):
                jobs_sent += 1
                continue
            if is_first_lookup and jobs_sent == 0:
                await cache.count("merged")
            is_first_lookup = False
            await cache.wait(job.key, self._settings.queued_lease_ttl_s, seen=found.stamp)

    async def _copy_from_shared(
        self, job: KernelJob, cache: KernelCache
    ) -> tuple[StoredVariant, ...]:
        """A kernel's variants in the shared namespace; copies their blobs to the tenant's.

        Only warmers publish there, so a tenant learns nothing about other tenants.
        """
        if tenant_of(cache.namespace) in {"", SHARED_TENANT}:
            return ()
        theirs = await self._shared.lookup(job.key, is_counted=False)
        digests = {blob.sha256 for found in theirs.variants for blob in found.manifest.blobs}
        if not theirs.is_hit or not await cache.copy_blobs(self._shared, digests):
            return ()
        await cache.count("shared_hits")
        return theirs.variants

    async def _build(self, job: KernelJob, cache: KernelCache, seen: str, jobs_sent: int) -> bool:
        """Queues the job when the fair queue permits it, and waits for its end.

        False if another edge holds the lease.
        """
        await self._count_workers()
        fair_queue = self._fair_queue(job.queue)
        job_class = await self._job_class(job, cache)
        if fair_queue.must_wait(job_class):
            get_logger().info("job_waiting", key=job.key.hex(), namespace=cache.namespace)
        with self.metrics.queued(job.queue, is_warm_up=job.is_warm_up) as queued:
            async with fair_queue.permit(job_class) as permit:
                ttl_s = self._settings.queued_lease_ttl_s
                owner = uuid.uuid4().hex
                lease = await cache.acquire(job.key, owner, ttl_s, is_queued=True, seen=seen)
                if lease is None:
                    return False
                self._check_jobs(job, jobs_sent + 1)
                with spans.span("queue", vendor=job.queue, kernel=job.name):
                    await self._send(job, cache, lease, job_class)
                    queued.sent()
                    await self._await_adoption(job, cache, lease, permit, seen)
                self.metrics.begin(queued)
                await self._await_end(job, cache, seen)
                return True

    async def _job_class(self, job: KernelJob, cache: KernelCache) -> JobClass:
        """The job's class; a kernel is slow by its estimate, or because a worker found it slow."""
        is_slow = job.cost_s > self._settings.slow_kernel_s or await cache.is_slow(job.key)
        return JobClass(cache.namespace, is_warm_up=job.is_warm_up, is_slow=is_slow)

    async def _await_end(self, job: KernelJob, cache: KernelCache, seen: str) -> None:
        """Returns when a worker ended the job, or is gone: the permit can be released then."""
        ttl_s = self._settings.queued_lease_ttl_s
        while True:
            await cache.wait(job.key, ttl_s, seen=seen)
            if not await cache.is_in_progress(job.key, seen=seen):
                return

    def _fair_queue(self, queue: str) -> FairQueue:
        if queue not in self._fair_queues:
            slots = partial(self._slots, queue)
            self._fair_queues[queue] = FairQueue(slots, partial(self._max_sent, queue))
        return self._fair_queues[queue]

    async def queue_reports(self) -> list[QueueReport]:
        """The queues that workers serve or jobs wait for, as this edge sees them."""
        await self._count_workers()
        queues = sorted(self._workers.keys() | self._fair_queues.keys())
        return [
            QueueReport(queue, self._workers[queue], jobs.sent, jobs.waiting)
            for queue in queues
            for jobs in (self._fair_queue(queue),)
        ]

    def _slots(self, queue: str) -> int:
        return self._workers[queue]

    def _max_sent(self, queue: str) -> int:
        if not self._workers[queue]:
            return _JOBS_WITHOUT_WORKERS
        return self._settings.queue_headroom + 2 * self._workers[queue]

    async def _count_workers(self) -> None:
        """Counts the workers of each queue, at most every few seconds."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s > _COUNT_WORKERS_S:
            self._counted_s = now_s
            reports = await self._cache.worker_reports()
            self._workers = Counter(report.queue for report in reports)

    def _check_jobs(self, job: KernelJob, jobs_sent: int) -> None:
        """Ends a build whose results are refused again and again; its lease lapses.

        Raises:
            UnavailableError: workers, epochs or keys change faster than the kernel compiles.
        """
        if jobs_sent > _MAX_JOBS_PER_BUILD:
            raise UnavailableError(
                f"kernel {job.name} ({job.key.hex()[:16]}) was queued {jobs_sent - 1} times, and"
                " no result could be stored: was something invalidated, or do workers sign with a"
                " key that is not trusted? See the counters of `kernelfarm usage`"
            )

    async def _send(
        self, job: KernelJob, cache: KernelCache, lease: Lease, job_class: JobClass
    ) -> None:
        """Queues a job under a fresh lease.

        Raises:
            KernelRejectedError: earlier attempts ended their workers; the kernel is quarantined.
        """
        if lease.attempts >= self._settings.max_attempts:
            await self._quarantine(job, cache, lease)
        await cache.put_job(job.key, job.job)
        await cache.count("jobs")
        await self._enqueue(job, cache, lease, job_class)

    async def _quarantine(self, job: KernelJob, cache: KernelCache, lease: Lease) -> None:
        ttl_s = self._settings.quarantine_ttl_s
        error = KernelRejectedError(
            f"kernel {job.name} ({job.key.hex()[:16]}) ended its {job.queue} worker"
            f" {lease.attempts} times while it was compiled for {job.target}; it is refused for"
            f" {ttl_s:.0f} s. Report it with the kernel's text"
        )
        await cache.count("quarantined")
        get_logger().error("kernel_quarantined", key=job.key.hex(), message=str(error))
        await cache.put_failure(job.key, error_facts(error), ttl_s, lease)
        raise error

    async def _enqueue(
        self, job: KernelJob, cache: KernelCache, lease: Lease, job_class: JobClass
    ) -> None:
        message = QueuedJob(
            job.queue,
            cache.namespace,
            cache.redis_keys.storage_key(job.key),
            lease.fence,
            is_warm_up=job.is_warm_up,
            request_id=job.request_id,
            traceparent=spans.traceparent(),
            is_slow=job_class.is_slow,
            stands_back=job.is_warm_up
            or self._fair_queue(job.queue).must_stand_back(job_class.tenant),
        )
        try:
            await self._queue.send(message)
        except UnavailableError:
            await cache.release(lease)
            raise
        get_logger().info(
            "job_queued",
            key=job.key.hex(),
            fence=lease.fence,
            attempts=lease.attempts,
            is_slow=job_class.is_slow,
            stands_back=message.stands_back,
        )

    async def _await_adoption(
        self, job: KernelJob, cache: KernelCache, lease: Lease, permit: Permit, seen: str
    ) -> None:
        """Returns when the job no longer waits in its queue: adopted, ended, or lost.

        A message that no worker took may have been lost with a worker or a broker. It is therefore
        sent again with the same fence, at growing intervals; workers drop one of two equal
        messages.
        """
        clock = asyncio.get_running_loop().time
        started_s = clock()
        pause_s = self._settings.requeue_after_s
        send_again_s = started_s + pause_s
        while True:
            await cache.wait(job.key, lease.ttl_s / 3, seen=seen)
            if not await cache.renew(lease):
                permit.begin()
                return
            if clock() - started_s > self._settings.no_worker_grace_s:
                await self._check_workers(job, cache, lease)
            if clock() >= send_again_s:
                pause_s *= 2
                send_again_s = clock() + pause_s
                await self._enqueue(job, cache, lease, permit.job_class)

    async def _check_workers(self, job: KernelJob, cache: KernelCache, lease: Lease) -> None:
        if any(report.queue == job.queue for report in await self._cache.worker_reports()):
            return
        await cache.release(lease)
        raise UnavailableError(
            f"no worker serves the queue {job.queue!r}: start one with"
            f" `python -m codegen_svc.worker --queue {job.queue}`, or wait for it to report"
        )


async def _raise_failure(cache: KernelCache, key: bytes) -> None:
    facts = await cache.get_failure(key)
    if facts is not None:
        raise error_from_facts(facts)
