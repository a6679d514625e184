"""A proxy between a client and a real farm: forwards, changes one thing, refuses, or stops."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace

import grpc

from kernelfarm.errors import KernelfarmError, error_facts
from kernelfarm.service.channels import channel_options
from kernelfarm.signing import Manifest, Signer, Space, new_signer
from kernelfarm.v1 import cache_service_pb2 as cache_pb
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1.cache_service_pb2_grpc import (
    CacheServiceServicer,
    CacheServiceStub,
    add_CacheServiceServicer_to_server,
)
from kernelfarm.v1.compile_service_pb2_grpc import (
    CompileServiceServicer,
    CompileServiceStub,
    add_CompileServiceServicer_to_server,
)
from kernelfarm.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    TraceServiceStub,
    add_TraceServiceServicer_to_server,
)
from kernelfarm.wire.manifest import key_to_proto, manifest_from_proto, manifest_to_proto
from kernelfarm.wire.status import DETAILS_TRAILER, status_code, status_details
from tests.support.farm import TIMEOUT_S

Change = Callable[[Manifest], Manifest]
TraceChange = Callable[[manifest_pb2.SignedVariant], None]


def unchanged(manifest: Manifest) -> Manifest:
    return manifest


class TamperingFarm(CompileServiceServicer, CacheServiceServicer, TraceServiceServicer):
    """Serves a farm at another port; `key` signs changed manifests and is among the public keys.

    Each of `changes` is applied to the manifest of one program, in order; later programs stay
    unchanged. `trace_change` is applied to every trace. `calls` counts calls by method.
    """

    def __init__(self, real: str) -> None:
        self._channel = grpc.insecure_channel(real, options=channel_options())
        self._compile = CompileServiceStub(self._channel)
        self._cache = CacheServiceStub(self._channel)
        self._traces = TraceServiceStub(self._channel)
        self.calls: Counter[str] = Counter()
        self.trace_change: TraceChange = lambda _: None
        self.key: Signer = new_signer(Space.PROGRAMS)
        self.changes: list[Change] = []
        self.poisoned_reads = 0
        self.refusals: list[KernelfarmError] = []
        self.asked: list[float] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._port = 0

    @property
    def requests(self) -> int:
        """Compile calls so far."""
        return len(self.asked)

    def signed(self, **changes: object) -> Change:
        """A change of manifest fields, signed with `key`."""
        return lambda manifest: self.key.sign(replace(manifest, **changes))

    def Compile(self, request, context):  # noqa: N802 (the protocol's name)
        self.calls["Compile"] += 1
        self.asked.append(time.monotonic())
        self.may_answer.wait(TIMEOUT_S)
        if self.refusals:
            facts = error_facts(self.refusals.pop(0))
            context.set_trailing_metadata([(DETAILS_TRAILER, status_details(facts, ""))])
            context.abort(status_code(facts), facts.message)
        for event in self._compile.Compile(request):
            if event.HasField("program"):
                self._meddle(event.program)
            yield event

    def _meddle(self, program: pb.ProgramResult) -> None:
        manifest = manifest_from_proto(program.signed.manifest)
        change = self.changes.pop(0) if self.changes else unchanged
        program.signed.manifest.CopyFrom(manifest_to_proto(change(manifest)))

    def Lookup(self, request, context):  # noqa: N802 (the protocol's name)
        return self._compile.Lookup(request)

    def ReadBlobs(self, request, context):  # noqa: N802 (the protocol's name)
        self.calls["ReadBlobs"] += 1
        for chunk in self._compile.ReadBlobs(request):
            if self.poisoned_reads and chunk.data:
                self.poisoned_reads -= 1
                chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
            yield chunk

    def LookupTrace(self, request, context):  # noqa: N802 (the protocol's name)
        self.calls["LookupTrace"] += 1
        for response in self._traces.LookupTrace(request):
            if response.HasField("trace"):
                self.trace_change(response.trace)
            if self.poisoned_reads and response.blob.data:
                self.poisoned_reads -= 1
                response.blob.data = bytes(len(response.blob.data))
            yield response

    def PutTrace(self, request, context):  # noqa: N802 (the protocol's name)
        self.calls["PutTrace"] += 1
        return self._traces.PutTrace(request)

    def ExplainTraceMiss(self, request, context):  # noqa: N802 (the protocol's name)
        return self._traces.ExplainTraceMiss(request)

    def GetCapabilities(self, request, context):  # noqa: N802 (the protocol's name)
        reported = self._compile.GetCapabilities(request)
        reported.public_keys.append(key_to_proto(self.key.trusted))
        return reported

    def ImportProgram(self, request, context):  # noqa: N802 (the protocol's name)
        return self._cache.ImportProgram(request)

    def WatchInvalidations(self, request, context):  # noqa: N802 (the protocol's name)
        stream: Iterator[cache_pb.WatchInvalidationsResponse] = self._cache.WatchInvalidations(
            request
        )
        context.add_callback(stream.cancel)
        try:
            yield from stream
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def start(self) -> str:
        """Starts to serve, at the same port each time; the endpoint."""
        self._server = grpc.server(
            futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)]
        )
        add_CompileServiceServicer_to_server(self, self._server)
        add_CacheServiceServicer_to_server(self, self._server)
        add_TraceServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self._server.start()
        return f"127.0.0.1:{self._port}"

    def stop(self) -> None:
        """Stops serving; the port refuses connections."""
        self._server.stop(None).wait()
