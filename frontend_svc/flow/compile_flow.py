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

from frontend_svc.cache.tenant_caches import Parts
from frontend_svc.flow.admission import Gate
from frontend_svc.flow.downstream import (
    BuiltArtifacts,
    CodegenRoom,
    KernelWork,
    OptimizedProgram,
    OptimizerRoom,
)
from frontend_svc.flow.events import CompileJob, Event, EventStream, Outcome, ProgramReady
from frontend_svc.flow.failure_ttls import FailureTimes
from frontend_svc.flow.graph_job_client import CpuWork
from frontend_svc.flow.import_cache import Import, Imports, KnownGraph
from frontend_svc.flow.lease_renewal import kept_alive
from frontend_svc.flow.program_tags import program_tags
from frontend_svc.flow.shared_decomposition import Lowering
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, Lease, Published, Variant
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
_MAX_LEADS = 3
_MAX_ASKED = 3

MAX_TARGETS = 64
"""Targets of one request; there are fewer chips."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """Whom the flow asks."""

    cache: KernelCache
    parts: Parts
    optimizer: OptimizerRoom
    codegen: CodegenRoom


@dataclass(frozen=True, slots=True)
class _Request:
    """A decoded request: program keys by target, and what the targets share."""

    job: CompileJob
    imported: Import
    known: KnownGraph
    lowering: Lowering
    events: EventStream


class CompileFlow:
    """Serves compile requests; one object for the whole service."""

    def __init__(self, rooms: Rooms, cpu: CpuWork, settings: FrontendSettings) -> None:
        self._rooms = rooms
        self._cpu = cpu
        self._settings = settings
        self._times = FailureTimes(
            settings.rejection_ttl_s, settings.exhausted_ttl_s, settings.outage_ttl_s
        )
        self._imports = Imports(cpu, self._times)
        self._gate = Gate(settings.max_compiles_of_a_tenant, settings.lease_ttl_s)
        self._led: set[asyncio.Task[int]] = set()

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
        imported, known = await self._imports.of(job)
        stage.tell(known.nodes, known.nodes)
        lowering = Lowering(self._cpu, events, imported, fallback_random=job.fallback_random)
        request = _Request(job, imported, known, lowering, events)
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
        key, part = request.known.keys[target], request.job.part
        stage = request.events.stage("lookup", target)
        outcome = Outcome.HIT
        jobs = leads = 0
        while True:
            looked = await part.programs.find(
                key, request.job.caller, is_counted=outcome is Outcome.HIT
            )
            if looked.program is not None:
                stage.tell(1, 1, outcome.value)
                _serve(request, ProgramReady(target, looked.program, outcome, jobs))
                return
            await _raise_known_failure(part.cache, key)
            lease = await self._try_to_lead(request.job, key, looked.stamp)
            if lease is not None:
                leads += 1
                _check_leads(key, leads)
                outcome = Outcome.MISS
                stage.tell(0, 1, outcome.value)
                jobs += await self._led_by_us(request, target, lease)
                continue
            # Woken by the leader's publication, its failure, or the end of its lease.
            outcome = Outcome.MERGED if outcome is Outcome.HIT else outcome
            stage.tell(0, 1, "another request compiles it")
            await part.cache.wait(key, self._settings.lease_ttl_s, seen=looked.stamp)

    async def _try_to_lead(self, job: CompileJob, key: bytes, seen: str) -> Lease | None:
        """The lease on a missing program; None if another request has it, or just published.

        Its owner is the name under which the compilation flies.

        Raises:
            PermissionDeniedError, QuotaError: the caller may not compile, or not so much.
            FarmFullError: too many programs are being compiled here; that costs no attempt.
            InternalError: earlier attempts ended their frontends; this is told for a while.
        """
        part, flight = job.part, uuid.uuid4().hex
        try:
            await self._begin(job, flight)
        except (FarmFullError, QuotaError):
            if await part.cache.is_being_made(key, seen=seen):
                return None  # who waits for another one's compilation takes no place
            raise
        lease = None
        try:
            lease = await part.cache.acquire(
                key, flight, self._settings.lease_ttl_s, seen=seen, tags=job.caller.tags
            )
            if lease is not None and lease.attempts >= self._settings.max_attempts:
                await self._quarantine(part.cache, lease)
        except Exception:
            await self._gate.leave(part, flight)
            raise
        if lease is None:
            await self._gate.leave(part, flight)
        return lease

    async def _begin(self, job: CompileJob, flight: str) -> None:
        if len(self._led) >= self._settings.max_compiles:
            raise FarmFullError(
                f"{len(self._led)} programs are being compiled, the limit of this frontend"
            )
        await self._gate.enter(job.part, flight, may_compile=job.may_compile)

    async def _quarantine(self, cache: KernelCache, lease: Lease) -> None:
        ttl_s = self._settings.quarantine_ttl_s
        error = InternalError(
            f"program {lease.key.hex()[:16]} ended its frontend {lease.attempts} times while it was"
            f" compiled; it is refused for {ttl_s:.0f} s. Report it with the graph"
        )
        await cache.put_failure(lease.key, error_facts(error), ttl_s, lease)
        await cache.count("quarantined")
        raise error

    async def _led_by_us(self, request: _Request, target: str, lease: Lease) -> int:
        """Compiles in a task of its own: others may wait for it after this client has left."""
        task = asyncio.create_task(self._lead(request, target, lease))
        self._led.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def _lead(self, request: _Request, target: str, lease: Lease) -> int:
        """Compiles under the lease and publishes; a failure too, for those who wait.

        The kernel jobs that it took.
        """
        part = request.job.part
        cache = part.cache
        flies = partial(self._gate.keep, part, lease.owner)
        try:
            async with kept_alive(cache, lease, flies):
                variant, blobs, jobs = await self._compile(request, target, lease.key)
                stage = request.events.stage("publish", target)
                await _publish(cache, lease, variant, blobs)
                await self._remember(request, target, lease.key)
                stage.tell(1, 1)
                return jobs
        except Exception as error:
            with suppress(UnavailableError):  # the first error is the one to tell
                facts = error_facts(error)
                await cache.put_failure(lease.key, facts, self._times.ttl_s(error), lease)
            raise
        finally:
            with suppress(UnavailableError):  # then it lapses
                await cache.release(lease)
            await self._gate.leave(part, lease.owner)

    async def _remember(self, request: _Request, target: str, key: bytes) -> None:
        """Notes the key's parts, by which later misses are explained."""
        parts = await self._cpu.parts(request.imported.source, target, request.job.options)
        with suppress(UnavailableError):  # an explanation is not worth a failure
            await request.job.part.index.add(key, parts)

    async def _compile(
        self, request: _Request, target: str, key: bytes
    ) -> tuple[Variant, dict[bytes, bytes], int]:
        """Asks the rooms in order; the program, its blobs, and the kernel jobs that it took."""
        job = request.job
        lowered = await request.lowering.result(target_facts(target))
        stage = request.events.stage("optimize", target)
        optimized = await self._rooms.optimizer.optimize(
            job.request_id, lowered.message, target, job.part.partition.tenant
        )
        stage.tell(len(optimized.kernels), len(optimized.kernels))
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
        tags = (*tags, *job.caller.tags, *job.part.tags)
        variant = Variant(result.payload, result.named, tags=tags)
        return variant, result.blobs, sum(kernel.caused_job for kernel in kernels)

    async def _build_kernels(
        self, request: _Request, target: str, optimized: OptimizedProgram
    ) -> tuple[BuiltArtifacts, ...]:
        """Every kernel's artifacts, in the plan's order; none that was invalidated by now.

        What is invalidated from now on is noticed when the program is published.

        Raises:
            UnavailableError: the code generators give what was invalidated again and again.
        """
        for _ in range(_MAX_ASKED):
            built = await self._given_kernels(request, target, optimized)
            given = (manifest for kernel in built for manifest in kernel.manifests)
            if await request.job.part.cache.epochs.is_current(given):
                return built
            get_logger().warning("kernels_outdated", target=target)
        raise UnavailableError(
            f"the code generators gave kernels {_MAX_ASKED} times that were invalidated meanwhile"
        )

    async def _given_kernels(
        self, request: _Request, target: str, optimized: OptimizedProgram
    ) -> tuple[BuiltArtifacts, ...]:
        """What the code generators' room answers."""
        total = len(optimized.kernels)
        built: dict[int, BuiltArtifacts] = {}
        stage = request.events.stage("codegen", target)
        stage.tell(0, total)
        job = request.job
        tenant = job.part.partition.tenant
        keys = await self._cpu.kernel_keys(optimized.content, target, tenant)
        work = KernelWork(
            job.request_id,
            optimized.kernels,
            keys,
            target,
            job.priority,
            job.part.namespace,
            job.part.kernel_salt,
            self._rooms.parts.shared_namespace,
        )
        async for kernel in self._rooms.codegen.build(work):
            built[kernel.index] = kernel
            stage.tell(len(built), total, optimized.kernels[kernel.index].name)
        return tuple(built[index] for index in range(total))

    def _forget(self, task: asyncio.Task[int]) -> None:
        self._led.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), KernelfarmError):
            # Its client may have left: the log is then the only place that tells.
            get_logger().warning("program_failed", reason=error.reason, message=str(error))

    async def drain(self, grace_s: float) -> None:
        """Returns when every program that is being compiled is published or has failed.

        What is not by the end of the grace is ended: who waits for it asks another frontend.
        """
        if not self._led:
            return
        _, late = await asyncio.wait(self._led, timeout=grace_s)
        if late:
            get_logger().warning("programs_ended", programs=len(late), grace_s=grace_s)
        await asyncio.gather(*(end_task(task) for task in late))


