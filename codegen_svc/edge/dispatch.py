"""From the request for a kernel to its artifacts: cache, lease, queue, and errors.

The lease in the cache decides who builds a kernel. The edge takes it as *queued*, sends a message,
and renews the lease until a worker adopts it; then the worker renews it. If the worker dies, the
lease lapses, and an edge that waits takes a new one with a higher fence. So equal kernels are built
once across requests and edges, and messages may get lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from codegen_svc.celery_app import JobQueue
from codegen_svc.edge.fair_queue import FairQueue, JobClass
from codegen_svc.edge.job_groups import JobGroups
from codegen_svc.edge.job_metrics import JobMetrics
from codegen_svc.edge.job_sender import JobSender
from codegen_svc.edge.jobs import KernelJob, KernelResult, PendingJob
from codegen_svc.settings import CodegenSettings
from kernelfarm import spans
from kernelfarm.cache import EdgeCache, StoredVariant
from kernelfarm.cache.farm_reports import QueueReport
from kernelfarm.cache.records import KernelLookup
from kernelfarm.cache.redis_keys import tenant_namespace, tenant_of
from kernelfarm.end_task import end_task
from kernelfarm.errors import (
    CompilesQuotaError,
    FarmFullError,
    UnavailableError,
    error_from_facts,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.tenants.identity import SHARED_TENANT

# More than a worker's death, two invalidations and a lost cache during one build would need.
_MAX_JOBS_PER_BUILD = 8
_COUNT_WORKERS_S = 5.0
# Jobs that are sent before a worker has reported.
_JOBS_WITHOUT_WORKERS = 8


class Dispatcher:
    """Finds or builds kernels; equal requests of one namespace share one in-flight build.

    If the caller of a build is cancelled, the build goes on for later callers.
    """

    def __init__(self, cache: EdgeCache, queue: JobQueue, settings: CodegenSettings) -> None:
        self._cache = cache
        self._shared = cache.for_namespace(tenant_namespace(cache.namespace, SHARED_TENANT))
        self._settings = settings
        # A user's request does not join the build of a warm-up, which may wait for long: of the
        # two, the one that gets its permit first compiles the kernel, and the other finds it.
        self._builds: dict[tuple[str, bytes, bool], asyncio.Task[KernelResult]] = {}
        self._build_counts: Counter[str] = Counter()
        self._warm_ups = 0
        self._namespace_caches: dict[tuple[str, bytes], EdgeCache] = {}
        self._groups_by_queue: dict[str, JobGroups] = {}
        self._workers: Counter[str] = Counter()
        self._counted_s = float("-inf")
        self.metrics = JobMetrics()
        self._sender = JobSender(queue, settings, self.metrics, self._has_workers)

    async def find_or_build(self, job: KernelJob) -> KernelResult:
        """The kernel's artifacts.

        Raises:
            CallerError: the job's namespace is not of this farm.
            KernelRejectedError: the toolchain refuses the kernel.
            KernelLimitError: its compilation reached a limit, or the kernel is quarantined.
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
        await asyncio.gather(*(groups.close() for groups in self._groups_by_queue.values()))

    def _namespace_cache(self, job: KernelJob) -> EdgeCache:
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
    async def _find_or_queue(self, job: KernelJob, cache: EdgeCache) -> KernelResult:
        """Looks up a kernel, also in the shared namespace; else builds it or waits for a build."""
        jobs_sent = 0
        is_first_lookup = True
        while True:
            found = await cache.find(job.key, is_counted=is_first_lookup)
            if found.lookup.is_hit:
                return KernelResult(found.lookup.variants, caused_job=jobs_sent > 0)
            if is_first_lookup and (shared := await self._copy_from_shared(job, cache)):
                return KernelResult(shared, caused_job=False)
            if found.failure is not None:
                raise error_from_facts(found.failure)
            if await self._build(job, cache, found, jobs_sent):
                jobs_sent += 1
                continue
            if is_first_lookup and jobs_sent == 0:
                await cache.count("merged")
            is_first_lookup = False
            seen = found.lookup.stamp
            await cache.wait(job.key, self._settings.queued_lease_ttl_s, seen=seen)

    async def _copy_from_shared(
        self, job: KernelJob, cache: EdgeCache
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

    async def _build(
        self, job: KernelJob, cache: EdgeCache, found: KernelLookup, jobs_sent: int
    ) -> bool:
        """Sends the job when the fair queue permits it, and waits for its end.

        False if another edge holds the lease.
        """
        self._check_jobs(job, jobs_sent + 1)
        await self._count_workers()
        # A kernel is slow by its estimate, or because a worker found it slow.
        is_slow = job.cost_s > self._settings.slow_kernel_s or found.is_slow
        job_class = JobClass(cache.namespace, is_warm_up=job.is_warm_up, is_slow=is_slow)
        with self.metrics.queued(job.queue, is_warm_up=job.is_warm_up) as record:
            pending = PendingJob(
                job,
                job_class,
                cache,
                found.lookup.stamp,
                record,
                parent=spans.traceparent(),
                is_alone=jobs_sent > 0,
                ended=asyncio.get_running_loop().create_future(),
            )
            self._groups(job.queue).add(pending)
            return await pending.ended

    def _groups(self, queue: str) -> JobGroups:
        if queue not in self._groups_by_queue:
            slots = partial(self._slots, queue)
            permits = FairQueue(slots, partial(self._max_sent, queue))
            send = partial(self._sender.send, permits=permits)
            self._groups_by_queue[queue] = JobGroups(
                permits, slots, self._settings.job_group_s, send
            )
        return self._groups_by_queue[queue]

    async def queue_reports(self) -> list[QueueReport]:
        """The queues that workers serve or jobs wait for, as this edge sees them."""
        await self._count_workers()
        queues = sorted(self._workers.keys() | self._groups_by_queue.keys())
        return [
            QueueReport(queue, self._workers[queue], jobs.sent, jobs.waiting)
            for queue in queues
            for jobs in (self._groups(queue),)
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

    async def _has_workers(self, queue: str) -> bool:
        return any(report.queue == queue for report in await self._cache.worker_reports())
