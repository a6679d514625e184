"""The story of one request, top to bottom. Read this file first.

    run                     check the request, decode graph, program keys; serve all targets at once
      _serve_target         look-up -> hit; else lead the compilation, or wait for who leads it
        _lead               hold the lease, compile, publish for all who wait
          _compile          Prims (once for all targets) -> optimizer -> code generators -> result

Only this file decides in which order rooms are asked; `downstream` knows how to ask them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from frontend_svc.cpu_work import CpuWork
from frontend_svc.downstream import CodegenRoom, OptimizedProgram, OptimizerRoom
from frontend_svc.events import CompileJob, Event, EventStream, Outcome, ProgramReady
from frontend_svc.lease_keeper import kept_alive
from frontend_svc.lowering import Lowering, import_graph
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, Lease, Published, Variant
from kernelfarm.digest import program_keys
from kernelfarm.errors import (
    CallerError,
    FarmFullError,
    KernelfarmError,
    UnavailableError,
    error_facts,
    error_from_facts,
)
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.service.logs import get_logger
from kernelfarm.targets import target_facts
from kernelfarm.wire.program_result import KernelArtifacts, ProgramResult, program_result


@dataclass(frozen=True, slots=True)
class Rooms:
    """Whom the flow asks."""

    cache: KernelCache
    optimizer: OptimizerRoom
    codegen: CodegenRoom


@dataclass(frozen=True, slots=True)
class _Request:
    """A decoded request: program keys by target, and what the targets share."""

    job: CompileJob
    keys: dict[str, bytes]
    lowering: Lowering
    events: EventStream


class CompileFlow:
    """Serves compile requests; one object for the whole service."""

    def __init__(self, rooms: Rooms, cpu: CpuWork, settings: FrontendSettings) -> None:
        self._rooms = rooms
        self._cpu = cpu
        self._settings = settings
        self._led: set[asyncio.Task[ProgramReady]] = set()

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
        graph, keys = await self._cpu.run(_import, job, self._settings.max_graph_nodes)
        stage.tell(len(graph.nodes), len(graph.nodes))
        request = _Request(job, keys, Lowering(graph, self._cpu, events), events)
        work = asyncio.create_task(self._serve_all(request))
        try:
            async for event in events.listen():
                yield event
            await work
        finally:
            # Only this client's interest ends here: programs that it leads are compiled on.
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _serve_all(self, request: _Request) -> None:
        served = (self._serve_target(request, target) for target in request.job.targets)
        results = await asyncio.gather(*served, return_exceptions=True)
        request.events.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _serve_target(self, request: _Request, target: str) -> None:
        """Finds the program, makes it, or waits for whoever makes it already."""
        cache = self._rooms.cache
        key = request.keys[target]
        stage = request.events.stage("lookup", target)
        outcome = Outcome.HIT
        while True:
            found = await cache.lookup(key, is_counted=outcome is Outcome.HIT)
            if found is not None:
                stage.tell(1, 1, outcome.value)
                _serve(request, ProgramReady(target, found[0], outcome, 0))
                return
            await self._raise_known_failure(key)
            lease = await self._try_to_lead(key)
            if lease is not None:
                stage.tell(0, 1, Outcome.MISS.value)
                _serve(request, await self._led_by_us(request, target, lease))
                return
            # Woken by the leader's publication, its failure, or the end of its lease.
            outcome = Outcome.MERGED
            stage.tell(0, 1, "another request compiles it")
            await cache.wait(key, self._settings.lease_ttl_s)

    async def _try_to_lead(self, key: bytes) -> Lease | None:
        """The lease on a missing program; None if another request has it, or just published."""
        if len(self._led) >= self._settings.max_compiles:
            raise FarmFullError(
                f"{len(self._led)} programs are being compiled, the limit of this frontend"
            )
        return await self._rooms.cache.acquire(key, uuid.uuid4().hex, self._settings.lease_ttl_s)

    async def _led_by_us(self, request: _Request, target: str, lease: Lease) -> ProgramReady:
        """Compiles in a task of its own: others may wait for it after this client has left."""
        task = asyncio.create_task(self._lead(request, target, lease))
        self._led.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def _lead(self, request: _Request, target: str, lease: Lease) -> ProgramReady:
        """Compiles under the lease and publishes; a failure too, for those who wait."""
        cache = self._rooms.cache
        try:
            async with kept_alive(cache, lease):
                result, jobs = await self._compile(request, target, lease.key)
                stage = request.events.stage("publish", target)
                await self._publish(lease, result)
                stage.tell(1, 1)
                return ProgramReady(target, result.payload, Outcome.MISS, jobs)
        except Exception as error:
            with suppress(UnavailableError):  # the first error is the one to tell
                facts = error_facts(error)
                await cache.put_failure(lease.key, facts, self._failure_ttl_s(error), lease)
            raise
        finally:
            with suppress(UnavailableError):  # then it lapses
                await cache.release(lease)

    async def _publish(self, lease: Lease, result: ProgramResult) -> None:
        cache = self._rooms.cache
        await cache.put_blobs(result.blobs)
        published = await cache.publish(lease, [Variant(result.payload, result.digests)])
        if published is Published.MISSING_BLOB:
            raise UnavailableError("the cache evicted a kernel's stages before their program")
        if published is Published.FENCED:
            # Another request took the program over: ours is as good, but only theirs is stored.
            get_logger().warning("publication_fenced", key=lease.key.hex())

    async def _compile(
        self, request: _Request, target: str, key: bytes
    ) -> tuple[ProgramResult, int]:
        """Asks the rooms in order; returns the program and the kernel jobs that it took."""
        lowered = await request.lowering.result()
        stage = request.events.stage("optimize", target)
        optimized = await self._rooms.optimizer.optimize(
            request.job.request_id, lowered.message, target
        )
        stage.tell(len(optimized.kernels), len(optimized.kernels))
        artifacts, jobs = await self._build_kernels(request, target, optimized)
        result = await self._cpu.run(
            program_result, key, optimized.plan, artifacts, lowered.texts_with(optimized.texts)
        )
        return result, jobs

    async def _build_kernels(
        self, request: _Request, target: str, optimized: OptimizedProgram
    ) -> tuple[list[KernelArtifacts], int]:
        """Every kernel's artifacts, in the plan's order."""
        total = len(optimized.kernels)
        built: dict[int, KernelArtifacts] = {}
        jobs = 0
        stage = request.events.stage("codegen", target)
        stage.tell(0, total)
        async for kernel in self._rooms.codegen.build(
            request.job.request_id, optimized.kernels, target, request.job.priority
        ):
            built[kernel.index] = kernel.artifacts
            jobs += kernel.caused_job
            stage.tell(len(built), total, optimized.kernels[kernel.index].name)
        return [built[index] for index in range(total)], jobs

    async def _raise_known_failure(self, key: bytes) -> None:
        facts = await self._rooms.cache.get_failure(key)
        if facts is not None:
            raise error_from_facts(facts)

    def _failure_ttl_s(self, error: Exception) -> float:
        if isinstance(error, CallerError):
            return self._settings.rejection_ttl_s
        return self._settings.outage_ttl_s

    def _forget(self, task: asyncio.Task[ProgramReady]) -> None:
        self._led.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), KernelfarmError):
            # Its client may have left: the log is then the only place that tells.
            get_logger().warning("program_failed", reason=error.reason, message=str(error))

    async def drain(self) -> None:
        """Returns when every program that is being compiled is published or has failed."""
        await asyncio.gather(*self._led, return_exceptions=True)


def _import(job: CompileJob, max_nodes: int) -> tuple[Graph, dict[str, bytes]]:
    graph = import_graph(job.graph, max_nodes)
    return graph, program_keys(graph, job.targets, job.options)


def _serve(request: _Request, program: ProgramReady) -> None:
    request.events.tell(program)
    get_logger().info(
        "program_served",
        target=program.target,
        outcome=program.outcome.value,
        codegen_jobs=program.codegen_jobs,
        payload_bytes=len(program.payload),
    )


def check_targets(targets: tuple[str, ...]) -> None:
    """Checks the targets of a request before any work is done for it.

    Raises:
        CallerError: none, or one twice.
        UnknownTargetError: one that this farm does not know.
    """
    if not targets:
        raise CallerError("no target: expected at least one descriptor such as 'cpu:x86-64-v3'")
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise CallerError(f"target {twice[0]!r} is asked for twice; expected each at most once")
    for target in targets:
        target_facts(target)
