"""Traces that the callers of a farm with tenants look up and publish."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import grpc

from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.service.tenants.identity import Role
from kernelfarm.signing import Manifest, Signer, Space, variant_id
from kernelfarm.signing.key_files import TRACE_KEY, read_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.signing.tags import tenant_tag
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as api
from kernelfarm.v1.trace_service_pb2_grpc import TraceServiceStub
from kernelfarm.wire.manifest import manifest_to_proto
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S
from tests.support.tenants_farm import TenantFarm

_numbers = iter(range(1, 256))


class Traces:
    """Calls about traces with one token."""

    def __init__(self, city: TenantFarm, tenant: str, role: Role | None = Role.MEMBER) -> None:
        self.namespace = f"default/{'shared' if role is Role.WARMER else tenant}"
        self._endpoint = city.farm.endpoint
        self._token = "" if role is None else city.tokens[tenant, role]
        self.signer = read_signer(city.farm.data_dir / "keys" / TRACE_KEY, Space.TRACES)

    def look_up(self, digest: bytes, **asked: Any) -> list[api.LookupTraceResponse]:
        """All messages of the response."""
        request = api.LookupTraceRequest(digest=digest, wants_program=True, **asked)
        with open_blocking_channel(self._endpoint, None, self._token) as channel:
            try:
                return list(TraceServiceStub(channel).LookupTrace(request, timeout=TIMEOUT_S))
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error

    def finds(self, digest: bytes) -> bool:
        return self.look_up(digest)[0].HasField("trace")

    def explain(self, **asked: Any) -> api.ExplainTraceMissResponse:
        request = api.ExplainTraceMissRequest(**asked)
        with open_blocking_channel(self._endpoint, None, self._token) as channel:
            try:
                stub = TraceServiceStub(channel)
                return stub.ExplainTraceMiss(request, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error

    def put(self, trace: manifest_pb2.SignedVariant, parts: dict[str, str] | None = None) -> int:
        request = api.PutTraceRequest(trace=trace, parts=parts or {})
        with open_blocking_channel(self._endpoint, None, self._token) as channel:
            try:
                return TraceServiceStub(channel).PutTrace(request, timeout=TIMEOUT_S).outcome
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error

    def made(
        self, digest: bytes, content: bytes = b"", signer: Signer | None = None, **changes: Any
    ) -> manifest_pb2.SignedVariant:
        """A trace that is signed after the changes, as of now."""
        content = content or trace_content()
        now = self.look_up(bytes(32))[0].miss
        manifest = Manifest(
            namespace=self.namespace,
            space=Space.TRACES,
            key=digest,
            variant_id=variant_id(()),
            guard=(),
            tags=(tenant_tag(self.namespace.partition("/")[2]),),
            epoch=now.epoch,
            incarnation=now.incarnation,
            content=blob_ref(content),
            blobs=(),
            cost_ms=0.0,
            not_after_s=int(time.time()) + 600,
        )
        signed = (signer or self.signer).sign(replace(manifest, **changes))
        return manifest_pb2.SignedVariant(manifest=manifest_to_proto(signed), content=content)


def trace_content(program_key: bytes = b"p" * 32, entry: bytes = b"opaque") -> bytes:
    return api.Trace(program_key=program_key, entry=entry).SerializeToString()


def a_digest() -> bytes:
    return bytes([next(_numbers)]) * 32
