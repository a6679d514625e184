"""The public API for traces; the farm does not read the entry of a trace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import grpc.aio

from frontend_svc.api.blob_reader import read_blobs
from frontend_svc.api.byte_budget import ByteBudget
from frontend_svc.api.requests import MAX_BLOBS_PER_READ, caller_of
from frontend_svc.api.responses import hit_message
from frontend_svc.cache.explain_miss import REASONS, MissExplanation, explain_miss
from frontend_svc.cache.tenant_caches import TenantCache, TenantCaches
from frontend_svc.cache.tiered_programs import Caller, SelectedVariant
from frontend_svc.cache.traces import trace_of
from frontend_svc.flow.admission import AdmissionControl
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import LookupResult, StoredVariant
from kernelfarm.cache.trace_cache import PutTraceStatus
from kernelfarm.digest import DIGEST_BYTES, trace_digest
from kernelfarm.errors import CallerError, MalformedMessageError
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.service.tenants.identity import CACHE_USERS, Role, current_identity
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as compile_api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as api
from kernelfarm.v1.trace_service_pb2_grpc import TraceServiceServicer
from kernelfarm.wire.embedded import field_tag
from kernelfarm.wire.manifest import facts_from_proto

TRACE_SERVICE = "kernelfarm.v1.TraceService"

PUBLISHERS = (Role.MEMBER, Role.WARMER)
"""The roles that may publish traces."""

CLAIMANT_BYTES = 16
MAX_CLAIM_MS = 600_000

_PROGRAM_OF_PART = field_tag(api.LookupTraceResponse, "program")
_OUTCOMES = {
    PutTraceStatus.OK: api.PUT_TRACE_OUTCOME_STORED,
    PutTraceStatus.PRESENT: api.PUT_TRACE_OUTCOME_PRESENT,
    PutTraceStatus.STALE_INC: api.PUT_TRACE_OUTCOME_STALE,
    PutTraceStatus.STALE_EPOCH: api.PUT_TRACE_OUTCOME_STALE,
}

Context = grpc.aio.ServicerContext[object, object]


class TraceService(TraceServiceServicer):
    """Implements `kernelfarm.v1.TraceService`."""

    def __init__(
        self, tenant_caches: TenantCaches, admission: AdmissionControl, settings: FrontendSettings
    ) -> None:
        self._tenant_caches = tenant_caches
        self._admission = admission
        self._settings = settings
        self._response_bytes = ByteBudget(settings.max_response_bytes, "blobs")

    async def LookupTrace(  # type: ignore[override] # hits are serialized already
        self, request: api.LookupTraceRequest, context: Context
    ) -> AsyncIterator[api.LookupTraceResponse | bytes]:
        """Finds a trace, its program, and the binaries of the program."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        tenant_cache = self._tenant_caches.of(identity.namespace_config)
        _check(request)
        caller = caller_of(request.model, request.facts)
        await tenant_cache.programs.models.record(caller.tags)
        found = await tenant_cache.traces.find(
            request.digest, caller.tags, is_counted=not request.is_repeated
        )
        if not found.is_hit:
            miss = _miss(found)
            if request.HasField("claim"):
                may_publish = not identity.roles.isdisjoint(PUBLISHERS)
                claim_ms = request.claim.duration_ms if may_publish else 0
                claimed = await tenant_cache.traces.find_or_claim(
                    request.digest, caller.tags, request.claim.claimant, claim_ms
                )
                found = claimed.found or found
                miss.in_flight_ms = claimed.in_flight_ms
        if not found.is_hit:
            yield api.LookupTraceResponse(miss=miss)
            return
        stored = found.variants[0]
        yield api.LookupTraceResponse(
            trace=manifest_pb2.SignedVariant(
                manifest=manifest_pb2.Manifest.FromString(stored.manifest_bytes),
                content=stored.content,
            )
        )
        if request.wants_program:
            held = frozenset(request.present_blobs)
            async with aclosing(
                _program(tenant_cache, stored, caller, held, self._response_bytes)
            ) as responses:
                async for response in responses:
                    yield response

    async def PutTrace(
        self, request: api.PutTraceRequest, context: Context
    ) -> api.PutTraceResponse:
        """Stores a trace that its caller signed."""
        identity = current_identity()
        identity.require(*PUBLISHERS)
        tenant_cache = self._tenant_caches.of(identity.namespace_config)
        self._check_size("a trace", request.ByteSize())
        if not request.trace.HasField("manifest"):
            raise MalformedMessageError("a trace without its manifest; expected one")
        await self._admission.check_quota(tenant_cache)
        manifest = request.trace.manifest.SerializeToString(deterministic=True)
        stored = StoredVariant(manifest, request.trace.content)
        await tenant_cache.programs.models.record(request.trace.manifest.tags)
        outcome = await tenant_cache.traces.put(stored, request.parts, tenant_cache.tags)
        return api.PutTraceResponse(outcome=_OUTCOMES[outcome])

    async def ExplainTraceMiss(
        self, request: api.ExplainTraceMissRequest, context: Context
    ) -> api.ExplainTraceMissResponse:
        """Explains why a trace is not found; if it is found, why its program is not."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        tenant_cache = self._tenant_caches.of(identity.namespace_config)
        self._check_size("a request", request.ByteSize())
        parts = dict(request.parts) or None
        digest = request.digest if parts is None else trace_digest(parts)
        _check_digest(digest)
        caller = caller_of(request.model, manifest_pb2.CallerFacts())
        explained = await tenant_cache.traces.explain(digest, parts, caller)
        response = api.ExplainTraceMissResponse(trace=explained.to_proto())
        found = await tenant_cache.traces.find(digest, caller.tags, is_counted=False)
        if found.is_hit:
            stored = found.variants[0]
            response.manifest.ParseFromString(stored.manifest_bytes)
            program = await _explained_program(tenant_cache, trace_of(stored.content), caller)
            response.program.CopyFrom(program.to_proto())
        return response

    def _check_size(self, what: str, size_bytes: int) -> None:
        most = self._settings.max_trace_bytes
        if size_bytes > most:
            raise CallerError(f"{what} of {size_bytes} bytes; this farm accepts at most {most}")


def _program_caller(trace: api.Trace, caller: Caller) -> Caller:
    """The caller as it looks up the program of a trace."""
    # The trace states the facts of its inputs, the caller those of its environment.
    inputs = facts_from_proto(trace.facts).inputs
    return Caller(caller.tags, CallerFacts(inputs=inputs, environment=caller.facts.environment))


async def _explained_program(
    tenant_cache: TenantCache, trace: api.Trace, caller: Caller
) -> MissExplanation:
    """Whether the program of a trace is found, in this namespace or the shared one."""
    key, program_caller = trace.program_key, _program_caller(trace, caller)
    lookup = await tenant_cache.programs.find(key, program_caller, is_counted=False)
    if lookup.program is not None:
        return MissExplanation("found", key, key, ())
    return await explain_miss(tenant_cache.cache, tenant_cache.index, key, None, program_caller)


async def _program(
    tenant_cache: TenantCache,
    stored: StoredVariant,
    caller: Caller,
    held: frozenset[bytes],
    budget: ByteBudget,
) -> AsyncGenerator[api.LookupTraceResponse | bytes]:
    """The program of a trace, and its binaries."""
    trace = trace_of(stored.content)
    lookup = await tenant_cache.programs.find(trace.program_key, _program_caller(trace, caller))
    if lookup.program is None:
        yield api.LookupTraceResponse(
            miss=api.TraceMiss(is_program=True, reason=cache_api.MISS_REASON_KEY)
        )
        return
    yield hit_message(_PROGRAM_OF_PART, lookup.program, wants_signed=True)
    digests = [digest for digest in _binaries(lookup.program) if digest not in held]
    async with aclosing(read_blobs(tenant_cache.programs, tuple(digests), budget)) as chunks:
        async for chunk in chunks:
            sha256 = digests[chunk.index]
            yield api.LookupTraceResponse(
                blob=api.BlobChunk(sha256=sha256, data=chunk.data, is_last=chunk.is_last)
            )


def _binaries(found: SelectedVariant) -> list[bytes]:
    """The digests of the binaries that a client loads to run a program, each once."""
    content = compile_api.ProgramResult.FromString(found.variant.content)
    digests = (
        stage.blob.sha256
        for artifact in content.artifacts
        for stage in artifact.stages
        if stage.name == artifact.binary_stage
    )
    return list(dict.fromkeys(digests))


def _check(request: api.LookupTraceRequest) -> None:
    if len(request.present_blobs) > MAX_BLOBS_PER_READ:
        raise CallerError(
            f"{len(request.present_blobs)} present blobs; expected at most {MAX_BLOBS_PER_READ}"
        )
    for digest in (request.digest, *request.present_blobs):
        _check_digest(digest)
    if not request.HasField("claim"):
        return
    claim = request.claim
    if len(claim.claimant) != CLAIMANT_BYTES or claim.duration_ms > MAX_CLAIM_MS:
        raise CallerError(
            f"a claim for {claim.duration_ms} ms by a claimant of {len(claim.claimant)} bytes;"
            f" expected at most {MAX_CLAIM_MS} ms and {CLAIMANT_BYTES} bytes"
        )


def _check_digest(digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise CallerError(f"a digest of {len(digest)} bytes; expected {DIGEST_BYTES}")


def _miss(found: LookupResult) -> api.TraceMiss:
    return api.TraceMiss(
        reason=REASONS[found.reason],
        detail=found.detail,
        epoch=found.epoch,
        incarnation=found.incarnation,
    )
