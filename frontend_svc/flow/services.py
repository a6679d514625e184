"""The services and caches that the request flow calls."""

from __future__ import annotations

from dataclasses import dataclass

from frontend_svc.cache.tenant_caches import TenantCaches
from frontend_svc.flow.downstream import CodegenClient, OptimizerClient
from kernelfarm.cache import KernelCache


@dataclass(frozen=True, slots=True)
class FlowServices:
    """One set for the whole frontend; `cache` works in the farm's own namespace."""

    cache: KernelCache
    tenant_caches: TenantCaches
    optimizer: OptimizerClient
    codegen: CodegenClient
