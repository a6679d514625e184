"""The public API: messages in, messages out; `compile_flow` tells what happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from frontend_svc.blob_reader import read_blobs
from frontend_svc.compile_flow import CompileFlow, Rooms
from frontend_svc.cpu_work import CpuWork
from frontend_svc.downstream import CodegenRoom, OptimizerRoom
from frontend_svc.events import CompileJob, Event, Outcome, ProgramReady, StageDone
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, Space
from kernelfarm.errors import CallerError, MalformedMessageError, NotFoundError
from kernelfarm.ir.graph_ir import ABI_VERSION
from kernelfarm.service.channels import open_channel
from kernelfarm.service.interceptors import current_request_id
from kernelfarm.service.server import Registration, serve
from kernelfarm.targets import all_targets
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import (
    CompileServiceServicer,
    add_CompileServiceServicer_to_server,
)

SERVICE_NAME = "kernelfarm.v1.CompileService"
DIGEST_BYTES = 32
MAX_BLOBS_PER_READ = 4096

_OUTCOMES = {
    Outcome.HIT: api.CACHE_OUTCOME_HIT,
    Outcome.MISS: api.CACHE_OUTCOME_MISS,
    Outcome.MERGED: api.CACHE_OUTCOME_MERGED,
}

Context = grpc.aio.ServicerContext[object, object]


class CompileService(CompileServiceServicer):
    """Answers the public RPCs."""

    def __init__(self, flow: CompileFlow, rooms: Rooms, settings: FrontendSettings) -> None:
        self._flow = flow
        self._rooms = rooms
        self._settings = settings

    async def Compile(
        self, request: api.CompileRequest, context: Context
    ) -> AsyncIterator[api.CompileResponse]:
        """Compiles a graph for its targets, or finds the programs."""
        async for event in self._flow.run(_job(request)):
            yield _response(event)

    async def Lookup(self, request: api.LookupRequest, context: Context) -> api.LookupResponse:
        """Finds a program by key."""
        _check_digest("key", request.key)
        found = await self._rooms.cache.lookup(request.key)
        if found is None:
            raise NotFoundError(f"no program with key {request.key.hex()}; call Compile")
        program = _program(ProgramReady("", found[0], Outcome.HIT, 0))
        return api.LookupResponse(program=program)

    async def ReadBlobs(
        self, request: api.ReadBlobsRequest, context: Context
    ) -> AsyncIterator[api.ReadBlobsResponse]:
        """Streams blobs in chunks."""
        if len(request.sha256) > MAX_BLOBS_PER_READ:
            raise CallerError(
                f"{len(request.sha256)} digests; expected at most {MAX_BLOBS_PER_READ}"
            )
        for digest in request.sha256:
            _check_digest("sha256", digest)
        async for chunk in read_blobs(self._rooms.cache, tuple(request.sha256)):
            yield api.ReadBlobsResponse(
                index=chunk.index,
                offset_bytes=chunk.offset_bytes,
                data=chunk.data,
                is_last=chunk.is_last,
            )

    async def GetCapabilities(
        self, request: api.GetCapabilitiesRequest, context: Context
    ) -> api.GetCapabilitiesResponse:
        """Tells targets, toolchains and limits."""
        reported = {entry.target: entry for entry in await self._rooms.codegen.toolchains()}
        return api.GetCapabilitiesResponse(
            min_abi_version=ABI_VERSION,
            max_abi_version=ABI_VERSION,
            targets=[
                reported.get(name, api.TargetCapability(target=name)) for name in all_targets()
            ],
            max_request_bytes=self._settings.max_message_bytes,
            farm_version=version("kernelfarm"),
        )


async def serve_frontend(settings: FrontendSettings) -> None:
    """Serves until SIGTERM; compilations in progress are finished within the grace."""
    all_targets()  # read now: the first request should not wait for files
    cache = KernelCache(settings.cache_url, namespace=settings.namespace, space=Space.PROGRAMS)
    optimizer = open_channel(settings.optimizer_address)
    codegen = open_channel(settings.codegen_address)
    rooms = Rooms(
        cache,
        OptimizerRoom(optimizer, settings.optimizer_timeout_s),
        CodegenRoom(codegen, settings.codegen_timeout_s),
    )
    cpu = CpuWork(settings.cpu_threads)
    flow = CompileFlow(rooms, cpu, settings)
    service = CompileService(flow, rooms, settings)
    add = partial(add_CompileServiceServicer_to_server, service)
    try:
        await serve(settings.frontend_listen, [Registration(SERVICE_NAME, add)], settings)
        await asyncio.wait_for(flow.drain(), settings.drain_grace_s)
    finally:
        cpu.close()
        await optimizer.close()
        await codegen.close()
        await cache.close()


def _job(request: api.CompileRequest) -> CompileJob:
    if not request.HasField("graph"):
        raise MalformedMessageError("CompileRequest without a graph; expected one")
    return CompileJob(
        request_id=current_request_id(),
        graph=request.graph,
        targets=tuple(request.targets),
        options=_options(request.options),
        priority=request.priority,
    )


def _options(options: api.CompileOptions) -> tuple[tuple[str, str], ...]:
    """Every field of the options as text, sorted: all of them are part of the program key."""
    fields = api.CompileOptions.DESCRIPTOR.fields
    return tuple(sorted((field.name, str(getattr(options, field.name))) for field in fields))


def _response(event: Event) -> api.CompileResponse:
    if isinstance(event, ProgramReady):
        return api.CompileResponse(program=_program(event))
    return api.CompileResponse(stage=_stage(event))


def _stage(event: StageDone) -> api.StageEvent:
    elapsed = Duration()
    elapsed.FromNanoseconds(round(event.elapsed_s * 1e9))
    return api.StageEvent(
        stage=event.stage,
        target=event.target,
        done=event.done,
        total=event.total,
        elapsed=elapsed,
        detail=event.detail,
    )


def _program(ready: ProgramReady) -> api.ProgramResult:
    program = api.ProgramResult.FromString(ready.payload)
    program.outcome = _OUTCOMES[ready.outcome]
    program.codegen_jobs = ready.codegen_jobs
    return program


def _check_digest(field: str, digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise CallerError(f"{field} has {len(digest)} bytes; expected {DIGEST_BYTES}")
