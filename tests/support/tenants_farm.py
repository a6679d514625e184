"""A farm with tenants, and clients with their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc

from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.service.tenants.directory import TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.toml_file import read_tenants, write_tenants
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import compile_service_pb2_grpc as api_grpc
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S, Farm, wait_until

T = TypeVar("T")

TENANTS = ("acme", "beta", "poor")


@dataclass(frozen=True)
class TenantFarm:
    """A farm with tenants; `path` is the tenants file, `tokens` by tenant and role."""

    farm: Farm
    path: Path
    tokens: dict[tuple[str, Role], str]

    def caller(self, tenant: str, role: Role = Role.MEMBER) -> Caller:
        """A caller with the token of a tenant's role."""
        return Caller(self.farm.endpoint, self.tokens[tenant, role])


class Caller:
    """Calls with one token; failures raise as `KernelfarmError`."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._token = token

    def compile(self, request: api.CompileRequest) -> api.ProgramResult:
        """Compiles a request with one target."""

        def call(channel: grpc.Channel) -> api.ProgramResult:
            events = list(api_grpc.CompileServiceStub(channel).Compile(request, timeout=TIMEOUT_S))
            return next(e.program for e in events if e.WhichOneof("event") == "program")

        return self._call(call)

    def lookup(self, key: bytes) -> api.ProgramResult:
        """Looks up the program of a key."""
        request = api.LookupRequest(key=key)
        return self._call(
            lambda c: api_grpc.CompileServiceStub(c).Lookup(request, timeout=TIMEOUT_S)
        ).program

    def read(self, sha256: bytes) -> bytes:
        """Reads a blob."""
        request = api.ReadBlobsRequest(sha256=[sha256])

        def call(channel: grpc.Channel) -> bytes:
            chunks = api_grpc.CompileServiceStub(channel).ReadBlobs(request, timeout=TIMEOUT_S)
            return b"".join(chunk.data for chunk in chunks)

        return self._call(call)

    def capabilities(self) -> api.GetCapabilitiesResponse:
        """The capabilities that the farm reports."""
        request = api.GetCapabilitiesRequest()
        return self._call(
            lambda c: api_grpc.CompileServiceStub(c).GetCapabilities(request, timeout=TIMEOUT_S)
        )

    def cache(self, method: str, request: Any) -> Any:
        """The response of a method of the cache service."""
        return self._call(
            lambda c: getattr(CacheServiceStub(c), method)(request, timeout=TIMEOUT_S)
        )

    def usage(self, tenant: str = "") -> cache_api.GetUsageResponse:
        """A tenant's usage."""
        request = cache_api.GetUsageRequest(tenant=tenant)
        return self._call(lambda c: CacheServiceStub(c).GetUsage(request, timeout=TIMEOUT_S))

    def counter(self, name: str, tenant: str = "") -> int:
        """A counter of the key space of programs."""
        return self.usage(tenant).spaces[0].counters.get(name, 0)

    def _call(self, call: Callable[[grpc.Channel], T]) -> T:
        with open_blocking_channel(self._endpoint, None, self._token) as channel:
            try:
                return call(channel)
            except grpc.RpcError as error:
                raise error_from_rpc(error) from error


def set_quota(farm: TenantFarm, tenant: str, quota: Quota) -> None:
    """Changes a quota in the tenants file; returns when the farm has applied it."""
    known = read_tenants(farm.path)
    changed = [replace(t, quota=quota) if t.name == tenant else t for t in known.tenants.values()]
    write_tenants(farm.path, TenantDirectory(changed))
    reader = farm.caller(tenant, Role.READER)

    def is_applied() -> bool:
        reported = reader.usage()
        limits = (reported.max_bytes, reported.max_entries, reported.max_compiles)
        return limits == (quota.max_bytes or 0, quota.max_entries or 0, quota.max_compiles or 0)

    wait_until(is_applied, TIMEOUT_S, "the new quota")


def binary_of(program: api.ProgramResult) -> bytes:
    artifact = program.artifacts[0]
    return next(s.blob.sha256 for s in artifact.stages if s.name == artifact.binary_stage)


def counted(farm: TenantFarm, counter: str, tenant: str = "") -> int:
    return farm.caller("acme", Role.ADMINISTRATOR).counter(counter, tenant)
