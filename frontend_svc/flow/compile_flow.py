"""The story of one request, top to bottom. Read this file first.

    run                     check the request, find its program keys; serve all targets at once
      _serve_target         look-up -> hit; else lead the compilation, or wait for who leads it
        _lead               hold the lease, compile, publish for all who wait; then look up again
          _compile          Prims (once for all targets) -> optimizer -> code generators -> result

Whoever asks is served from the cache, also who compiled: only what was published under a lease that
held, and that nothing invalidated meanwhile, reaches a client.

Only this file decides in which order rooms are asked; `downstream` knows how to ask them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from frontend_svc.cache.tenant_caches import TenantCaches
from frontend_svc.flow.admission import AdmissionControl
from frontend_svc.flow.downstream import (
    BuiltArtifacts,
    CodegenClient,
    KernelBuildRequest,
    OptimizedProgram,
    OptimizerClient,
)
from frontend_svc.flow.events import CacheOutcome, CompileJob, Event, EventStream, ProgramReady
from frontend_svc.flow.failure_ttls import FailureTtls
from frontend_svc.flow.graph_job_client import GraphJobClient
from frontend_svc.flow.import_cache import GraphImport, ImportCache, RequestSummary
from frontend_svc.flow.lease_renewal import lease_renewal
from frontend_svc.flow.program_tags import program_tags
from frontend_svc.flow.shared_decomposition import SharedDecomposition
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, Lease, PublishStatus, UnsignedVariant
from kernelfarm.end_task import end_task
from kernelfarm.errors import (
    CallerError,
    FarmFullError,
    InternalError,
    KernelfarmError,
    QuotaError,
    UnavailableError,
    error_facts,
    error_from_facts,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.targets import target_facts
from kernelfarm.wire.names import checked_name
from kernelfarm.wire.program_result import program_result

# Invalidations in the middle of a compilation are rare; a cache that keeps nothing must not make
# us compile for ever.
_MAX_BUILDS = 3
_MAX_KERNEL_REQUESTS = 3

MAX_TARGETS = 64
"""Targets of one request; there are fewer chips."""


@dataclass(frozen=True, slots=True)
class FlowServices:
    """Whom the flow asks."""

    cache: KernelCache
    tenant_caches: TenantCaches
    optimizer: OptimizerClient
    codegen: CodegenClient


@dataclass(frozen=True, slots=True)
class _Request:
    """A decoded request: program keys by target, and what the targets share."""

    job: CompileJob
    imported: GraphImport
    summary: RequestSummary
    decomposition: SharedDecomposition
    events: EventStream


class CompileFlow:
    """Serves compile requests; one object for the whole service."""

    def __init__(
        self, services: FlowServices, graph_jobs: GraphJobClient, settings: FrontendSettings
    ) -> None:
        self._services = services
        self._graph_jobs = graph_jobs
        self._settings = settings
        self._failure_ttls = FailureTtls(
            settings.rejection_ttl_s, settings.exhausted_ttl_s, settings.outage_ttl_s
        )
        self._import_cache = ImportCache(graph_jobs, self._failure_ttls)
        self._admission = AdmissionControl(settings.max_compiles_per_tenant, settings.lease_ttl_s)
        self._builds: set[asyncio.Task[int]] = set()

    async def run(self, job: CompileJob) -> AsyncIterator[Event]:
        """Serves one request: its stages as they happen, then one program for each target.

        A target that fails does not stop the others: its error is raised after their programs.

        Raises:
            CallerError: the request is wrong; nothing was compiled.
            UnavailableError: a room does not answer.
        """
        check_targets(job.targets)
        events = EventStream()
        stage = events.stage("import")
        imported, summary = await self._import_cache.of(job)
        stage.report(summary.nodes, summary.nodes)
        decomposition = SharedDecomposition(
            self._graph_jobs, events, imported, fallback_random=job.fallback_random
        )
        request = _Request(job, imported, summary, decomposition, events)
        work = asyncio.create_task(self._serve_all(request))
        try:
            async for event in events.listen():
                yield event
            await work
        finally:
            # Only this client's interest ends here: programs that it leads are compiled on.
            await end_task(work)

    async def _serve_all(self, request: _Request) -> None:
        served = (self._serve_target(request, target) for target in request.job.targets)
        results = await asyncio.gather(*served, return_exceptions=True)
        request.events.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _serve_target(self, request: _Request, target: str) -> None:
        """Finds the program, makes it, or waits for whoever makes it already."""
        key, tenant_cache = request.summary.keys[target], request.job.tenant_cache
        stage = request.events.stage("lookup", target)
        outcome = CacheOutcome.HIT
        jobs = builds = 0
        while True:
            lookup = await tenant_cache.programs.find(
                key, request.job.caller, is_counted=outcome is CacheOutcome.HIT
            )
            if lookup.program is not None:
                stage.report(1, 1, outcome.value)
                _serve(request, ProgramReady(target, lookup.program, outcome, jobs))
                return
            await _raise_known_failure(tenant_cache.cache, key)
            lease = await self._try_to_acquire(request.job, key, lookup.stamp)
            if lease is not None:
                builds += 1
                _check_builds(key, builds)
                outcome = CacheOutcome.MISS
                stage.report(0, 1, outcome.value)
                jobs += await self._build_in_task(request, target, lease)
                continue
            # Woken by the leader's publication, its failure, or the end of its lease.
            outcome = CacheOutcome.MERGED if outcome is CacheOutcome.HIT else outcome
            stage.report(0, 1, "another request compiles it")
            await tenant_cache.cache.wait(key, self._settings.lease_ttl_s, seen=lookup.stamp)

    async def _try_to_acquire(self, job: CompileJob, key: bytes, seen: str) -> Lease | None:
        """The lease on a missing program; None if another request has it, or just published.

        Its owner is the name under which the compilation flies.

        Raises:
            PermissionDeniedError, QuotaError: the caller may not compile, or not so much.
            FarmFullError: too many programs are being compiled here; that costs no attempt.
            InternalError: earlier attempts ended their frontends; this is told for a while.
        """
        tenant_cache, compile_id = job.tenant_cache, uuid.uuid4().hex
        try:
            await self._admit(job, compile_id)
        except (FarmFullError, QuotaError):
            if await tenant_cache.cache.is_in_progress(key, seen=seen):
                return None  # who waits for another one's compilation takes no place
            raise
        lease = None
        try:
            lease = await tenant_cache.cache.acquire(
                key, compile_id, self._settings.lease_ttl_s, seen=seen, tags=job.caller.tags
            )
            if lease is not None and lease.attempts >= self._settings.max_attempts:
                await self._quarantine(tenant_cache.cache, lease)
        except Exception:
            await self._admission.release(tenant_cache, compile_id)
            raise
        if lease is None:
            await self._admission.release(tenant_cache, compile_id)
        return lease

    async def _admit(self, job: CompileJob, compile_id: str) -> None:
        if len(self._builds) >= self._settings.max_compiles:
            raise FarmFullError(
                f"{len(self._builds)} programs are being compiled, the limit of this frontend"
            )
        await self._admission.admit(job.tenant_cache, compile_id, may_compile=job.may_compile)

    async def _quarantine(self, cache: KernelCache, lease: Lease) -> None:
        ttl_s = self._settings.quarantine_ttl_s
        error = InternalError(
            f"program {lease.key.hex()[:16]} ended its frontend {lease.attempts} times while it was"
            f" compiled; it is refused for {ttl_s:.0f} s. Report it with the graph"
        )
        await cache.put_failure(lease.key, error_facts(error), ttl_s, lease)
        await cache.count("quarantined")
        raise error

    async def _build_in_task(self, request: _Request, target: str, lease: Lease) -> int:
        """Compiles in a task of its own: others may wait for it after this client has left."""
        task = asyncio.create_task(self._build(request, target, lease))
        self._builds.add(task)
        task.add_done_callback(self._build_done)
        return await asyncio.shield(task)

    async def _build(self, request: _Request, target: str, lease: Lease) -> int:
        """Compiles under the lease and publishes; a failure too, for those who wait.

        The kernel jobs that it took.
        """
        tenant_cache = request.job.tenant_cache
        cache = tenant_cache.cache
        renew_admission = partial(self._admission.renew, tenant_cache, lease.owner)
        try:
            async with lease_renewal(cache, lease, renew_admission):
                variant, blobs, jobs = await self._compile(request, target, lease.key)
                stage = request.events.stage("publish", target)
                await _publish(cache, lease, variant, blobs)
                await self._index_key(request, target, lease.key)
                stage.report(1, 1)
                return jobs
        except Exception as error:
            with suppress(UnavailableError):  # the first error is the one to tell
                facts = error_facts(error)
                await cache.put_failure(lease.key, facts, self._failure_ttls.ttl_s(error), lease)
            raise
        finally:
            with suppress(UnavailableError):  # then it lapses
                await cache.release(lease)
            await self._admission.release(tenant_cache, lease.owner)

    async def _index_key(self, request: _Request, target: str, key: bytes) -> None:
        """Notes the key's parts, by which later misses are explained."""
        parts = await self._graph_jobs.parts(request.imported.source, target, request.job.options)
        with suppress(UnavailableError):  # an explanation is not worth a failure
            await request.job.tenant_cache.index.add(key, parts)

    async def _compile(
        self, request: _Request, target: str, key: bytes
    ) -> tuple[UnsignedVariant, dict[bytes, bytes], int]:
        """Asks the rooms in order; the program, its blobs, and the kernel jobs that it took."""
        job = request.job
        lowered = await request.decomposition.result(target_facts(target))
        stage = request.events.stage("optimize", target)
        optimized = await self._services.optimizer.optimize(
            job.request_id, lowered.message, target, job.tenant_cache.namespace_config.tenant
        )
        stage.report(len(optimized.kernels), len(optimized.kernels))
        kernels = await self._build_kernels(request, target, optimized)
        result = await asyncio.to_thread(  # its work is linear in what the rooms made
            program_result,
            key,
            optimized.plan,
            [kernel.artifacts for kernel in kernels],
            lowered.texts_with(optimized.texts),
        )
        graph = await request.imported.graph()
        tags = program_tags(graph, target, optimized.made_by, kernels)
        tags = (*tags, *job.caller.tags, *job.tenant_cache.tags)
        variant = UnsignedVariant(result.payload, result.named, tags=tags)
        return variant, result.blobs, sum(kernel.caused_job for kernel in kernels)

    async def _build_kernels(
        self, request: _Request, target: str, optimized: OptimizedProgram
    ) -> tuple[BuiltArtifacts, ...]:
        """Every kernel's artifacts, in the plan's order; none that was invalidated by now.

        What is invalidated from now on is noticed when the program is published.

        Raises:
            UnavailableError: the code generators give what was invalidated again and again.
        """
        for _ in range(_MAX_KERNEL_REQUESTS):
            built = await self._request_kernels(request, target, optimized)
            manifests = (manifest for kernel in built for manifest in kernel.manifests)
            if await request.job.tenant_cache.cache.epochs.is_current(manifests):
                return built
            get_logger().warning("kernels_stale", target=target)
        raise UnavailableError(
            f"the code generators gave kernels {_MAX_KERNEL_REQUESTS} times that were invalidated"
            " meanwhile"
        )

    async def _request_kernels(
        self, request: _Request, target: str, optimized: OptimizedProgram
    ) -> tuple[BuiltArtifacts, ...]:
        """What the code generators' room answers."""
        total = len(optimized.kernels)
        built: dict[int, BuiltArtifacts] = {}
        stage = request.events.stage("codegen", target)
        stage.report(0, total)
        job = request.job
        tenant = job.tenant_cache.namespace_config.tenant
        keys = await self._graph_jobs.kernel_keys(optimized.content, target, tenant)
        build_request = KernelBuildRequest(
            job.request_id,
            optimized.kernels,
            keys,
            target,
            job.priority,
            job.tenant_cache.namespace,
            job.tenant_cache.kernel_salt,
            self._services.tenant_caches.shared_namespace,
        )
        async for kernel in self._services.codegen.build(build_request):
            built[kernel.index] = kernel
            stage.report(len(built), total, optimized.kernels[kernel.index].name)
        return tuple(built[index] for index in range(total))

    def _build_done(self, task: asyncio.Task[int]) -> None:
        self._builds.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), KernelfarmError):
            # Its client may have left: the log is then the only place that tells.
            get_logger().warning("program_failed", reason=error.reason, message=str(error))

    async def drain(self, grace_s: float) -> None:
        """Returns when every program that is being compiled is published or has failed.

        What is not by the end of the grace is ended: who waits for it asks another frontend.
        """
        if not self._builds:
            return
        _, late = await asyncio.wait(self._builds, timeout=grace_s)
        if late:
            get_logger().warning("compiles_aborted", programs=len(late), grace_s=grace_s)
        await asyncio.gather(*(end_task(task) for task in late))


