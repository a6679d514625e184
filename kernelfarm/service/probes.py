"""Asks running services how they are: health, and which vendors' workers have reported."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelfarm.internal.v1 import codegen_service_pb2, codegen_service_pb2_grpc

_TIMEOUT_S = 1.0
# A probe asks again soon; the default backs off to seconds after the first refusal.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
]


async def is_serving(address: str) -> bool:
    """True if the service at the address is healthy."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


async def reported_vendors(codegen_address: str) -> dict[str, bool]:
    """Vendors of which a worker has reported, and whether it has its toolchain.

    None while the service is down. A worker without its toolchain reports too: it answers its jobs
    with what to install.
    """
    async with grpc.aio.insecure_channel(codegen_address, options=_OPTIONS) as channel:
        stub = codegen_service_pb2_grpc.CodegenServiceStub(channel)
        try:
            response = await stub.GetToolchains(
                codegen_service_pb2.GetToolchainsRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return {}
    return {t.target.partition(":")[0]: bool(t.toolchain) for t in response.targets}
