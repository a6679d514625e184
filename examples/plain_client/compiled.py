"""Asks a farm for a program and its binaries, and verifies both before anything is loaded.

Only the messages of `protos/kernelfarm/v1` travel. `kernelfarm.signing` checks the signature; it
needs no torch either.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf import json_format

from examples.plain_client.repeat import repeated
from kernelfarm.errors import NotFoundError
from kernelfarm.signing import CacheAddress, Keyring, Space, check_content, check_manifest
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import graph_pb2
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from kernelfarm.wire.manifest import manifest_from_proto


@dataclass(frozen=True)
class Compiled:
    """A verified program, and the contents of its binaries by SHA-256."""

    program: api.ProgramResult
    binaries: dict[bytes, bytes]


def read_graph(path: Path) -> graph_pb2.Graph:
    """A graph that was saved as JSON of its message."""
    return json_format.ParseDict(json.loads(path.read_text(encoding="utf-8")), graph_pb2.Graph())


def compile_graph(
    channel: grpc.Channel,
    graph: graph_pb2.Graph,
    target: str,
    keyring: Keyring,
    timeout_s: float = 120.0,
) -> Compiled:
    """The program of a graph, compiled by the farm or found in its cache.

    `timeout_s` bounds all calls and repetitions after the first call.

    Raises:
        grpc.RpcError: the farm does not answer, or refuses the graph; `details()` says why.
        IntegrityError: a signature or digest is wrong; nothing of the response may be used.
    """
    stub = CompileServiceStub(channel)
    asked = api.GetCapabilitiesRequest()
    namespace = repeated(lambda s: stub.GetCapabilities(asked, timeout=s), timeout_s).namespace
    request = api.CompileRequest(
        request_id=uuid.uuid4().hex, graph=graph, targets=[target], wants_signed=True
    )

    def attempt(left_s: float) -> Compiled:
        events = list(stub.Compile(request, timeout=left_s))
        (answer,) = (event.program for event in events if event.WhichOneof("event") == "program")
        program = _verified(answer, namespace, keyring)
        return Compiled(program, _read_blobs(stub, program, left_s))

    # NOT_FOUND: the cache dropped a binary after the call of Compile. The next one makes it again.
    return repeated(attempt, timeout_s, also=NotFoundError)


def _verified(answer: api.ProgramResult, namespace: str, keyring: Keyring) -> api.ProgramResult:
    """The program of a signed response; its manifest names the digest of every blob."""
    manifest, content = manifest_from_proto(answer.signed.manifest), answer.signed.content
    address = CacheAddress(namespace, Space.PROGRAMS, answer.key)
    check_manifest(manifest, address, keyring, time.time())
    check_content(manifest, content)
    return api.ProgramResult.FromString(content)


def _read_blobs(
    stub: CompileServiceStub, program: api.ProgramResult, timeout_s: float
) -> dict[bytes, bytes]:
    """The binaries of all artifacts by SHA-256."""
    wanted = [
        stage.blob.sha256
        for artifact in program.artifacts
        for stage in artifact.stages
        if stage.name == artifact.binary_stage
    ]
    digests = list(dict.fromkeys(wanted))
    contents = [bytearray() for _ in digests]
    for chunk in stub.ReadBlobs(api.ReadBlobsRequest(sha256=digests), timeout=timeout_s):
        contents[chunk.index] += chunk.data
    for digest, content in zip(digests, contents, strict=True):
        if hashlib.sha256(content).digest() != digest:
            raise ValueError(f"a binary has a digest other than {digest.hex()}; do not load it")
    return {digest: bytes(content) for digest, content in zip(digests, contents, strict=True)}