async def _publish(
    cache: KernelCache, lease: Lease, variant: Variant, blobs: dict[bytes, bytes]
) -> None:
    """Publishes a program; what may not be published is dropped, and its client looks again."""
    await cache.put_blobs(blobs)
    published = await cache.publish(lease, [variant])
    if published is Published.MISSING_BLOB:
        raise UnavailableError("the cache evicted a kernel's stages before their program")
    if published is not Published.OK:
        get_logger().warning("publication_refused", key=lease.key.hex(), reason=published.value)


async def _raise_known_failure(cache: KernelCache, key: bytes) -> None:
    facts = await cache.get_failure(key)
    if facts is not None:
        raise error_from_facts(facts)


def _serve(request: _Request, program: ProgramReady) -> None:
    request.events.tell(program)
    log = get_logger()
    tell = log.debug if program.outcome is Outcome.HIT else log.info
    tell(
        "program_served",
        target=program.target,
        outcome=program.outcome.value,
        codegen_jobs=program.codegen_jobs,
        tier=program.found.tier.value,
        payload_bytes=len(program.found.variant.content),
    )


def _check_leads(key: bytes, leads: int) -> None:
    if leads > _MAX_LEADS:
        raise UnavailableError(
            f"program {key.hex()[:16]} was compiled {_MAX_LEADS} times, and each time something was"
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
