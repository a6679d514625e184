"""The public API for traces: messages in, messages out; the farm looks at no trace's entry."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import grpc.aio

from frontend_svc.api.blob_reader import read_blobs
from frontend_svc.api.byte_budget import ByteBudget
from frontend_svc.api.requests import DIGEST_BYTES, MAX_BLOBS_PER_READ, caller_of
from frontend_svc.api.responses import hit_within
from frontend_svc.cache.explain_miss import REASONS, Explanation, explain_miss
from frontend_svc.cache.tenant_caches import Part, Parts
from frontend_svc.cache.tiered_programs import Caller, FoundProgram
from frontend_svc.cache.traces import trace_of
from frontend_svc.flow.admission import Gate
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import Found, StoredVariant
from kernelfarm.cache.trace_cache import PutTrace
from kernelfarm.digest import trace_digest
from kernelfarm.errors import CallerError, MalformedMessageError
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.service.tenants.identity import CACHE_USERS, Role, current_identity
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as compile_api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as api
from kernelfarm.v1.trace_service_pb2_grpc import TraceServiceServicer
from kernelfarm.wire.embedded import field_number
from kernelfarm.wire.manifest import facts_from_proto

TRACE_SERVICE = "kernelfarm.v1.TraceService"

_PROGRAM_OF_PART = field_number(api.LookupTraceResponse, "program")
_OUTCOMES = {
    PutTrace.OK: api.PUT_TRACE_OUTCOME_KEPT,
    PutTrace.PRESENT: api.PUT_TRACE_OUTCOME_PRESENT,
    PutTrace.STALE_INC: api.PUT_TRACE_OUTCOME_STALE,
    PutTrace.STALE_EPOCH: api.PUT_TRACE_OUTCOME_STALE,
}

Context = grpc.aio.ServicerContext[object, object]


class TraceService(TraceServiceServicer):
    """Answers the RPCs about traces."""

    def __init__(self, parts: Parts, gate: Gate, settings: FrontendSettings) -> None:
        self._parts = parts
        self._gate = gate
        self._settings = settings
        self._answers = ByteBudget(settings.max_answers_bytes, "blobs")

    async def LookupTrace(  # type: ignore[override] # hits are ready bytes, which the edge passes
        self, request: api.LookupTraceRequest, context: Context
    ) -> AsyncIterator[api.LookupTraceResponse | bytes]:
        """Finds a trace, and its program with what that loads."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        part = self._parts.of(identity.partition)
        _check(request)
        caller = caller_of(request.model, request.facts)
        await part.programs.models.note(caller.tags)
        found = await part.traces.find(request.digest, caller.tags)
        if not found.is_hit:
            yield api.LookupTraceResponse(miss=_miss(found))
            return
        stored = found.variants[0]
        yield api.LookupTraceResponse(
            trace=manifest_pb2.SignedVariant(
                manifest=manifest_pb2.Manifest.FromString(stored.manifest_bytes),
                content=stored.content,
            )
        )
        if request.wants_program:
            held = frozenset(request.held)
            async with aclosing(_program(part, stored, caller, held, self._answers)) as responses:
                async for response in responses:
                    yield response

    async def PutTrace(
        self, request: api.PutTraceRequest, context: Context
    ) -> api.PutTraceResponse:
        """Keeps a trace that its caller signed."""
        identity = current_identity()
        identity.require(Role.MEMBER, Role.WARMER)
        part = self._parts.of(identity.partition)
        self._check_size("a trace", request.ByteSize())
        if not request.trace.HasField("manifest"):
            raise MalformedMessageError("a trace without its manifest; expected one")
        await self._gate.check_held(part)
        manifest = request.trace.manifest.SerializeToString(deterministic=True)
        stored = StoredVariant(manifest, request.trace.content)
        await part.programs.models.note(request.trace.manifest.tags)
        outcome = await part.traces.put(stored, request.parts, part.tags)
        return api.PutTraceResponse(outcome=_OUTCOMES[outcome])

    async def ExplainTraceMiss(
        self, request: api.ExplainTraceMissRequest, context: Context
    ) -> api.ExplainTraceMissResponse:
        """Tells why a trace is not found, or its program where it is."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        part = self._parts.of(identity.partition)
        self._check_size("a question", request.ByteSize())
        parts = dict(request.parts) or None
        digest = request.digest if parts is None else trace_digest(parts)
        _check_digest(digest)
        caller = caller_of(request.model, manifest_pb2.CallerFacts())
        explained = await part.traces.explain(digest, parts, caller)
        response = api.ExplainTraceMissResponse(trace=explained.to_proto())
        found = await part.traces.find(digest, caller.tags, is_counted=False)
        if found.is_hit:
            stored = found.variants[0]
            response.manifest.ParseFromString(stored.manifest_bytes)
            program = await _explained_program(part, trace_of(stored.content), caller)
            response.program.CopyFrom(program.to_proto())
        return response

    def _check_size(self, what: str, size_bytes: int) -> None:
        most = self._settings.max_trace_bytes
        if size_bytes > most:
            raise CallerError(f"{what} of {size_bytes} bytes; this farm keeps at most {most}")


def _runs(trace: api.Trace, caller: Caller) -> Caller:
    """Who asks for the program of a trace."""
    # Inputs are the captured graph's, which the trace knows; where it runs, the caller knows.
    inputs = facts_from_proto(trace.facts).inputs
    return Caller(caller.tags, CallerFacts(inputs=inputs, environment=caller.facts.environment))


async def _explained_program(part: Part, trace: api.Trace, caller: Caller) -> Explanation:
    """Whether the program of a trace is found, here or in the shared part."""
    key, runs = trace.program_key, _runs(trace, caller)
    looked = await part.programs.find(key, runs, is_counted=False)
    if looked.program is not None:
        return Explanation("found", key, key, ())
    return await explain_miss(part.cache, part.index, key, None, runs)


async def _program(
    part: Part, stored: StoredVariant, caller: Caller, held: frozenset[bytes], budget: ByteBudget
) -> AsyncGenerator[api.LookupTraceResponse | bytes]:
    """The program of a trace, and the binaries that it loads."""
    trace = trace_of(stored.content)
    looked = await part.programs.find(trace.program_key, _runs(trace, caller))
    if looked.program is None:
        yield api.LookupTraceResponse(
            miss=api.TraceMiss(is_program=True, reason=cache_api.MISS_REASON_KEY)
        )
        return
    yield hit_within(_PROGRAM_OF_PART, looked.program, wants_signed=True)
    digests = [digest for digest in _binaries(looked.program) if digest not in held]
    async with aclosing(read_blobs(part.programs, tuple(digests), budget)) as chunks:
        async for chunk in chunks:
            sha256 = digests[chunk.index]
            yield api.LookupTraceResponse(
                blob=api.BlobChunk(sha256=sha256, data=chunk.data, is_last=chunk.is_last)
            )


def _binaries(found: FoundProgram) -> list[bytes]:
    """Digests of what a client loads to run a program, each once."""
    content = compile_api.ProgramResult.FromString(found.variant.content)
    digests = (
        stage.blob.sha256
        for artifact in content.artifacts
        for stage in artifact.stages
        if stage.name == artifact.binary_stage
    )
    return list(dict.fromkeys(digests))


def _check(request: api.LookupTraceRequest) -> None:
    if len(request.held) > MAX_BLOBS_PER_READ:
        raise CallerError(
            f"{len(request.held)} digests held; expected at most {MAX_BLOBS_PER_READ}"
        )
    for digest in (request.digest, *request.held):
        _check_digest(digest)


def _check_digest(digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise CallerError(f"a digest of {len(digest)} bytes; expected {DIGEST_BYTES}")


def _miss(found: Found) -> api.TraceMiss:
    return api.TraceMiss(
        reason=REASONS[found.reason],
        detail=found.detail,
        epoch=found.epoch,
        incarnation=found.incarnation,
    )
