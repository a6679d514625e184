"""The public API: messages in, messages out; `compile_flow` tells what happens between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from frontend_svc.api.blob_reader import read_blobs
from frontend_svc.api.byte_budget import ByteBudget
from frontend_svc.api.envelopes import Enveloped
from frontend_svc.api.requests import DIGEST_BYTES, MAX_BLOBS_PER_READ, caller_of, options_of
from frontend_svc.api.responses import hit_within, program_within
from frontend_svc.cache.tenant_caches import Part
from frontend_svc.flow.compile_flow import CompileFlow, Rooms
from frontend_svc.flow.events import CompileJob, Event, Outcome, ProgramReady, StageDone
from frontend_svc.settings import FrontendSettings
from kernelfarm.errors import CallerError, MalformedMessageError, NotFoundError
from kernelfarm.internal.v1.envelopes_pb2 import CompileEnvelope
from kernelfarm.ir.graph_ir import ABI_VERSION
from kernelfarm.service.interceptors import current_request_id
from kernelfarm.service.tenants.identity import CACHE_USERS, Identity, Role, current_identity
from kernelfarm.targets import all_targets
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceServicer
from kernelfarm.wire.embedded import field_number
from kernelfarm.wire.manifest import key_to_proto

SERVICE_NAME = "kernelfarm.v1.CompileService"

_OUTCOMES = {
    Outcome.MISS: api.CACHE_OUTCOME_MISS,
    Outcome.MERGED: api.CACHE_OUTCOME_MERGED,
}

_PROGRAM_OF_EVENT = field_number(api.CompileResponse, "program")
_PROGRAM_OF_ANSWER = field_number(api.LookupResponse, "program")

Context = grpc.aio.ServicerContext[object, object]


class CompileService(CompileServiceServicer):
    """Answers the public RPCs."""

    def __init__(self, flow: CompileFlow, rooms: Rooms, settings: FrontendSettings) -> None:
        self._flow = flow
        self._rooms = rooms
        self._settings = settings
        self._answers = ByteBudget(settings.max_answers_bytes, "blobs")
        keyring = settings.keyring()
        self._public_keys = [key_to_proto(key) for key in keyring.keys] if keyring else []

    async def Compile(  # type: ignore[override] # hits are ready bytes, which the edge passes
        self, request: Enveloped[CompileEnvelope], context: Context
    ) -> AsyncIterator[api.CompileResponse | bytes]:
        """Compiles a graph for its targets, or finds the programs."""
        identity = _cache_user()
        part = self._rooms.parts.of(identity.partition)
        may_compile = not identity.roles.isdisjoint((Role.MEMBER, Role.WARMER))
        job = _job(request, part, may_compile=may_compile)
        wants_signed = request.fields.wants_signed
        del request  # the job has what is needed
        async for event in self._flow.run(job):
            yield _response(event, wants_signed=wants_signed)

    async def Lookup(  # type: ignore[override] # as in `Compile`
        self, request: api.LookupRequest, context: Context
    ) -> bytes:
        """Finds a program by key."""
        part = self._rooms.parts.of(_cache_user().partition)
        _check_digest("key", request.key)
        caller = caller_of(request.model, request.facts)
        looked = await part.programs.find(request.key, caller)
        if looked.program is None:
            raise NotFoundError(f"no program with key {request.key.hex()}; call Compile")
        return hit_within(_PROGRAM_OF_ANSWER, looked.program, wants_signed=request.wants_signed)

    async def ReadBlobs(
        self, request: api.ReadBlobsRequest, context: Context
    ) -> AsyncIterator[api.ReadBlobsResponse]:
        """Streams blobs in chunks."""
        part = self._rooms.parts.of(_cache_user().partition)
        if len(request.sha256) > MAX_BLOBS_PER_READ:
            raise CallerError(
                f"{len(request.sha256)} digests; expected at most {MAX_BLOBS_PER_READ}"
            )
        for digest in request.sha256:
            _check_digest("sha256", digest)
        digests = tuple(request.sha256)
        async with aclosing(read_blobs(part.programs, digests, self._answers)) as chunks:
            async for chunk in chunks:
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
            is_signed=self._settings.is_signed,
            public_keys=self._public_keys,
            namespace=self._namespace(),
            shared_namespace=self._rooms.parts.shared_namespace if self._has_tenants else "",
            needs_credentials=self._has_tenants,
            is_encrypted=b"ssl" in context.auth_context().get("transport_security_type", ()),
        )

    @property
    def _has_tenants(self) -> bool:
        return self._settings.tenants_file is not None

    def _namespace(self) -> str:
        """The caller's namespace; empty for nobody where there are tenants."""
        identity = current_identity()
        if self._has_tenants and not identity.tenant:
            return ""
        return self._rooms.parts.of(identity.partition).namespace


def _cache_user() -> Identity:
    """The caller, who may use the cache.

    Raises:
        PermissionDeniedError: it may not.
    """
    identity = current_identity()
    identity.require(*CACHE_USERS)
    return identity


def _job(request: Enveloped[CompileEnvelope], part: Part, *, may_compile: bool) -> CompileJob:
    if request.graph is None:
        raise MalformedMessageError("CompileRequest without a graph; expected one")
    fields = request.fields
    return CompileJob(
        request_id=current_request_id(),
        graph=request.graph,
        targets=tuple(fields.targets),
        options=options_of(fields.options),
        priority=fields.priority,
        part=part,
        caller=caller_of(fields.model, fields.facts),
        may_compile=may_compile,
    )


def _response(event: Event, *, wants_signed: bool) -> api.CompileResponse | bytes:
    if not isinstance(event, ProgramReady):
        return api.CompileResponse(stage=_stage(event))
    if event.outcome is Outcome.HIT:
        return hit_within(_PROGRAM_OF_EVENT, event.found, wants_signed=wants_signed)
    told = api.ProgramResult(outcome=_OUTCOMES[event.outcome], codegen_jobs=event.codegen_jobs)
    return program_within(_PROGRAM_OF_EVENT, event.found, told, wants_signed=wants_signed)


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


def _check_digest(field: str, digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise CallerError(f"{field} has {len(digest)} bytes; expected {DIGEST_BYTES}")
