"""Asks running services how they are: health, and which vendors' workers have reported.

As a command, for containers: `python -m kernelfarm.service.probes HOST:PORT [--worker VENDOR]`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

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


def main(argv: list[str]) -> int:
    """0 if the service at the address serves, or the vendor's worker, else 1 and why on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m kernelfarm.service.probes",
        description="Exits with 0 if a service is healthy, with 1 if it is not.",
        epilog="example: python -m kernelfarm.service.probes 127.0.0.1:50051",
    )
    parser.add_argument("address", help="HOST:PORT or unix:PATH of the service")
    parser.add_argument(
        "--worker",
        metavar="VENDOR",
        help="ask the code generators' edge at the address for a worker with its toolchain instead",
    )
    arguments = parser.parse_args(argv)
    if arguments.worker is None:
        is_healthy, subject = asyncio.run(is_serving(arguments.address)), "service"
    else:
        is_healthy = asyncio.run(reported_vendors(arguments.address)).get(arguments.worker, False)
        subject = f"{arguments.worker} worker with its toolchain"
    if not is_healthy:
        sys.stderr.write(f"no {subject} at {arguments.address}\n")
    return 0 if is_healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
