"""Calls of a farm over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from kernelfarm.errors import KernelfarmError
from kernelfarm.service.channels import channel_options
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import compile_service_pb2_grpc as api_grpc
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S

DEADLINE_S = TIMEOUT_S


@dataclass(frozen=True)
class Compiled:
    """The events of one Compile call, in order."""

    stages: list[api.StageEvent]
    programs: list[api.ProgramResult]

    @property
    def program(self) -> api.ProgramResult:
        """The only program."""
        (program,) = self.programs
        return program


@contextmanager
def stub_of(endpoint: str) -> Iterator[api_grpc.CompileServiceStub]:
    """A stub on a channel of its own."""
    with grpc.insecure_channel(endpoint, options=channel_options()) as channel:
        yield api_grpc.CompileServiceStub(channel)


def compile_at(endpoint: str, request: api.CompileRequest, timeout: float = DEADLINE_S) -> Compiled:
    """Collects every event of a Compile call."""
    stages, programs = [], []
    with stub_of(endpoint) as stub:
        for event in stub.Compile(request, timeout=timeout):
            if event.WhichOneof("event") == "program":
                programs.append(event.program)
            else:
                stages.append(event.stage)
    return Compiled(stages, programs)


def compiles(endpoint: str, request: api.CompileRequest) -> bool:
    """True if the call ends with a program; False if it ends with UNAVAILABLE."""
    try:
        return bool(compile_at(endpoint, request).program.artifacts)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False


def refusal_of(endpoint: str, request: api.CompileRequest | bytes) -> KernelfarmError:
    """The error that a Compile call ends with; bytes are sent as they are."""
    with grpc.insecure_channel(endpoint, options=channel_options()) as channel:
        call = channel.unary_stream(
            "/kernelfarm.v1.CompileService/Compile",
            request_serializer=lambda data: data,
            response_deserializer=api.CompileResponse.FromString,
        )
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            events = list(call(data, timeout=DEADLINE_S))
        except grpc.RpcError as error:
            return error_from_rpc(error)
    raise AssertionError(f"accepted, with {len(events)} events")


def read_blobs(endpoint: str, *digests: bytes) -> list[bytes]:
    """The contents of blobs, joined from their chunks."""
    contents = [bytearray() for _ in digests]
    with stub_of(endpoint) as stub:
        for chunk in stub.ReadBlobs(api.ReadBlobsRequest(sha256=digests), timeout=DEADLINE_S):
            assert chunk.offset_bytes == len(contents[chunk.index])
            contents[chunk.index] += chunk.data
    return [bytes(content) for content in contents]
