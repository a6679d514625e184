"""The flow of one compile request. Read this file first.

    run                     check the request, find its program keys, serve all targets at once
      _serve_target         look up; on a miss build the program, or wait for who builds it; repeat
        _build              under the lease: compile (`program_compiler.py`), publish

A program reaches a client from the cache only, even in the request that compiled it. So no client
receives a program whose lease was lost, or that was invalidated during its compilation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from frontend_svc.flow.build_leases import BuildLeases
from frontend_svc.flow.events import CacheOutcome, CompileJob, Event, EventStream, ProgramReady
from frontend_svc.flow.failure_ttls import FailureTtls
from frontend_svc.flow.graph_job_client import GraphJobClient
from frontend_svc.flow.import_cache import ImportCache
from frontend_svc.flow.in_flight_builds import InFlightBuilds
from frontend_svc.flow.program_compiler import ActiveRequest, CompiledProgram, ProgramCompiler
from frontend_svc.flow.services import FlowServices
from frontend_svc.flow.shared_decomposition import SharedDecomposition
from frontend_svc.flow.targets import check_targets
from frontend_svc.settings import FrontendSettings
from kernelfarm import spans
from kernelfarm.cache import KernelCache, Lease, PublishStatus
from kernelfarm.cache.preemption import preempt_warm_up
from kernelfarm.end_task import end_task
from kernelfarm.errors import UnavailableError, error_facts, error_from_facts
from kernelfarm.service.logs.logger import get_logger

# Invalidations during a compilation are rare; a cache that stores nothing must not cause endless
# builds of one program.
_MAX_BUILDS = 3


class CompileFlow:
    """Serves compile requests; one object for the whole service."""

    def __init__(
        self, services: FlowServices, graph_jobs: GraphJobClient, settings: FrontendSettings
    ) -> None:
        self._graph_jobs = graph_jobs
        self._settings = settings
        self._failure_ttls = FailureTtls(
            settings.rejection_ttl_s, settings.exhausted_ttl_s, settings.outage_ttl_s
        )
        self._import_cache = ImportCache(graph_jobs, self._failure_ttls)
        self._compiler = ProgramCompiler(services, graph_jobs)
        self._builds = InFlightBuilds(settings.max_compiles)
        self._leases = BuildLeases(self._builds, settings)

    async def run(self, job: CompileJob) -> AsyncIterator[Event]:
        """Serves one request: its stages as they happen, and one program for each target.

        A target that fails does not stop the others: its error is raised after their programs.

        Raises:
            CallerError: the request is wrong; nothing was compiled.
            UnavailableError: a service does not answer.
        """
        check_targets(job.targets)
        events = EventStream()
        stage = events.stage("import")
        imported, summary = await self._import_cache.of(job)
        stage.report(summary.nodes, summary.nodes)
        decomposition = SharedDecomposition(self._graph_jobs, events, imported, options=job.options)
        request = ActiveRequest(job, imported, summary, decomposition, events)
        work = asyncio.create_task(self._serve_all(request))
        try:
            async for event in events.listen():
                yield event
            await work
        finally:
            # This ends the waiting of this client only: builds that it started go on.
            await end_task(work)

    async def _serve_all(self, request: ActiveRequest) -> None:
        served = (self._serve_target(request, target) for target in request.job.targets)
        results = await asyncio.gather(*served, return_exceptions=True)
        request.events.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _serve_target(self, request: ActiveRequest, target: str) -> None:
        """Finds the program, builds it, or waits for the request that builds it."""
        key, tenant_cache = request.summary.keys[target], request.job.tenant_cache
        stage = request.events.stage("lookup", target)
        outcome = CacheOutcome.HIT
        jobs = builds = 0
        while True:
            with spans.span("lookup", target=target):
                lookup = await tenant_cache.programs.find(
                    key, request.job.caller, is_counted=outcome is CacheOutcome.HIT
                )
            if lookup.program is not None:
                stage.report(1, 1, outcome.value)
                _serve(request, ProgramReady(target, lookup.program, outcome, jobs))
                return
            await _raise_known_failure(tenant_cache.cache, key)
            lease = await self._leases.try_to_acquire(request.job, key, lookup.stamp)
            if lease is not None:
                builds += 1
                _check_builds(key, builds)
                outcome = CacheOutcome.MISS
                stage.report(0, 1, outcome.value)
                build = self._build(request, target, lease)
                jobs += await self._builds.run(build, is_warm_up=request.job.is_warm_up)
                continue
            if not request.job.is_warm_up and await preempt_warm_up(tenant_cache.cache, key):
                continue
            # Wait until that request publishes, fails, or loses its lease.
            outcome = CacheOutcome.MERGED if outcome is CacheOutcome.HIT else outcome
            stage.report(0, 1, "another request compiles it")
            await tenant_cache.cache.wait(key, self._settings.lease_ttl_s, seen=lookup.stamp)

    @spans.in_span("build program")
    async def _build(self, request: ActiveRequest, target: str, lease: Lease) -> int:
        """Compiles and publishes a program under its lease; returns the kernel jobs it caused.

        A failure is recorded, so that requests that wait for the program receive it.
        """
        async with self._leases.held(request.job.tenant_cache, lease):
            try:
                program = await self._compiler.compile(request, target)
                await _publish(request, target, lease, program)
            except Exception as error:
                with suppress(UnavailableError):  # the first error is the one to report
                    await request.job.tenant_cache.cache.put_failure(
                        lease.key, error_facts(error), self._failure_ttls.ttl_s(error), lease
                    )
                raise
        return program.codegen_jobs

    async def drain(self, grace_s: float) -> None:
        """Returns when no program is being compiled; cancels builds at the end of the grace."""
        await self._builds.drain(grace_s)


@spans.in_span("publish")
async def _publish(
    request: ActiveRequest, target: str, lease: Lease, program: CompiledProgram
) -> None:
    """Publishes a program; if that is refused, the program is dropped and looked up again."""
    tenant_cache = request.job.tenant_cache
    stage = request.events.stage("publish", target)
    await tenant_cache.cache.put_blobs(program.blobs)
    published = await tenant_cache.cache.publish(lease, [program.variant])
    if published is PublishStatus.MISSING_BLOB:
        raise UnavailableError(
            "the cache evicted stages of a kernel before the program was published; try again"
        )
    if published is not PublishStatus.OK:
        get_logger().warning("publication_refused", key=lease.key.hex(), reason=published.value)
    graph = await request.imported.graph()
    with suppress(UnavailableError):  # the index serves explanations only
        await tenant_cache.index.add(lease.key, graph.key_parts(target))
    stage.finish(1)


async def _raise_known_failure(cache: KernelCache, key: bytes) -> None:
    facts = await cache.get_failure(key)
    if facts is not None:
        raise error_from_facts(facts)


def _serve(request: ActiveRequest, program: ProgramReady) -> None:
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
            f"program {key.hex()[:16]} was compiled {_MAX_BUILDS} times, but each time a dependency"
            " was invalidated during the compilation, or the cache dropped the program; try again"
            " later"
        )
