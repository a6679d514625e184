"""Compile jobs without a service."""

from __future__ import annotations

from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.cache.tenant_caches import TenantCache, TenantCaches
from frontend_svc.flow.compile_options import CompileOptions
from frontend_svc.flow.events import CompileJob
from kernelfarm.cache import KernelCache, SigningPolicy, Space
from kernelfarm.service.tenants.identity import NamespaceConfig
from tests.support.small_graphs import CPU, h_request

OPTIONS = CompileOptions()


def part_of(tenant: str = "") -> TenantCache:
    trust = SigningPolicy()
    cache = KernelCache("unix:///nowhere", space=Space.PROGRAMS, signing=trust)
    return TenantCaches(cache, GatewayTier(0, 1.0), trust).of(NamespaceConfig(tenant))


def job_of(rows: int = 64, part: TenantCache | None = None) -> CompileJob:
    graph = h_request(rows).graph.SerializeToString()
    return CompileJob("id", graph, (CPU,), OPTIONS, 0, part or part_of())
