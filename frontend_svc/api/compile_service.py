"""The public API for compilation; `flow/compile_flow.py` serves the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from frontend_svc.api.blob_reader import read_blobs
from frontend_svc.api.byte_budget import ByteBudget
from frontend_svc.api.envelopes import Enveloped
from frontend_svc.api.requests import MAX_BLOBS_PER_READ, caller_of, options_of
from frontend_svc.api.responses import hit_message, program_message
from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.flow.compile_flow import CompileFlow
from frontend_svc.flow.events import CacheOutcome, CompileJob, Event, ProgramReady, StageProgress
from frontend_svc.flow.services import FlowServices
from frontend_svc.settings import FrontendSettings
from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import CallerError, MalformedMessageError, NotFoundError
from kernelfarm.internal.v1.envelopes_pb2 import CompileEnvelope
from kernelfarm.ir.graph_ir import ABI_VERSION
from kernelfarm.service.call_names import current_request_id
from kernelfarm.service.tenants.identity import CACHE_USERS, Identity, Role, current_identity
from kernelfarm.targets import all_targets
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceServicer
from kernelfarm.wire.embedded import field_tag
from kernelfarm.wire.manifest import key_to_proto

SERVICE_NAME = "kernelfarm.v1.CompileService"

_OUTCOMES = {
    CacheOutcome.MISS: api.CACHE_OUTCOME_MISS,
    CacheOutcome.MERGED: api.CACHE_OUTCOME_MERGED,
}

_PROGRAM_OF_EVENT = field_tag(api.CompileResponse, "program")
_PROGRAM_OF_LOOKUP = field_tag(api.LookupResponse, "program")

Context = grpc.aio.ServicerContext[object, object]


class CompileService(CompileServiceServicer):
    """Implements `kernelfarm.v1.CompileService`."""

    def __init__(
        self, flow: CompileFlow, services: FlowServices, settings: FrontendSettings
    ) -> None:
        self._flow = flow
        self._services = services
        self._settings = settings
        self._response_bytes = ByteBudget(settings.max_response_bytes, "blobs")
        keyring = settings.keyring()
        self._public_keys = [key_to_proto(key) for key in keyring.keys] if keyring else []

    async def Compile(  # type: ignore[override] # hits are serialized already
        self, request: Enveloped[CompileEnvelope], context: Context
    ) -> AsyncIterator[api.CompileResponse | bytes]:
        """Compiles a graph for its targets, or finds the programs."""
        identity = _cache_user()
        tenant_cache = self._services.tenant_caches.of(identity.namespace_config)
        may_compile = not identity.roles.isdisjoint((Role.MEMBER, Role.WARMER))
        job = _job(request, tenant_cache, may_compile=may_compile)
        wants_signed = request.fields.wants_signed
        del request  # the job refers to the graph
        async for event in self._flow.run(job):
            yield _response(event, wants_signed=wants_signed)

    async def Lookup(  # type: ignore[override] # as in `Compile`
        self, request: api.LookupRequest, context: Context
    ) -> bytes:
        """Finds a program by its key."""
        tenant_cache = self._services.tenant_caches.of(_cache_user().namespace_config)
        _check_digest("key", request.key)
        caller = caller_of(request.model, request.facts)
        lookup = await tenant_cache.programs.find(request.key, caller)
        if lookup.program is None:
            raise NotFoundError(f"no program with key {request.key.hex()}; call Compile")
        return hit_message(_PROGRAM_OF_LOOKUP, lookup.program, wants_signed=request.wants_signed)

    async def ReadBlobs(
        self, request: api.ReadBlobsRequest, context: Context
    ) -> AsyncIterator[api.ReadBlobsResponse]:
        """Streams blobs in chunks."""
        tenant_cache = self._services.tenant_caches.of(_cache_user().namespace_config)
        if len(request.sha256) > MAX_BLOBS_PER_READ:
            raise CallerError(
                f"{len(request.sha256)} digests; expected at most {MAX_BLOBS_PER_READ}"
            )
        for digest in request.sha256:
            _check_digest("sha256", digest)
        digests = tuple(request.sha256)
        async with aclosing(
            read_blobs(tenant_cache.programs, digests, self._response_bytes)
        ) as chunks:
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
        """Returns targets, toolchains and limits."""
        reported = {entry.target: entry for entry in await self._services.codegen.toolchains()}
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
            shared_namespace=self._services.tenant_caches.shared_namespace
            if self._has_tenants
            else "",
            needs_credentials=self._has_tenants,
            is_encrypted=b"ssl" in context.auth_context().get("transport_security_type", ()),
        )

    @property
    def _has_tenants(self) -> bool:
        return self._settings.tenants_file is not None

    def _namespace(self) -> str:
        """The caller's namespace; empty if the farm has tenants and the caller is none of them."""
        identity = current_identity()
        if self._has_tenants and not identity.tenant:
            return ""
        return self._services.tenant_caches.of(identity.namespace_config).namespace


def _cache_user() -> Identity:
    """The identity of a caller that may use the cache.

    Raises:
        PermissionDeniedError: the caller may not use the cache.
    """
    identity = current_identity()
    identity.require(*CACHE_USERS)
    return identity


def _job(
    request: Enveloped[CompileEnvelope], tenant_cache: TenantCache, *, may_compile: bool
) -> CompileJob:
    if request.graph is None:
        raise MalformedMessageError("CompileRequest without a graph; expected one")
    fields = request.fields
    return CompileJob(
        request_id=current_request_id(),
        graph=request.graph,
        targets=tuple(fields.targets),
        options=options_of(fields.options),
        priority=fields.priority,
        tenant_cache=tenant_cache,
        caller=caller_of(fields.model, fields.facts),
        may_compile=may_compile,
    )


def _response(event: Event, *, wants_signed: bool) -> api.CompileResponse | bytes:
    if not isinstance(event, ProgramReady):
        return api.CompileResponse(stage=_stage(event))
    if event.outcome is CacheOutcome.HIT:
        return hit_message(_PROGRAM_OF_EVENT, event.selected, wants_signed=wants_signed)
    result = api.ProgramResult(outcome=_OUTCOMES[event.outcome], codegen_jobs=event.codegen_jobs)
    return program_message(_PROGRAM_OF_EVENT, event.selected, result, wants_signed=wants_signed)


def _stage(event: StageProgress) -> api.StageEvent:
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
