"""Calls of the farm's TraceService: look-up of a trace with its program and blobs; publication."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelfarm import spans
from kernelfarm.client.counters import count_refusal
from kernelfarm.client.farm.channel import stub_of
from kernelfarm.client.farm.client import MAX_BLOBS_IN_A_REQUEST, FarmClient
from kernelfarm.errors import KernelfarmError, PoisonedBlobError
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.v1 import compile_service_pb2, manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import facts_to_proto

if TYPE_CHECKING:
    import grpc

    from kernelfarm.v1.trace_service_pb2_grpc import TraceServiceStub


@dataclass(slots=True)
class TraceLookup:
    """The farm's response for a digest; only the digests of blobs are verified yet.

    `miss` says why there is no trace.
    """

    trace: manifest_pb2.SignedVariant | None = None
    program: compile_service_pb2.ProgramResult | None = None
    miss: pb.TraceMiss | None = None
    blobs: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceClaim:
    """What the caller of a look-up intends if the trace is missing.

    `claimant` is a random number of this process, 16 bytes. `duration_s` is how long the caller may
    take to make the trace; 0: it makes none. `is_repeated`: the caller waits for the trace.
    """

    claimant: bytes
    duration_s: float
    is_repeated: bool = False


class TraceClient:
    """Calls the farm's TraceService over a client's channel; methods raise `KernelfarmError`."""

    def __init__(self, client: FarmClient) -> None:
        self._client = client
        self._settings = client.settings
        self._peer = f"the farm at {client.settings.endpoint}"

    @spans.in_span("LookupTrace")
    def lookup(
        self,
        digest: bytes,
        facts: CallerFacts,
        present_blobs: Sequence[bytes],
        timeout_s: float,
        *,
        wants_program: bool = True,
        claim: TraceClaim | None = None,
    ) -> TraceLookup:
        """The trace of a digest with its program; the farm does not send `present_blobs`.

        With a claim, a miss states whether another process makes the trace.
        If the stream fails after the trace, the result has no program; the caller requests it
        again.
        """
        request = pb.LookupTraceRequest(
            digest=digest,
            model=self._settings.model,
            facts=facts_to_proto(facts),
            wants_program=wants_program,
            present_blobs=present_blobs[:MAX_BLOBS_IN_A_REQUEST],
        )
        if claim is not None:
            request.claim.claimant = claim.claimant
            request.claim.duration_ms = round(claim.duration_s * 1e3)
            request.is_repeated = claim.is_repeated
        answer = TraceLookup()

        def attempt(channel: grpc.Channel, left_s: float) -> None:
            nonlocal answer
            answer = TraceLookup()
            self._read(_stub(channel).LookupTrace(request, timeout=left_s), answer)

        try:
            self._client.asked(attempt, timeout_s)
        except KernelfarmError:
            if answer.trace is None:
                raise
            answer.program = None
        return answer

    @spans.in_span("PutTrace")
    def put(
        self, trace: manifest_pb2.SignedVariant, parts: Mapping[str, str], timeout_s: float
    ) -> pb.PutTraceOutcome.ValueType:
        """Publishes a signed trace with the parts of its digest; returns the farm's outcome."""
        request = pb.PutTraceRequest(trace=trace, parts=parts)
        reply = self._client.asked(
            lambda channel, s: _stub(channel).PutTrace(request, timeout=s), timeout_s
        )
        return reply.outcome

    def explain(
        self, digest: bytes, parts: Mapping[str, str], timeout_s: float
    ) -> pb.ExplainTraceMissResponse:
        """Why a trace is not found; uses the digest only if the parts are not known."""
        request = pb.ExplainTraceMissRequest(
            digest=b"" if parts else digest, parts=parts, model=self._settings.model
        )
        return self._client.asked(
            lambda channel, s: _stub(channel).ExplainTraceMiss(request, timeout=s),
            timeout_s,
        )

    def _read(self, responses: Iterable[pb.LookupTraceResponse], answer: TraceLookup) -> None:
        content = bytearray()
        for response in responses:
            match response.WhichOneof("part"):
                case "trace":
                    answer.trace = response.trace
                case "program":
                    answer.program = response.program
                case "miss" if not response.miss.is_program:
                    answer.miss = response.miss
                case "blob":
                    content += response.blob.data
                    if response.blob.is_last:
                        sha256 = response.blob.sha256
                        answer.blobs[sha256] = self._checked(sha256, bytes(content))
                        content.clear()

    def _checked(self, sha256: bytes, content: bytes) -> bytes:
        if hashlib.sha256(content).digest() == sha256:
            return content
        error = PoisonedBlobError(
            f"{self._peer} sent {len(content)} bytes with another digest than {sha256.hex()}"
        )
        count_refusal("farm", error)
        raise error


def _stub(channel: grpc.Channel) -> TraceServiceStub:
    from kernelfarm.v1.trace_service_pb2_grpc import TraceServiceStub  # noqa: PLC0415 -- has gRPC

    return stub_of(TraceServiceStub, channel)