async def _publish(
    cache: KernelCache, lease: Lease, variant: UnsignedVariant, blobs: dict[bytes, bytes]
) -> None:
    """Publishes a program; what may not be published is dropped, and its client looks again."""
    await cache.put_blobs(blobs)
    published = await cache.publish(lease, [variant])
    if published is PublishStatus.MISSING_BLOB:
        raise UnavailableError("the cache evicted a kernel's stages before their program")
    if published is not PublishStatus.OK:
        get_logger().warning("publication_refused", key=lease.key.hex(), reason=published.value)


async def _raise_known_failure(cache: KernelCache, key: bytes) -> None:
    facts = await cache.get_failure(key)
    if facts is not None:
        raise error_from_facts(facts)


def _serve(request: _Request, program: ProgramReady) -> None:
    request.events.emit(program)
    log = get_logger()
    emit = log.debug if program.outcome is CacheOutcome.HIT else log.info
    emit(
        "program_served",
        target=program.target,
        outcome=program.outcome.value,
        codegen_jobs=program.codegen_jobs,
        tier=program.selected.tier.value,
        payload_bytes=len(program.selected.variant.content),
    )


def _check_builds(key: bytes, builds: int) -> None:
    if builds > _MAX_BUILDS:
        raise UnavailableError(
            f"program {key.hex()[:16]} was compiled {_MAX_BUILDS} times, and each time something"
            " was"
            " invalidated meanwhile that it depends on, or the cache dropped it; try again later"
        )


def check_targets(targets: tuple[str, ...]) -> None:
    """Checks the targets of a request before any work is done for it.

    Raises:
        CallerError: none, too many, or one twice.
        MalformedMessageError: a name that is too long.
        UnknownTargetError: one that this farm does not know.
    """
    if not targets:
        raise CallerError("no target: expected at least one descriptor such as 'cpu:x86-64-v3'")
    if len(targets) > MAX_TARGETS:
        raise CallerError(f"{len(targets)} targets; expected at most {MAX_TARGETS}")
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise CallerError(f"target {twice[0]!r} is asked for twice; expected each at most once")
    for target in targets:
        target_facts(checked_name(target, "a target"))
